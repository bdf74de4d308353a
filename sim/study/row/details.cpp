#include "sim/study/row/details.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/plan_metrics.h"
#include "sim/study/row/simulate.h"
#include "sim/timeline/chakra.h"
#include "sim/timeline/timeline.h"

namespace equipoise {
namespace {

constexpr std::size_t kOpsOfMicroBatch = 3;  // a micro-batch's text is as long as that of this many ops

Picoseconds seconds_of(const PolicyResult& row, int step) {
  return row.steps[at(step)].times.makespan;
}

// Full steps in order of time, or all steps if none is full.
std::vector<int> steps_by_time(const PolicyResult& row) {
  const CountsInMeans counts(row.steps);
  std::vector<int> steps;
  for (int i = 0; i < static_cast<int>(row.steps.size()); ++i)
    if (counts(row.steps[at(i)])) steps.push_back(i);
  std::ranges::stable_sort(steps, {}, [&](int i) { return seconds_of(row, i); });
  return steps;
}

struct Choice {
  int step = 0;
  std::string why;
};

// The most informative first; a step that is chosen twice has both reasons.
std::vector<Choice> choose(const PolicyResult& row, const std::vector<int>& by_time) {
  std::vector<Choice> choices;
  const auto add = [&](int step, const std::string& why) {
    if (step < 0) return;
    for (Choice& known : choices)
      if (known.step == step) {
        known.why += ", " + why;
        return;
      }
    choices.push_back({step, why});
  };
  add(by_time[(by_time.size() - 1) / 2], "median time");
  add(by_time.back(), "slowest");
  add(row.peak_moment.step, "most memory");
  add(by_time.front(), "fastest");
  return choices;
}

DrawnLane draw_lane(const Lane& lane, int number, std::span<const Picoseconds> forward,
                    std::vector<StageOp> ops) {
  DrawnLane drawn;
  drawn.lane = number;
  drawn.context = lane.context;
  for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
    const MicroBatch& micro_batch = lane.micro_batches[j];
    DrawnMicroBatch own{micro_batch.tokens(), static_cast<std::int64_t>(micro_batch.slices.size()), 0,
                        documents_text(micro_batch), j < forward.size() ? forward[j] : 0};
    for (const Slice& slice : micro_batch.slices) own.longest = std::max(own.longest, slice.tokens());
    drawn.micro_batches.push_back(std::move(own));
  }
  std::ranges::stable_sort(ops, {}, [](const StageOp& op) { return std::pair(op.stage, op.start); });
  for (StageOp& op : ops) op.ranks = {};  // the page draws whole stages, not ranks
  drawn.ops = std::move(ops);
  return drawn;
}

// The lane that ends last, the one that ends first, the one before the last, and so on.
std::vector<int> from_both_ends(std::vector<std::pair<Picoseconds, int>> ends) {
  std::stable_sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int> order;
  for (std::size_t i = 0; i < ends.size(); ++i)
    order.push_back(ends[i % 2 == 0 ? i / 2 : ends.size() - 1 - i / 2].second);
  return order;
}

DrawnStep draw_step(const Step& step, const Choice& choice, const StepTimes& times, std::size_t& room) {
  DrawnStep drawn{choice.step, choice.why, times.makespan, times.pipeline, 0, {}};
  std::map<int, std::vector<StageOp>> ops;
  for (const StageOp& op : times.ops) ops[op.lane].push_back(op);
  std::vector<std::size_t> first(step.lanes.size());  // by lane: its first micro-batch among all of the step
  for (std::size_t l = 0, count = 0; l < step.lanes.size(); ++l) {
    first[l] = count;
    count += step.lanes[l].micro_batches.size();
  }
  std::vector<std::pair<Picoseconds, int>> ends;
  for (const auto& [lane, own] : ops)
    ends.emplace_back(std::ranges::max_element(own, {}, &StageOp::end)->end, lane);
  drawn.lanes_of_step = static_cast<int>(ends.size());
  constexpr std::size_t kMostLanes = 8;
  for (const int lane : from_both_ends(std::move(ends))) {
    std::vector<StageOp>& own = ops[lane];
    const std::size_t cost = own.size() + kOpsOfMicroBatch * step.lanes[at(lane)].micro_batches.size();
    if (cost > room || drawn.lanes.size() == kMostLanes) break;
    room -= cost;
    const auto forward =
        std::span(times.forward_latency).subspan(std::min(first[at(lane)], times.forward_latency.size()));
    drawn.lanes.push_back(draw_lane(step.lanes[at(lane)], lane, forward, std::move(own)));
  }
  return drawn;
}

using nlohmann::ordered_json;

constexpr std::size_t kListed = 10;

double seconds(Picoseconds time) {
  return to_seconds(time);  // in the unit of steps.csv
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

// Describes what sets one step's time.
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
  std::ranges::stable_sort(entries, std::ranges::greater{}, &Entry::time);
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
// Fills in the chosen steps, the memory of every stage, and how long tokens wait. `recorded` holds the steps
// that were recorded already, from step 0.
void look_closer(const StudyRow& row, const PolicyResult& result, const RunStudyOptions& options,
                 const std::vector<StepResult>& recorded, StepRunner& runner, RowDetails& details) {
  details.tokens_by_delay = tokens_by_delay(row.documents.batches, result.plan);
  if (result.steps.empty()) return;
  const std::vector<int> by_time = steps_by_time(result);
  details.typical_step = by_time[(by_time.size() - 1) / 2];
  std::vector<Choice> choices;
  if (options.steps.op.contention)
    for (int i = 0; i < static_cast<int>(recorded.size()); ++i) choices.push_back({i, "step recorded"});
  else
    choices = choose(result, by_time);
  std::size_t room = options.details.most_ops;
  for (const Choice& choice : choices) {
    const bool is_here = at(choice.step) < recorded.size();
    const Step& step = result.plan.steps[at(choice.step)];
    const StepResult again = is_here ? StepResult() : runner.simulate(step, at(choice.step));
    const StepResult& looked_at = is_here ? recorded[at(choice.step)] : again;
    if (choice.step == result.peak_moment.step || details.memory_step < 0) {
      details.memory_step = choice.step;
      details.stage_peaks = looked_at.work.stage_peaks;
    }
    if (result.simulated()) details.steps.push_back(draw_step(step, choice, looked_at.times, room));
  }
}

void make_folder(const std::filesystem::path& folder, const std::filesystem::path& out) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError("--out ", out.string(), ": cannot be created: ", error.message());
}

// Writes the files of the first steps. Returns the first step, with its ops.
std::vector<StepResult> write_steps(const StudyRow& row, const Plan& plan, const DetailOptions& options,
                                    bool strict_keep, StepRunner& runner, std::string& critical_path) {
  const RunModels& models = *row.models;
  const std::filesystem::path directory = options.directory;
  const std::string name = file_name(row.run.label);
  const bool has_ops = runner.op() != nullptr;
  make_folder(directory / "timeline", directory);
  if (has_ops) make_folder(directory / "critical_path", directory);
  Timeline timeline((directory / "timeline" / (name + (options.gzip ? ".pftrace.gz" : ".pftrace"))).string(),
                    options.selection);
  ordered_json paths = {{"schema", "equipoise.critical-path/1"}, {"policy", row.run.label}};
  std::vector<StepResult> recorded;
  for (std::size_t i = 0; i < std::min(plan.steps.size(), at(options.steps)); ++i) {
    StepResult result = runner.simulate(plan.steps[i], i);
    const StepLoads loads{&models.memory, &result.work.lane_tokens,
                          models.costs.framework().recompute_ahead && !strict_keep};
    if (has_ops) {
      timeline.add(plan.steps[i], runner.op()->program(), runner.op()->op_options(), runner.op()->result(),
                   loads);
      paths["steps"].push_back(path_json(plan.steps[i], i, *runner.op()));
    } else {
      timeline.add(plan.steps[i], result.times, loads);
    }
    if (i > 0) continue;
    recorded.push_back(std::move(result));
    if (!has_ops || !options.chakra) continue;
    make_folder(directory / "chakra" / name, directory);
    write_chakra(
        (directory / "chakra" / name).string(), runner.op()->program(), models.grid,
        models.layout.zero == 0 || (models.layout.zero == 1 && !models.costs.framework().scatter_gradients));
  }
  timeline.close();
  if (!has_ops) return recorded;
  critical_path = paths.dump(2) + "\n";
  write_file_atomically((directory / "critical_path" / (name + ".json")).string(), critical_path);
  return recorded;
}

}  // namespace

std::string file_name(const std::string& label) {
  std::string name = label;
  for (char& c : name)
    if (c == '/' || c == ' ') c = '_';
  return name;
}

void add_details(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                 PolicyResult& result) {
  StepOptions of_step = row.step_options();
  of_step.record_ops = true;
  StepRunner runner(row, rule, of_step, options.steps);
  std::vector<StepResult> recorded;
  if (options.details.steps > 0)
    recorded = write_steps(row, result.plan, options.details, of_step.strict_keep, runner,
                           result.details.critical_path);
  look_closer(row, result, options, recorded, runner, result.details);
}

void show_slowest_step(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                       const PolicyResult& result) {
  const auto makespan = [](const StepFigures& step) { return step.times.makespan; };
  const auto slowest = std::ranges::max_element(result.steps, {}, makespan);
  if (slowest == result.steps.end()) return;
  const auto number = static_cast<std::size_t>(slowest - result.steps.begin());
  StepOptions of_step = row.step_options();
  of_step.record_ops = true;
  StepSettings settings = options.steps;
  settings.fidelity = Fidelity::op;
  settings.op.contention = false;
  StepRunner runner(row, rule, of_step, settings);
  const Step& step = result.plan.steps[number];
  const StepResult simulated = runner.simulate(step, number);
  options.check_step(row.run.label, {step, runner.op()->program(), runner.op()->op_options(),
                                     runner.op()->result(), row.models->memory, simulated.work,
                                     row.models->costs.framework().recompute_ahead && !of_step.strict_keep});
}

}  // namespace equipoise
