#include "sim/study/read/policy_run.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <variant>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "sim/cost/check_layout.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/naming.h"
#include "sim/study/read/parallel_keys.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/study_keys.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr const char* kWlbLlm = "WLB-LLM (arXiv 2503.17924)";
constexpr Preset kPresets[] = {
    {"plain-4d", "plain", "per-sequence", nullptr, 0, kWlbLlm,
     "WLB-LLM's first baseline: windows as they are, per-sequence sharding"},
    {"fixed-4d", "fixed-greedy", "static-best", nullptr, 0, kWlbLlm,
     "WLB-LLM's second baseline: fixed-length greedy packing, the better static sharding"},
    {"wlb-llm", "wlb", "adaptive", "queues", 2, kWlbLlm,
     "WLB-LLM: variable-length packing, outlier delay with 2 queues, adaptive sharding"},
    {"seq1f1b", "sequence-slices", "per-sequence", nullptr, 0, "Seq1F1B (arXiv 2406.03488)",
     "Slices of equal work through a 1F1B pipeline"},
    {"slimpipe",
     "sequence-slices",
     "per-sequence",
     "slice_by",
     1 /* tokens */,
     "SlimPipe (arXiv 2504.14519)",
     "Slices of equal tokens; stages exchange attention (stage_attention_exchange)",
     {},
     true},
    {"disaggregated", "plain", "contiguous", nullptr, 0, "DistCA (arXiv 2510.18121)",
     "Windows as they are, a run of tokens per rank, attention on any rank (context_comm disaggregated)",
     ContextComm::disaggregated},
};

template <class Options>
void read_parameters(JsonObject& object, std::span<const Parameter<Options>> rows, Options& options) {
  for (const Parameter<Options>& row : rows) {
    if (object.find(row.key) == nullptr) continue;
    const ParameterValue value = read_value(object, row);
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value); list != nullptr && row.rising)
      if (std::adjacent_find(list->begin(), list->end(), std::greater_equal<>()) != list->end())
        object.fail(row.key, "rising " + std::string(row.key));
    if (!row.excludes.empty() && object.has(row.excludes))
      object.fail(row.key,
                  "one of " + std::string(row.excludes) + " and " + std::string(row.key) + ", not both");
    naming(object.where() + "." + std::string(row.key), [&] {
      row.set(options, value);
      return true;
    });
  }
}

constexpr double kLargestFigure = 1e30;

Published read_published_source(const json& node, const std::string& where) {
  JsonObject object(node, where);
  Published published;
  published.source = object.text("source", "");
  if (published.source.empty()) object.fail("source", "where the figures are, e.g. \"arXiv ..., Table 2\"");
  read_keys(object, published_keys(), published);
  if (object.has("status")) published.out_of_memory = object.choice("status", 0, kPublishedStatus) == 1;
  if (const json* metrics = object.find("metrics")) {
    JsonObject figures(*metrics, where + ".metrics");
    for (const std::string& key : published_metrics()) {
      const double value = figures.number(key, 0, -kLargestFigure, kLargestFigure);
      if (figures.has(key)) published.figures.push_back({key, value});
    }
    figures.finish();
  }
  object.finish();
  if (published.figures.empty() && !published.out_of_memory)
    throw UserError(where, ": expected metrics or status, found neither");
  return published;
}

// Reads one object, or a list of objects with one for each source.
std::vector<Published> read_published(const json& node, const std::string& where) {
  if (!node.is_array()) return {read_published_source(node, where)};
  std::vector<Published> list;
  for (std::size_t i = 0; i < node.size(); ++i)
    list.push_back(read_published_source(node[i], where + "[" + std::to_string(i) + "]"));
  return list;
}

// Reads the keys that only `plan` has: where it is, and which one.
void read_plan_keys(JsonObject& object, const Study& study, PolicyRun& run) {
  const std::string file = object.text("file", "");
  run.plan_name = object.text("policy", "");
  const bool from_file = run.name == plan_policy().name;
  for (const char* key : {"file", "policy"})
    if (!from_file && object.has(key)) object.fail(key, "none with a name other than plan");
  if (!from_file) return;
  if (file.empty()) object.fail("file", "the path of a plan (equipoise.plan/1)");
  run.plan_file = file;
  if (file == kPlanOfCaller) return;
  run.plan_file = (std::filesystem::path(study.directory) / file).lexically_normal().string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(run.plan_file, error)) object.fail("file", "a file that is there");
}

// Marks the policy's sizes that are auto: those that say so, or all of them if the entry has none.
void leave_sizes_open(JsonObject& object, PolicyRun& run) {
  const std::span<const TriedSize> tried = run.policy().tried;
  for (const PackParameter& row : pack_parameters())
    if (std::ranges::count(row.words, kAutoWord[0]) > 0 &&
        row.get(run.pack) == ParameterValue(std::int64_t{0}) &&
        std::ranges::find(tried, row.key, &TriedSize::key) == tried.end())
      object.fail(row.key, "a number; auto is for chunkflow");
  const bool none = std::ranges::none_of(tried, [&](const TriedSize& size) { return object.has(size.key); });
  for (const TriedSize& size : tried) {
    const PackParameter& row = *pack_parameter(size.key);
    if (!none && row.get(run.pack) != ParameterValue(std::int64_t{0})) continue;
    run.open_sizes.push_back(&size);
    row.set(run.pack, size.values(run.pack, 0).front());
  }
}

}  // namespace

std::span<const Preset> presets() {
  return kPresets;
}

ShardOptions default_sharding() {
  ShardOptions sharding;
  sharding.pad = Pad::tail;
  return sharding;
}

PolicyRun read_policy_run(const json& node, const std::string& where, const Study& study) {
  const json named = node.is_string() ? json{{"name", node}} : node;
  JsonObject object(named, where);
  PolicyRun run;
  run.pack = study.batch;
  run.sharding = default_sharding();
  run.name = object.text("name", "");
  if (run.name.empty()) object.fail("name", "the name of a policy");
  run.label = run.name;
  read_plan_keys(object, study, run);
  const auto preset = std::ranges::find(kPresets, run.name, &Preset::name);
  if (preset != std::end(kPresets)) run.name = preset->policy;
  naming(where, [&] { return run.policy(); });
  run.shard = run.policy().shard;
  if (preset != std::end(kPresets)) {
    run.shard = preset->shard;
    run.context_comm = preset->context_comm;
    run.stage_attention_exchange = preset->stage_attention_exchange;
    if (preset->key != nullptr) pack_parameter(preset->key)->set(run.pack, preset->value);
  }
  run.schedule = run.policy().schedule;
  read_keys(object, policy_keys(), run);
  run.asks_stage_exchange = run.stage_attention_exchange;
  run.label = printable(run.label);
  naming(where, [&] { return sharding_policy(run.shard); });
  run.virtual_pipeline_auto = run.virtual_pipeline == 0;
  if (run.virtual_pipeline_auto) run.virtual_pipeline.reset();
  if (run.virtual_pipeline) set_virtual_pipeline(study, *run.virtual_pipeline, run);
  run.schedule_auto = run.schedule == "auto";
  if (run.schedule_auto) run.schedule = run.policy().schedule;
  try {
    if (!run.schedule.empty()) (void)schedule_policy(run.schedule);
  } catch (const UserError& e) {
    throw UserError(where, ": ", e.what(), ", or auto");
  }
  if (const json* recompute = object.find("recompute")) {
    const RecomputeKeys said = read_recompute(*recompute, where);
    run.has_recompute = true;
    run.recompute = said.mode;
    run.recompute_layers = said.layers;
    run.recompute_modules = said.modules;
  }
  read_parameters(object, pack_parameters(), run.pack);
  read_parameters(object, shard_parameters(), run.sharding);
  leave_sizes_open(object, run);
  for (const auto& [key, value] : named.items()) run.typed.push_back(key);
  if (object.has("bucket_size") && run.pack.bucket_size == 0) {  // a word means that it is derived
    if (run.policy().derives != Derives::bucket_size && !run.rule().places_documents)
      object.fail("bucket_size", "a number; best and memory are for gds, skrull, round-robin and dacp");
    std::erase(run.typed, "bucket_size");
  }
  if (const json* published = object.find("published"))
    run.published = read_published(*published, where + ".published");
  object.finish(place_of_key);
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

Layout layout_of(const Study& study, const PolicyRun& run) {
  Layout layout = study.layout;
  layout.context_comm = run.context_comm.value_or(layout.context_comm);
  layout.virtual_pipeline = run.virtual_pipeline.value_or(layout.virtual_pipeline);
  layout.stage_attention_exchange = run.stage_attention_exchange;
  if (run.has_recompute) {
    layout.recompute = run.recompute;
    layout.recompute_layers = run.recompute_layers;
    layout.recompute_modules = run.recompute_modules;
  }
  // A schedule from both ends has no model chunks, and refuses them itself.
  layout.bidirectional = schedule_policy_of(study, run).bidirectional && layout.virtual_pipeline == 1;
  return layout;
}

std::string exchange_fault(const Study& study, const PolicyRun& run, const std::string& where) {
  const Layout layout = layout_of(study, run);
  if (!layout.evens_out_stages()) return "";
  const auto fault = [&](const std::string& expected, std::string_view found) {
    return concatenated(where, ": ", expected, ", or stage_attention_exchange false, found ", found);
  };
  const std::string_view schedule = run.schedule_auto ? "auto" : schedule_policy_of(study, run).name;
  if (schedule != "seq1f1b") return fault("schedule: expected seq1f1b", schedule);
  if (run.policy().chooses_degrees || run.policy().derives == Derives::groups)
    return fault("name: expected a policy whose lanes have one CP degree", run.name);
  if (run.recompute_by_stage && layout.recompute == Recompute::automatic)
    return fault("recompute_by_stage: expected false", "true");
  try {
    check_layout(study.model, layout, where);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

bool leaves_out_exchange(PolicyRun& run, const std::string& fault) {
  if (fault.empty() || run.says("stage_attention_exchange")) return false;
  run.stage_attention_exchange = false;
  return true;
}

std::string default_schedule(int chunks) {
  return chunks > 1 ? "interleaved-1f1b" : "1f1b";
}

void shape_chunks(int stages, int chunks, PackOptions& pack) {
  pack.chunks = chunks;
  pack.lane_round = chunks > 1 ? stages : 1;
}

void set_virtual_pipeline(const Study& study, int chunks, PolicyRun& run) {
  run.virtual_pipeline = chunks;
  shape_chunks(study.layout.pipeline, chunks, run.pack);
}

const SchedulePolicy& schedule_policy_of(const Study& study, const PolicyRun& run) {
  if (!run.schedule.empty()) return schedule_policy(run.schedule);
  const bool is_default = study.schedule == default_schedule(1) || study.schedule == default_schedule(2);
  return schedule_policy(run.virtual_pipeline && is_default ? default_schedule(*run.virtual_pipeline)
                                                            : study.schedule);
}

}  // namespace equipoise
