#include "sim/cli/command_schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <string>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "profiler/profile/profile.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/words/words.h"
#include "sim/schedule/drawing.h"
#include "sim/schedule/schedule.h"
#include "sim/step/schedule_problems.h"
#include "sim/step/schedule_timing.h"
#include "sim/step/step_simulator.h"
#include "sim/study/read/naming.h"
#include "sim/study/row/study_row.h"

namespace equipoise {

// The pipeline as the row of a study, of which nothing but the schedule's own options is stated.
static Study study_of_schedule(const ScheduleOptions& run, const Schedule& schedule) {
  return parse_study({{"trace", {{"uniform", 1}}},
                      {"model", run.model},
                      {"cluster", {{"profile", run.profile}}},
                      {"framework", "none"},
                      {"parallel",
                       {{"tensor", run.tensor},
                        {"pipeline", schedule.stages},
                        {"virtual_pipeline", schedule.virtual_stages}}},
                      {"schedule", run.schedule},
                      {"policies", {{{"name", "plain"}, {"shard", "per-document"}}}}},
                     "schedule");
}

static TimedSchedule timed_of_ops(const std::vector<StageOp>& ops, const Schedule& schedule) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  TimedSchedule timed;
  timed.stages.resize(stages);
  timed.busy.assign(stages, 0);
  timed.recompute.assign(stages, 0);
  timed.peak_kept = peak_kept(schedule);
  for (const StageOp& op : ops) {
    const auto s = static_cast<std::size_t>(op.stage);
    const bool ends_pair = !timed.stages[s].empty() && timed.stages[s].back().op.with_next;
    timed.stages[s].push_back({op.op, to_seconds(op.start), to_seconds(op.end)});
    const double duration = ends_pair ? 0 : to_seconds(op.end - op.start);
    timed.busy[s] += duration;
    if (op.op.kind == OpKind::R) timed.recompute[s] += duration;
    timed.makespan = std::max(timed.makespan, to_seconds(op.end));
  }
  return timed;
}

TimedSchedule time_by_profile(const ScheduleOptions& run, const Schedule& schedule,
                              std::span<const MicroBatch> micro_batches) {
  (void)one_way_schedule(run.schedule);  // ranks here hold one copy of each layer
  const Study study = study_of_schedule(run, schedule);
  const Profile profile = Profile::load(study.cluster.profile);
  const DocumentSet documents;
  const StudyRow row(study, documents, &profile, study.policies.front());
  StepOptions options = row.step_options();
  options.keep = run.keep;
  options.strict_keep = run.strict_keep;
  options.pairs = run.pairs;
  options.record_ops = true;
  const ShardRule rule = row.rule(row.run.shard);  // one CP rank: every rule gives it everything
  Step step;
  step.lanes.emplace_back().micro_batches.assign(micro_batches.begin(), micro_batches.end());
  const StepResult result = naming("--profile " + run.profile, [&] {
    return StepSimulator(row.models->costs, rule, options, nullptr).run(step);
  });
  return timed_of_ops(result.times.ops, schedule);
}

namespace {

// What the pipeline runs, in order.
using MicroBatches = std::vector<MicroBatch>;

// Micro-batches of one document each, one a length.
MicroBatches standalone(const std::vector<std::int64_t>& lengths) {
  MicroBatches batches(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i)
    batches[i].slices.push_back({static_cast<std::int64_t>(i), 0, lengths[i]});
  return batches;
}

// Documents cut and packed by ChunkFlow's Algorithm 1, as the one lane of a step.
MicroBatches chunked(const ScheduleOptions& options) {
  std::vector<GlobalBatch> batches(1);
  for (std::size_t i = 0; i < options.lengths.size(); ++i)
    batches.front().slices.push_back({static_cast<std::int64_t>(i), 0, options.lengths[i]});
  PackOptions pack;
  pack.documents_per_step = static_cast<std::int64_t>(options.lengths.size());
  pack_parameter("chunk_size")->set(pack, options.chunk_size);
  const QuadraticWorkload workload;
  const Plan plan = packing_policy("chunkflow").plan({batches, pack, workload});
  return plan.steps.at(0).lanes.at(0).micro_batches;
}

// Sizes of the runs of dependent chunks.
std::vector<std::int32_t> group_sizes_of(const MicroBatches& batches) {
  std::vector<std::int32_t> sizes;
  for (std::size_t i = 0; i < batches.size(); i += static_cast<std::size_t>(sizes.back()))
    sizes.push_back(batches[i].chunk.count);
  return sizes;
}

// How many parts a unit of time is cut into so that `value` is a whole number of them; 0 if it takes more
// than a million.
int parts_for(double value) {
  for (int parts = 1; parts <= 1000000; parts = parts < 1000 ? parts + 1 : parts * 10) {
    const double scaled = value * parts;
    if (std::abs(scaled - std::round(scaled)) <= 1e-12 * scaled) return parts;
  }
  return 0;
}

// Everything that happens, in units of length. Runs on a clock whose tick divides all durations, where sums
// are exact, then divides once: a third of a length adds up to whole lengths again.
TimedSchedule run_schedule(const Schedule& schedule, const MicroBatches& batches,
                           const ScheduleOptions& options) {
  const int ratio_parts = parts_for(options.backward_ratio);
  const int p2p_parts = parts_for(options.p2p);
  // Halves are for a split backward.
  double ticks = 2.0 * schedule.virtual_stages * ratio_parts * p2p_parts;
  if (ticks == 0) ticks = 1;
  const bool exact = ratio_parts > 0 && p2p_parts > 0;

  std::vector<double> forward;
  for (const MicroBatch& batch : batches) forward.push_back(static_cast<double>(batch.tokens()) * ticks);
  OpDurations durations = op_durations(schedule, forward, options.backward_ratio);
  Hops hops{.time = options.p2p * ticks};
  if (exact) {
    for (std::vector<double>& stage : durations)
      for (double& duration : stage) duration = std::round(duration);
    hops.time = std::round(hops.time);
  }
  TimedSchedule timed = time_schedule(schedule, durations, hops);
  for (auto& stage : timed.stages)
    for (TimedOp& op : stage) op = {op.op, op.start / ticks, op.end / ticks, op.alone / ticks};
  for (std::vector<double>* values : {&timed.busy, &timed.recompute})
    for (double& value : *values) value /= ticks;
  timed.makespan /= ticks;
  return timed;
}

// Shortest text that reads back as the same number: 52, 13.5.
std::string shortest_text(double value) {
  std::array<char, 32> text{};
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

nlohmann::ordered_json number_json(double value) {
  if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<std::int64_t>(value);
  return value;
}

void print_schedule_json(const TimedSchedule& timed, std::ostream& out) {
  nlohmann::ordered_json document;
  document["makespan"] = number_json(timed.makespan);
  document["bubble_ratio"] = bubble_ratio(timed);
  document["peak_kept"] = timed.peak_kept;
  document["stages"] = nlohmann::ordered_json::array();
  for (const auto& stage : timed.stages) {
    nlohmann::ordered_json ops = nlohmann::ordered_json::array();
    for (const TimedOp& op : stage) {
      ops.push_back({{"op", letter_of(op.op.kind)},
                     {"micro_batch", op.op.micro_batch},
                     {"virtual_stage", op.op.virtual_stage},
                     {"start", number_json(op.start)},
                     {"end", number_json(op.end)}});
      if (op.op.with_next) ops.back()["with_next"] = true;
    }
    document["stages"].push_back(std::move(ops));
  }
  out << document.dump() << '\n';
}

void print_schedule_csv(const TimedSchedule& timed, std::ostream& out) {
  out << "stage,op,micro_batch,virtual_stage,start,end\n";
  for (std::size_t s = 0; s < timed.stages.size(); ++s)
    for (const TimedOp& op : timed.stages[s])
      out << s << ',' << letter_of(op.op.kind) << ',' << op.op.micro_batch << ',' << op.op.virtual_stage
          << ',' << shortest_text(op.start) << ',' << shortest_text(op.end) << '\n';
}

std::string padded_left(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

void print_schedule_heading(const Schedule& schedule, const ScheduleOptions& options, std::ostream& out) {
  out << options.schedule << ": " << counted(schedule.stages, "stage") << ", "
      << counted(schedule.micro_batches, "micro-batch");
  if (schedule.bidirectional)
    out << ", from both ends";
  else if (schedule.virtual_stages > 1)
    out << ", " << schedule.virtual_stages << " virtual stages a stage";
  if (!options.profile.empty()) {
    out << "; " << printable(options.model) << ", tensor " << options.tensor << ", times in ms by profile "
        << printable(options.profile);
  } else {
    out << "; time = length, backward = " << shortest_text(options.backward_ratio) << " x forward";
    if (options.p2p > 0) out << ", a hop takes " << shortest_text(options.p2p);
  }
  out << "\n\n";
}

void print_schedule_table(const Schedule& schedule, const TimedSchedule& timed,
                          const ScheduleOptions& options, std::ostream& out) {
  const auto time_text = [&](double time) {
    return options.profile.empty() ? shortest_text(time) : fixed(1e3 * time, 3);
  };
  print_schedule_heading(schedule, options, out);
  out << draw_schedule(timed, schedule.virtual_stages, {options.columns, options.color}) << '\n'
      << "makespan " << time_text(timed.makespan) << "   bubble ratio " << fixed(100 * bubble_ratio(timed), 2)
      << " % (recompute is not useful time)\n\n";

  const std::array<std::string, 6> heads{"stage", "busy", "recompute", "idle", "peak kept", "at most"};
  for (const std::string& head : heads) out << padded_left(head, head == "stage" ? 5 : 12);
  out << '\n';
  for (std::size_t s = 0; s < timed.stages.size(); ++s)
    out << padded_left(std::to_string(s), 5) << padded_left(time_text(timed.busy[s]), 12)
        << padded_left(time_text(timed.recompute[s]), 12)
        << padded_left(time_text(timed.makespan - timed.busy[s]), 12)
        << padded_left(std::to_string(timed.peak_kept[s]), 12)
        << padded_left(std::to_string(schedule.kept_bound[s]), 12) << '\n';
}

constexpr double kMostRatio = 1e6;
constexpr double kMostTime = 1e12;

void check_schedule_options(const ScheduleOptions& options) {
  // Far above, sums of times would leave the range of numbers and the columns of the drawing.
  if (!(options.backward_ratio >= 0 && options.backward_ratio <= kMostRatio))
    throw UserError("--backward-ratio: expected a number from 0 to 1e6, found " +
                    shortest_text(options.backward_ratio));
  if (!(options.p2p >= 0 && options.p2p <= kMostTime))
    throw UserError("--p2p: expected a number from 0 to 1e12, found " + shortest_text(options.p2p));
  if (options.stages < 1)
    throw UserError("--stages: expected an integer >= 1, found " + std::to_string(options.stages));
  if (options.virtual_stages < 1)
    throw UserError("--virtual-stages: expected an integer >= 1, found " +
                    std::to_string(options.virtual_stages));
  if (options.tensor < 1)
    throw UserError("--tensor: expected an integer >= 1, found " + std::to_string(options.tensor));
  if (options.chunk_size < 0)
    throw UserError("--chunk-size: expected an integer >= 1, found " + std::to_string(options.chunk_size));
  if (options.lengths.empty()) throw UserError("--lengths: expected at least one length, found none");
}

// Before anything is made: micro-batches, the schedule, its times, and what prints them.
void check_schedule_memory(const ScheduleOptions& options) {
  constexpr double kGrowth = 1.5;    // a growing vector's capacity over its size
  constexpr double kOpTree = 700;    // of an op in JSON, with its text
  constexpr double kCellBytes = 24;  // of a column of the drawing, with its colour
  const auto chunk = static_cast<double>(options.chunk_size);
  double micro_batches = 0;
  for (const std::int64_t length : options.lengths)
    micro_batches += chunk > 0 ? std::ceil(static_cast<double>(length) / chunk) : 1;
  const bool splits = options.schedule == "zb-h1" || options.schedule == "dualpipe";
  const double stages = options.stages, passes = options.chunk_size > 0 ? 4 : splits ? 3 : 2;
  const double slots = micro_batches * stages * options.virtual_stages;
  const double ops = passes * slots;
  constexpr double kMade = sizeof(MicroBatch) + 2 * sizeof(Slice) + 2 * sizeof(double);
  double bytes = kGrowth * kMade * micro_batches +
                 kGrowth * (sizeof(ScheduleOp) + sizeof(TimedOp) + sizeof(double)) * ops +
                 3 * sizeof(double) * slots + 200 * stages;
  if (options.format == Format::json) bytes += kOpTree * ops;
  if (options.format == Format::table) bytes += kCellBytes * stages * options.columns;
  require_memory(
      "schedule: " + shortest_text(stages) + " stages of " + shortest_text(micro_batches) + " micro-batches",
      bytes, options.memory, "fewer --stages or a larger --chunk-size");
}

void note_idle_options(const ScheduleOptions& options, const ScheduleInput& input, std::ostream& notes) {
  const auto note = [&](std::string_view option, const std::string& acts_when) {
    notes << "note: " << text_of(no_effect(option, acts_when)) << '\n';
  };
  const bool groups = options.schedule == "state-aware-1f1b" &&
                      std::ranges::any_of(input.group_sizes, [](int n) { return n > 1; });
  if (options.keep > 1 && !groups) note("--keep", "with a group of dependent chunks");
  if (options.strict_keep && !groups)
    note("--strict-keep", "with a group of dependent chunks");
  else if (options.strict_keep && options.stages == 1)
    note("--strict-keep", "with several stages: one never holds more than K chunks");
  if (options.pairs && !schedule_policy(options.schedule).pairs)
    note("--pairs", "with a schedule that issues pairs, which " + options.schedule + " does not");
  if (!options.profile.empty() && (options.p2p > 0 || options.backward_ratio != 2))
    note(options.p2p > 0 ? "--p2p" : "--backward-ratio", "without --profile, which says it");
  else if (options.p2p > 0 && options.stages == 1)
    note("--p2p", "with several stages");
}

}  // namespace

void schedule_command(const ScheduleOptions& options, std::ostream& out, std::ostream& notes) {
  check_schedule_options(options);
  check_schedule_memory(options);
  const MicroBatches batches = options.chunk_size > 0 ? chunked(options) : standalone(options.lengths);
  const std::vector<std::int32_t> group_sizes = group_sizes_of(batches);
  const ScheduleInput input{options.stages, options.virtual_stages, group_sizes,
                            options.keep,   options.strict_keep,    options.pairs};
  const Schedule schedule = schedule_policy(options.schedule).make(input);
  if (const std::vector<std::string> problems = schedule_problems(input, schedule); !problems.empty())
    throw std::logic_error("schedule " + options.schedule + ": " + problems.front());
  note_idle_options(options, input, notes);
  const TimedSchedule timed = options.profile.empty() ? run_schedule(schedule, batches, options)
                                                      : time_by_profile(options, schedule, batches);
  switch (options.format) {
    case Format::table:
      return print_schedule_table(schedule, timed, options, out);
    case Format::json:
      return print_schedule_json(timed, out);
    case Format::csv:
      return print_schedule_csv(timed, out);
  }
}

}  // namespace equipoise
