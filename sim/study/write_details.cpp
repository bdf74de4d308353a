#include "sim/study/write_details.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/step_runner.h"
#include "sim/timeline/chakra.h"

namespace equipoise {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kListed = 10;

double seconds(Picoseconds time) {
  return to_seconds(time);  // as steps.csv
}

// What the step would take if an axis, a stage or the heaviest micro-batch were free. Under contention each
// of these would be another run of the event loop: there it is contention alone.
ordered_json if_free_json(const OpStepSimulator& op, const PathShares& shares,
                          std::optional<std::pair<std::size_t, std::size_t>> heaviest) {
  ordered_json if_free = ordered_json::object();
  const auto add = [&](const std::string& name, Picoseconds without) {
    const double all = seconds(op.result().makespan);
    if_free[name] = {{"step_seconds", seconds(without)},
                     {"speedup", all / std::max(seconds(without), 1e-12)}};
  };
  if (op.contention()) {
    add("contention", op.makespan_without_contention());
    return if_free;
  }
  const auto add_free = [&](const std::string& name, const Free& free) {
    add(name, makespan_without(op.program(), op.op_options(), free));
  };
  for (std::size_t s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    if (stream == Stream::compute || shares.by_stream[s] == 0) continue;
    Free free;
    free.streams[s] = true;
    add_free(name_of(stream), free);
  }
  for (std::size_t s = 0; s < shares.by_stage.size(); ++s) {
    if (shares.by_stage[s] == 0 || shares.by_stage.size() == 1) continue;
    Free free;
    free.stage = static_cast<std::int32_t>(s);
    add_free("stage " + std::to_string(s), free);
  }
  if (heaviest) {
    Free free;
    free.lane = static_cast<std::int32_t>(heaviest->first);
    free.micro_batch = static_cast<std::int32_t>(heaviest->second);
    add_free("heaviest_micro_batch", free);
  }
  return if_free;
}

// What sets one step's time.
ordered_json path_json(const Step& step, std::size_t number, const OpStepSimulator& op) {
  const std::vector<PathSegment> path = op.critical_path();
  const PathShares shares = share_path(op.program(), path);
  ordered_json out = {{"step", number}, {"step_seconds", seconds(op.result().makespan)}};
  ordered_json by_axis;
  for (std::size_t s = 0; s < kStreams; ++s)
    by_axis[name_of(static_cast<Stream>(s))] = seconds(shares.by_stream[s]);
  out["by_axis"] = by_axis;
  for (const Picoseconds time : shares.by_stage) out["by_stage"].push_back(seconds(time));
  out["after_pipeline_seconds"] = seconds(shares.after_pipeline);
  struct Entry {
    Picoseconds time;
    std::size_t lane, micro_batch;
  };
  std::vector<Entry> entries;
  for (std::size_t l = 0; l < shares.by_micro_batch.size(); ++l)
    for (std::size_t m = 0; m < shares.by_micro_batch[l].size(); ++m)
      if (shares.by_micro_batch[l][m] > 0) entries.push_back({shares.by_micro_batch[l][m], l, m});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.time > b.time; });
  out["micro_batches"] = ordered_json::array();
  for (std::size_t i = 0; i < std::min(kListed, entries.size()); ++i)
    out["micro_batches"].push_back({{"lane", entries[i].lane},
                                    {"micro_batch", entries[i].micro_batch},
                                    {"seconds", seconds(entries[i].time)}});
  const std::vector<DocumentShare> documents = share_by_document(step, path);
  out["documents"] = ordered_json::array();
  for (std::size_t i = 0; i < std::min(kListed, documents.size()); ++i)
    out["documents"].push_back({{"document", documents[i].document}, {"seconds", documents[i].seconds}});
  std::optional<std::pair<std::size_t, std::size_t>> heaviest;
  if (!entries.empty()) heaviest = {entries.front().lane, entries.front().micro_batch};
  out["if_free"] = if_free_json(op, shares, heaviest);
  return out;
}

}  // namespace

WrittenDetails write_details(const Run& run, const Plan& plan, const ShardRule& rule) {
  const DetailOptions& details = run.options.details;
  const std::string& label = run.row.label;
  const RunModels& models = run.models;
  WrittenDetails written;
  if (details.directory.empty() || details.steps < 1) return written;
  const std::filesystem::path directory = details.directory;
  std::error_code error;
  std::filesystem::create_directories(directory / "timeline", error);
  if (!error && run.options.steps.fidelity == Fidelity::op)
    std::filesystem::create_directories(directory / "critical_path", error);
  if (error) throw UserError("--out " + directory.string() + ": cannot be created: " + error.message());
  StepOptions recorded = run.step_options();
  recorded.record_ops = true;
  StepRunner runner(run, rule, recorded);
  Timeline timeline(
      (directory / "timeline" / (file_name(label) + (details.gzip ? ".pftrace.gz" : ".pftrace"))).string(),
      details.selection);
  ordered_json paths = {{"schema", "equipoise.critical-path/1"}, {"policy", label}};
  for (std::size_t i = 0; i < std::min(plan.steps.size(), at(details.steps)); ++i) {
    StepResult result = runner.run(plan.steps[i], i);
    const StepLoads loads{&models.memory, &result.work.lane_tokens,
                          models.costs.framework().recompute_ahead && !recorded.strict_keep};
    if (runner.op() == nullptr) {
      timeline.add(plan.steps[i], result.times, loads);
      if (i == 0) written.recorded.push_back(std::move(result));
      continue;
    }
    timeline.add(plan.steps[i], runner.op()->program(), runner.op()->op_options(), runner.op()->result(),
                 loads);
    paths["steps"].push_back(path_json(plan.steps[i], i, *runner.op()));
    if (i > 0) continue;
    written.recorded.push_back(std::move(result));
    if (!details.chakra) continue;
    const std::filesystem::path traces = directory / "chakra" / file_name(label);
    std::filesystem::create_directories(traces, error);
    if (error) throw UserError("--out " + directory.string() + ": cannot be created: " + error.message());
    write_chakra(traces.string(), runner.op()->program(), models.grid, models.layout.zero == 0);
  }
  timeline.close();
  if (runner.op() == nullptr) return written;
  written.critical_path = paths.dump(2) + "\n";
  write_file_atomically((directory / "critical_path" / (file_name(label) + ".json")).string(),
                        written.critical_path);
  return written;
}

}  // namespace equipoise
