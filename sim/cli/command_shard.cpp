#include "sim/cli/command_shard.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/sharding/sharding.h"
#include "policies/workload.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"
#include "sim/cost/layer_costs.h"
#include "sim/cost/policy_costs.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/study_table.h"
#include "sim/study/row/study_row.h"
#include "sim/workload/model.h"

namespace equipoise {
namespace {

// Attention of one layer with all heads of the model, by the profile.
class ModelAttentionCost final : public AttentionCost {
 public:
  ModelAttentionCost(const Profile& profile, const ModelShape& model)
      : attention_(profile, attention_heads(model, 1, 1)), reach_(model.reach()) {
    for (int layer = 0; layer < model.layers; ++layer)
      sliding_ += (model.is_sliding_layer(layer) ? 1.0 : 0.0) / model.layers;
  }
  [[nodiscard]] double seconds(std::span<const Segment> segments) const override {
    return seconds_of_calls(segments, false);
  }
  [[nodiscard]] double seconds_of_calls(std::span<const Segment> segments, bool strided) const {
    const auto pieces_of = [strided](std::span<const Segment> attended) {
      std::vector<QueryKeys> pieces;
      for_each_kernel_piece(attended, strided, [&](std::int64_t queries, std::int64_t keys) {
        pieces.push_back({queries, keys});
      });
      return pieces;
    };
    RangeUse use;
    double seconds = 0;  // the mean of the model's layers
    if (sliding_ < 1) seconds += (1 - sliding_) * attention_.forward_seconds(pieces_of(segments), use);
    std::vector<Segment> chunks;
    if (sliding_ > 0 && reach_.chunked) cut_into_chunks(segments, reach_.window, chunks);
    if (sliding_ > 0)
      seconds += sliding_ * attention_.forward_seconds(pieces_of(reach_.chunked ? chunks : segments), use,
                                                       reach_.window);
    return seconds;
  }

 private:
  AttentionModel attention_;
  Reach reach_;
  double sliding_ = 0;  // share of the layers
};

// What the options name, loaded; each part is absent where its option is.
struct Pricing {
  std::optional<ModelShape> model;
  std::unique_ptr<Profile> profile;
  std::unique_ptr<RankGrid> grid;
  std::unique_ptr<Workload> workload;             // of a document, for dacp
  std::unique_ptr<AttentionCost> cost;            // of segments
  const ModelAttentionCost* predicted = nullptr;  // the same where a profile is named
};

std::unique_ptr<Workload> document_cost(const ShardCommandOptions& options, Pricing& pricing) {
  const auto cost = options.cost.empty()
                        ? CostKind::flops
                        : static_cast<CostKind>(choice_of(options.cost, "--cost", kCostKindNames));
  if (cost == CostKind::quadratic) return std::make_unique<QuadraticWorkload>();
  if (!pricing.model)
    throw UserError("--cost " + std::string(kCostKindNames[at(cost)]) +
                    ": needs --model, found none; --cost quadratic does not");
  const ModelShape& model = *pricing.model;
  if (cost == CostKind::flops) return std::make_unique<FlopsWorkload>(flops_workload(model));
  if (!pricing.profile) throw UserError("--cost profiled: needs --profile, found none");
  Layout layout;
  layout.context = options.ranks;
  pricing.grid = std::make_unique<RankGrid>(layout.order, ParallelSizes{.context = options.ranks},
                                            pricing.profile->device().gpus_per_node);
  const LayerCosts costs(model, layout, *pricing.profile, *pricing.grid, {}, {});
  std::int64_t tokens = 0;
  for (const std::int64_t length : options.lengths) tokens += length;
  return std::make_unique<ProfiledWorkload>(costs, tokens);
}

Pricing load_pricing(const ShardCommandOptions& options) {
  Pricing pricing;
  if (!options.model.empty())
    pricing.model = options.model.find(".json") == std::string::npos ? builtin_model(options.model)
                                                                     : read_hf_config(options.model);
  if (!options.profile.empty()) {
    if (!pricing.model)
      throw UserError("--profile: needs --model for the number and size of heads, found none");
    pricing.profile = std::make_unique<Profile>(Profile::load(options.profile));
    auto cost = std::make_unique<ModelAttentionCost>(*pricing.profile, *pricing.model);
    pricing.predicted = cost.get();
    pricing.cost = std::move(cost);
  } else {
    pricing.cost = std::make_unique<TileAttentionCost>(options.tile);
  }
  if (sharding_policy(options.policy).places_documents || !options.cost.empty())
    pricing.workload = document_cost(options, pricing);
  return pricing;
}

ShardOptions rule_options(const ShardCommandOptions& options, const Pricing& pricing) {
  ShardOptions rule;
  rule.remainder = static_cast<Remainder>(choice_of(options.remainder, "--remainder", kRemainderNames));
  rule.pad = static_cast<Pad>(choice_of(options.pad, "--pad", kPadNames));
  rule.tile = options.tile;
  rule.block = options.block;
  rule.top_p = options.top_p;
  rule.tolerance = options.tolerance;
  rule.bucket_size = options.bucket_size;
  rule.workload = pricing.workload.get();
  return rule;
}

void check_shard_options(const ShardCommandOptions& options) {
  constexpr int kMostRanks = 1 << 16;
  if (options.ranks < 1 || options.ranks > kMostRanks)
    throw UserError("--cp: expected an integer from 1 to 65536, found " + std::to_string(options.ranks));
  if (options.lengths.empty()) throw UserError("--lengths: expected at least one length, found none");
  if (options.tile < 1)
    throw UserError("--tile: expected an integer >= 1, found " + std::to_string(options.tile));
  if (options.block < 1)
    throw UserError("--block: expected an integer >= 1, found " + std::to_string(options.block));
}

// A rule makes a segment of each token, of each block of queries, or two of each document per rank.
void check_shard_memory(const ShardCommandOptions& options) {
  constexpr double kSegmentBytes = 2 * sizeof(Segment) + 100;
  const auto documents = static_cast<double>(options.lengths.size());
  const ShardPolicy& rule = sharding_policy(options.policy);
  const auto tokens = static_cast<double>(sum_of(options.lengths));
  double segments = 2.0 * options.ranks * documents;
  if (rule.deals_tokens) segments = tokens;
  if (has_key(rule, "block")) segments = tokens / static_cast<double>(options.block) + documents;
  require_memory("shard: " + options.policy + " over " + std::to_string(options.ranks) + " CP ranks",
                 kSegmentBytes * segments, memory_limit(options.max_memory_GB),
                 "a larger --block, fewer tokens or fewer ranks");
}

std::int64_t pairs_of(std::span<const Segment> segments) {
  std::int64_t pairs = 0;
  for (const Segment& s : segments) pairs += s.pairs();
  return pairs;
}

// Predicted seconds of the rank; none without a profile.
std::optional<double> seconds_of(const Sharding& sharding, int rank, const Pricing& pricing) {
  if (pricing.predicted == nullptr) return std::nullopt;
  return pricing.predicted->seconds_of_calls(sharding.of_rank(rank), sharding.strided);
}

void print_shard_json(const Sharding& sharding, const Pricing& pricing, std::ostream& out) {
  nlohmann::ordered_json document;
  document["chosen"] = sharding.chosen;
  document["ranks"] = nlohmann::ordered_json::array();
  for (int r = 0; r < sharding.ranks(); ++r) {
    nlohmann::ordered_json rank;
    rank["tokens"] = sharding.rank_tokens[at(r)];
    rank["pairs"] = pairs_of(sharding.of_rank(r));
    const std::optional<double> seconds = seconds_of(sharding, r, pricing);
    rank["seconds"] = seconds ? nlohmann::ordered_json(*seconds) : nlohmann::ordered_json(nullptr);
    rank["segments"] = nlohmann::ordered_json::array();
    for (const Segment& s : sharding.of_rank(r)) rank["segments"].push_back({s.slice, s.q_begin, s.q_end});
    document["ranks"].push_back(std::move(rank));
  }
  out << document.dump() << '\n';
}

std::string segment_text(const Segment& s) {
  return std::to_string(s.slice) + ':' + std::to_string(s.q_begin) + '-' + std::to_string(s.q_end);
}

std::string seconds_text(const std::optional<double>& seconds) {
  if (!seconds) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", *seconds);
  return text;
}

void print_shard_csv(const Sharding& sharding, const Pricing& pricing, std::ostream& out) {
  out << "rank,tokens,pairs,seconds,segments\n";
  for (int r = 0; r < sharding.ranks(); ++r) {
    out << r << ',' << sharding.rank_tokens[at(r)] << ',' << pairs_of(sharding.of_rank(r)) << ','
        << seconds_text(seconds_of(sharding, r, pricing)) << ',';
    const char* between = "";
    for (const Segment& s : sharding.of_rank(r)) {
      out << between << segment_text(s);
      between = " ";
    }
    out << '\n';
  }
}

// The first few segments, and how many more there are.
std::string segments_text(std::span<const Segment> segments) {
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, segments.size()); ++i)
    text.append(text.empty() ? "" : " ").append(segment_text(segments[i]));
  if (segments.size() > kShown) text += " and " + std::to_string(segments.size() - kShown) + " more";
  return text.empty() ? "-" : text;
}

void print_shard_table(const ShardCommandOptions& options, const Sharding& sharding, const Pricing& pricing,
                       std::ostream& out) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : options.lengths) tokens += length;
  const auto plural = [](std::size_t n, const char* noun) {
    return std::to_string(n) + ' ' + noun + (n == 1 ? "" : "s");
  };
  out << sharding.chosen << ": " << grouped(tokens) << " tokens in "
      << plural(options.lengths.size(), "document") << " over "
      << plural(static_cast<std::size_t>(options.ranks), "CP rank");
  if (sharding.padding_tokens > 0) out << ", " << grouped(sharding.padding_tokens) << " of padding";
  out << "\n\n";

  std::vector<std::string> header = {"rank", "tokens", "pairs"};
  if (pricing.profile) header.push_back("attention");
  header.push_back("segments (document:queries)");
  TextTable table(header);
  double most = 0;
  double sum = 0;
  for (int r = 0; r < sharding.ranks(); ++r) {
    const std::int64_t pairs = pairs_of(sharding.of_rank(r));
    const std::optional<double> seconds = seconds_of(sharding, r, pricing);
    std::vector<std::string> row = {std::to_string(r), grouped(sharding.rank_tokens[at(r)]), grouped(pairs)};
    if (seconds) row.push_back(fixed(*seconds * 1e6, 1) + " us");
    row.push_back(segments_text(sharding.of_rank(r)));
    table.add(std::move(row));
    const double load = seconds ? *seconds : static_cast<double>(pairs);
    most = std::max(most, load);
    sum += load;
  }
  out << table.text();
  if (sum > 0)
    out << "\nslowest rank / mean: " << fixed(most * sharding.ranks() / sum, 3) << " in "
        << (pricing.profile ? "predicted attention time" : "causal pairs; --profile and --model predict time")
        << '\n';
}

}  // namespace

void shard_command(const ShardCommandOptions& options, std::ostream& out) {
  check_shard_options(options);
  const ShardPolicy& policy = sharding_policy(options.policy);
  check_shard_memory(options);
  const Pricing pricing = load_pricing(options);
  MicroBatch micro_batch;
  for (const std::int64_t length : options.lengths)
    micro_batch.slices.push_back({static_cast<std::int64_t>(micro_batch.slices.size()), 0, length});
  Sharding sharding;
  policy.shard(micro_batch, options.ranks, rule_options(options, pricing), *pricing.cost, sharding);
  if (!sharding.fits)
    throw UserError("--bucket-size: " + std::to_string(micro_batch.tokens()) + " tokens do not fit " +
                    std::to_string(options.ranks) + " CP ranks of " + std::to_string(options.bucket_size) +
                    "; allowed: " +
                    std::to_string((micro_batch.tokens() + options.ranks - 1) / options.ranks) + " or more");
  switch (options.format) {
    case Format::table:
      return print_shard_table(options, sharding, pricing, out);
    case Format::json:
      return print_shard_json(sharding, pricing, out);
    case Format::csv:
      return print_shard_csv(sharding, pricing, out);
  }
}

}  // namespace equipoise
