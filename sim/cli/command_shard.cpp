#include "sim/cli/command_shard.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/policy_costs.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/text_table.h"
#include "sim/study/pack_request.h"

namespace equipoise {
namespace {

// The micro-batch as the one batch of a study whose row has the sharding rule.
PackRequest request_of(const ShardCommandOptions& options) {
  if (!options.profile.empty() && options.model.empty())
    throw UserError("--profile: needs --model for the number and size of heads, found none");
  PackRequest request;
  request.command = "shard";
  request.context = options.ranks;
  request.model = options.model;
  request.profile = options.profile;
  request.cost =
      options.cost.empty() && sharding_policy(options.policy).places_documents ? "flops" : options.cost;
  request.framework = "none";
  request.batch["context_window"] = sum_of(options.lengths);
  request.policy = {
      {"shard", options.policy},       {"remainder", options.remainder}, {"pad", options.pad},
      {"tile", options.tile},          {"block", options.block},         {"top_p", options.top_p},
      {"tolerance", options.tolerance}};
  if (options.bucket_size > 0) request.policy["bucket_size"] = options.bucket_size;
  return request;
}

// The row's sharding of the micro-batch, with what each rank computes.
struct ShardedBatch {
  Sharding sharding;
  std::vector<double> seconds;  // of each rank's attention, forward in one layer; empty without a profile
};

ShardedBatch shard_batch(const ShardCommandOptions& options) {
  const PackRequest request = request_of(options);
  const Study study = study_of_request(request);
  const std::optional<Profile> profile = profile_of_request(request, study);
  const DocumentSet documents;
  const StudyRow row =
      priced_row(request, study, documents, profile, row_of_request(request, study, "plain"));
  MicroBatch micro_batch;
  for (const std::int64_t length : options.lengths)
    micro_batch.slices.push_back({static_cast<std::int64_t>(micro_batch.slices.size()), 0, length});
  std::optional<ProfiledAttentionCost> predicted;
  if (row.models) predicted.emplace(row.models->costs);
  const TileAttentionCost tiles(options.tile);
  const ShardRule rule = row.rule(row.run.shard);
  ShardedBatch result;
  row.run.rule().shard(micro_batch, options.ranks, rule.options,
                       predicted ? static_cast<const AttentionCost&>(*predicted) : tiles, result.sharding);
  for (int r = 0; predicted && r < result.sharding.ranks(); ++r)
    result.seconds.push_back(predicted->seconds(result.sharding.of_rank(r), result.sharding.pieces));
  return result;
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
                 kSegmentBytes * segments, options.memory, "a larger --block, fewer tokens or fewer ranks");
}

std::int64_t pairs_of(std::span<const Segment> segments) {
  std::int64_t pairs = 0;
  for (const Segment& s : segments) pairs += s.pairs();
  return pairs;
}

void print_shard_json(const ShardedBatch& batch, std::ostream& out) {
  const Sharding& sharding = batch.sharding;
  nlohmann::ordered_json document;
  document["chosen"] = sharding.chosen;
  document["ranks"] = nlohmann::ordered_json::array();
  for (int r = 0; r < sharding.ranks(); ++r) {
    nlohmann::ordered_json rank;
    rank["tokens"] = sharding.rank_tokens[at(r)];
    rank["pairs"] = pairs_of(sharding.of_rank(r));
    rank["seconds"] = nullptr;
    if (!batch.seconds.empty()) rank["seconds"] = batch.seconds[at(r)];
    rank["segments"] = nlohmann::ordered_json::array();
    for (const Segment& s : sharding.of_rank(r)) rank["segments"].push_back({s.slice, s.q_begin, s.q_end});
    document["ranks"].push_back(std::move(rank));
  }
  out << document.dump() << '\n';
}

std::string segment_text(const Segment& s) {
  return std::to_string(s.slice) + ':' + std::to_string(s.q_begin) + '-' + std::to_string(s.q_end);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", seconds);
  return text;
}

void print_shard_csv(const ShardedBatch& batch, std::ostream& out) {
  const Sharding& sharding = batch.sharding;
  out << "rank,tokens,pairs,seconds,segments\n";
  for (int r = 0; r < sharding.ranks(); ++r) {
    out << r << ',' << sharding.rank_tokens[at(r)] << ',' << pairs_of(sharding.of_rank(r)) << ','
        << (batch.seconds.empty() ? "" : seconds_text(batch.seconds[at(r)])) << ',';
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

void print_shard_table(const ShardCommandOptions& options, const ShardedBatch& batch, std::ostream& out) {
  const Sharding& sharding = batch.sharding;
  const bool predicted = !batch.seconds.empty();
  const auto plural = [](std::size_t n, const char* noun) {
    return std::to_string(n) + ' ' + noun + (n == 1 ? "" : "s");
  };
  out << sharding.chosen << ": " << grouped(sum_of(options.lengths)) << " tokens in "
      << plural(options.lengths.size(), "document") << " over "
      << plural(static_cast<std::size_t>(options.ranks), "CP rank");
  if (sharding.padding_tokens > 0) out << ", " << grouped(sharding.padding_tokens) << " of padding";
  out << "\n\n";

  std::vector<std::string> header = {"rank", "tokens", "pairs"};
  if (predicted) header.push_back("attention");
  header.push_back("segments (document:queries)");
  TextTable table(header);
  double most = 0;
  double sum = 0;
  for (int r = 0; r < sharding.ranks(); ++r) {
    const std::int64_t pairs = pairs_of(sharding.of_rank(r));
    std::vector<std::string> row = {std::to_string(r), grouped(sharding.rank_tokens[at(r)]), grouped(pairs)};
    if (predicted) row.push_back(fixed(batch.seconds[at(r)] * 1e6, 1) + " us");
    row.push_back(segments_text(sharding.of_rank(r)));
    table.add(std::move(row));
    const double load = predicted ? batch.seconds[at(r)] : static_cast<double>(pairs);
    most = std::max(most, load);
    sum += load;
  }
  out << table.text();
  if (sum > 0)
    out << "\nslowest rank / mean: " << fixed(most * sharding.ranks() / sum, 3) << " in "
        << (predicted ? "predicted attention time" : "causal pairs; --profile and --model predict time")
        << '\n';
}

}  // namespace

void shard_command(const ShardCommandOptions& options, std::ostream& out) {
  check_shard_options(options);
  check_shard_memory(options);
  const ShardedBatch batch = shard_batch(options);
  if (!batch.sharding.fits) {
    const std::int64_t tokens = sum_of(options.lengths);
    throw UserError("--bucket-size: " + std::to_string(tokens) + " tokens do not fit " +
                    std::to_string(options.ranks) + " CP ranks of " + std::to_string(options.bucket_size) +
                    "; allowed: " + std::to_string((tokens + options.ranks - 1) / options.ranks) +
                    " or more");
  }
  switch (options.format) {
    case Format::table:
      return print_shard_table(options, batch, out);
    case Format::json:
      return print_shard_json(batch, out);
    case Format::csv:
      return print_shard_csv(batch, out);
  }
}

}  // namespace equipoise
