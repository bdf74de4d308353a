#include "sim/study/policy_run.h"

#include <cstdint>
#include <set>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "policies/policy.h"
#include "sim/schedule/schedule.h"
#include "sim/study/json_object.h"
#include "sim/study/key_notes.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 31;
constexpr Preset kPresets[] = {
    {"plain-4d", "plain", "per-sequence", 0,
     "WLB-LLM's first baseline: windows as they are, per-sequence sharding"},
    {"fixed-4d", "fixed-greedy", "static-best", 0,
     "WLB-LLM's second baseline: fixed-length greedy packing, the better static sharding"},
    {"wlb-llm", "wlb", "adaptive", 2,
     "WLB-LLM: variable-length packing, outlier delay with 2 queues, adaptive sharding"},
};

constexpr std::string_view kOversize[] = {"error", "drop", "truncate", "split"};
constexpr std::string_view kPackOrders[] = {"shuffled", "created"};
constexpr std::string_view kOrders[] = {"as-packed", "descending", "bell"};
constexpr std::string_view kPlacementOrders[] = {"as-grouped", "arrival"};
constexpr std::string_view kSolvers[] = {"auto", "cbc", "highs"};
constexpr std::string_view kRemainders[] = {"slots", "tail", "pad"};
constexpr std::string_view kPads[] = {"error", "tail"};
constexpr std::string_view kCosts[] = {"profiled", "quadratic", "flops"};

}  // namespace

std::span<const Preset> presets() {
  return kPresets;
}

std::vector<Group> parse_groups(const std::string& text, const std::string& where) {
  std::vector<Group> groups;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t colon = item.find(':');
    Group group;
    std::int64_t degree = 0;
    if (colon == std::string::npos || !parse_size(std::string_view(item).substr(0, colon), group.length) ||
        !parse_size(std::string_view(item).substr(colon + 1), degree) || group.length < 1 || degree < 1 ||
        degree > 1024)
      throw UserError(where + ": expected length:degree pairs such as 16K:1,128K:8, found " + item);
    group.context = static_cast<int>(degree);
    groups.push_back(group);
  }
  if (groups.empty())
    throw UserError(where + ": expected length:degree pairs such as 16K:1,128K:8, found nothing");
  return groups;
}

CostKind cost_kind(const PolicyRun& run) {
  if (run.cost != CostKind::standard) return run.cost;
  return run.name == "gds" || run.name == "skrull" || run.shard == "dacp" ? CostKind::flops
                                                                          : CostKind::profiled;
}

void read_pack_options(JsonObject& object, PackOptions& o) {
  o.pack_length = object.integer("pack_length", o.pack_length, 1, kLongest);
  o.micro_batches = object.integer("micro_batches", o.micro_batches, 1, 1 << 24);
  o.order = static_cast<Order>(object.choice("order", static_cast<std::size_t>(o.order), kOrders));
  o.oversize =
      static_cast<Oversize>(object.choice("oversize", static_cast<std::size_t>(o.oversize), kOversize));
  o.seed =
      static_cast<std::uint64_t>(object.integer("seed", static_cast<std::int64_t>(o.seed), 0, INT64_MAX));
  o.shuffle = object.flag("shuffle", o.shuffle);
  o.pack_order = static_cast<PackOrder>(
      object.choice("pack_order", static_cast<std::size_t>(o.pack_order), kPackOrders));
  o.time_limit_seconds = object.number("time_limit", o.time_limit_seconds, 0.001, 1e6);
  o.node_limit = object.integer("node_limit", o.node_limit, 1, INT32_MAX);
  if (object.has("time_limit") && object.has("node_limit"))
    object.fail("node_limit", "one of time_limit and node_limit, not both");
  o.solver = static_cast<MilpSolver>(object.choice("solver", static_cast<std::size_t>(o.solver), kSolvers));
  o.verify = object.flag("verify", o.verify);
  o.pack_window = object.integer("pack_window", o.pack_window, 1, 1 << 20);
  o.queues = static_cast<int>(object.integer("queues", o.queues, 0, 1000));
  o.thresholds = object.integers("thresholds", 1, kLongest);
  for (std::size_t i = 1; i < o.thresholds.size(); ++i)
    if (o.thresholds[i] <= o.thresholds[i - 1]) object.fail("thresholds", "rising thresholds");
  o.max_tokens = object.integer("max_tokens", o.max_tokens, 1, kLongest);
  o.chunk_size = object.integer("chunk_size", o.chunk_size, 1, kLongest);
  o.keep = static_cast<int>(object.integer("keep", o.keep, 1, 1 << 20));
  if (const json* groups = object.find("groups")) {
    if (!groups->is_string())
      object.fail("groups", "a string of length:degree pairs such as \"16K:1,128K:8\"");
    o.groups = parse_groups(groups->get<std::string>(), object.where() + ".groups");
  }
  o.rounds = static_cast<int>(object.integer("rounds", o.rounds, 1, 1000));
  o.threshold = object.integer("threshold", o.threshold, 0, kLongest);
  o.curriculum_steps = object.integer("curriculum_steps", o.curriculum_steps, 0, 1 << 30);
  o.balance_batching = object.flag("balance_batching", o.balance_batching);
  o.bucket_size = object.integer("bucket_size", o.bucket_size, 1, kLongest);
  o.rollback = object.flag("rollback", o.rollback);
  o.placement_order = static_cast<PlacementOrder>(
      object.choice("placement_order", static_cast<std::size_t>(o.placement_order), kPlacementOrders));
  o.tokens_per_rank = object.integer("tokens_per_rank", o.tokens_per_rank, 1, kLongest);
  o.exact = object.flag("exact", o.exact);
  o.equal_size = object.flag("equal_size", o.equal_size);
}

void read_shard_options(JsonObject& object, ShardOptions& o) {
  o.remainder =
      static_cast<Remainder>(object.choice("remainder", static_cast<std::size_t>(o.remainder), kRemainders));
  o.pad = static_cast<Pad>(object.choice("pad", static_cast<std::size_t>(o.pad), kPads));
  o.block = object.integer("block", o.block, 1, kLongest);
  o.tile = object.integer("tile", o.tile, 1, 1 << 20);
}

PolicyRun read_policy_run(const json& node, const std::string& where, const Study& study) {
  const json named = node.is_string() ? json{{"name", node}} : node;
  JsonObject object(named, where);
  PolicyRun run;
  run.pack = study.batch;
  run.sharding.pad = Pad::tail;  // a study's windows need not be multiples of 2 x CP
  run.name = object.text("name", "");
  if (run.name.empty()) object.fail("name", "the name of a policy");
  run.shard = "per-sequence";
  run.label = run.name;
  for (const Preset& preset : kPresets)
    if (run.name == preset.name) {
      run.name = preset.policy;
      run.shard = preset.shard;
      run.pack.queues = preset.queues;
    }
  naming(where, [&] { return packing_policy(run.name); });
  if (run.name == "skrull" || run.name == "round-robin") run.shard = "per-document";
  run.label = printable(object.text("label", run.label));
  run.shard = object.text("shard", run.shard);
  naming(where, [&] { return sharding_policy(run.shard); });
  run.schedule = object.text("schedule", run.name == "chunkflow" ? "state-aware-1f1b" : "");
  if (!run.schedule.empty()) naming(where, [&] { return schedule_policy(run.schedule); });
  run.strict_keep = object.flag("strict_keep", false);
  run.search = object.flag("search", false);
  run.delay_bound = object.number("delay_bound", 0.5, 0, 1e9);
  if (object.has("cost"))
    run.cost = static_cast<CostKind>(object.choice("cost", 0, kCosts));
  else
    object.find("cost");
  run.has_max_tokens = object.has("max_tokens");
  run.has_bucket_size = object.has("bucket_size");
  if (const json* recompute = object.find("recompute")) read_policy_recompute(*recompute, where, run);
  read_pack_options(object, run.pack);
  run.candidates = object.integers("candidates", 1, kLongest);
  read_shard_options(object, run.sharding);
  if (const json* published = object.find("published"))
    run.published = read_published(*published, where + ".published");
  object.finish();
  run.idle_keys = idle_keys(named, run);
  return run;
}

void make_labels_unique(std::vector<PolicyRun>& runs) {
  std::set<std::string> taken;
  for (PolicyRun& run : runs) {
    std::string label = run.label;
    for (int count = 2; !taken.insert(label).second; ++count)
      label = run.label + " #" + std::to_string(count);
    run.label = label;
  }
}

}  // namespace equipoise
