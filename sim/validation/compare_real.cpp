#include "sim/validation/compare_real.h"

#include <algorithm>
#include <map>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/report/verdict.h"
#include "sim/step/op_run.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;

void compare_row(const RealRow& row, const RealResult& result, const InStepTimes* times,
                 Validation& validation) {
  PolicyPairs policy;
  policy.label = row.label;
  validation.beyond_samples[row.label] = beyond_samples_share(row.use);
  validation.notes.insert(validation.notes.end(), row.ready.notes.begin(), row.ready.notes.end());
  std::map<int, std::vector<const TimedStep*>> by_step;
  for (const TimedStep& timed : result.timed) {
    ++policy.runs;
    if (timed.stolen > kMostStolen)
      ++policy.dropped_runs;
    else
      by_step[timed.step].push_back(&timed);
  }
  if (policy.runs > 0 && policy.dropped_runs == policy.runs)
    validation.notes.push_back({"all_runs_dropped", row.label, {{"runs", policy.runs}}});
  const RankGrid& grid = row.ready.models->grid;
  for (const auto& [number, runs] : by_step) {
    const ExecutableStep& step = row.steps[at(number)];
    StepPair pair;
    pair.step = number;
    pair.predicted_seconds = to_seconds(run(step.program).makespan);
    if (times != nullptr) {
      pair.alone_seconds = pair.predicted_seconds;
      pair.predicted_seconds = to_seconds(run(in_step(step.program, *times)).makespan);
    }
    for (const Lane& lane : step.step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches) pair.tokens += micro_batch.tokens();
    const std::size_t first = validation.ops.size();
    for (const TimedStep* timed : runs) {
      pair.measured_seconds.push_back(timed->seconds);
      const StepOps ops(step, grid, timed->ranks);
      std::size_t next = first;
      for (const StepOp& op : ops.all()) {
        if (!op.counts()) continue;
        if (timed == runs.front()) {
          OpPair& made = validation.ops.emplace_back();
          made.op = op.kind();
          made.label = row.label;
          made.step = number;
          made.lane = op.recorded->lane;
          made.stage = op.place.stage;
          made.micro_batch = op.micro_batch;
          made.rank = op.rank;
          made.predicted_seconds = op.simulated_seconds;
          if (times != nullptr) {
            made.alone_seconds = made.predicted_seconds;
            made.predicted_seconds = times->seconds(made.op, made.predicted_seconds);
          }
        }
        validation.ops.at(next++).measured_seconds.push_back(ops.measured_seconds(op));
      }
    }
    policy.steps.push_back(std::move(pair));
  }
  validation.policies.push_back(std::move(policy));
}

}  // namespace

void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  const InStepTimes* times, Validation& validation) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].runs())
      compare_row(rows[i], results[i], times, validation);
    else
      validation.notes.push_back({"was_not_run", rows[i].label, {{"error", printable(rows[i].reason)}}});
}

void keep_kernels(Validation& validation) {
  const auto is_message = [](const OpPair& pair) {
    for (const OpName op : {OpName::tp_all_gather, OpName::tp_reduce_scatter, OpName::cp_all_gather,
                            OpName::cp_reduce_scatter, OpName::cp_ring_step, OpName::cp_all_to_all,
                            OpName::pp_send, OpName::dp_reduce, OpName::dp_all_gather})
      if (pair.op == name_of(op)) return true;
    return false;
  };
  std::erase_if(validation.ops, is_message);
}

namespace {

struct Mean {
  double sum = 0;
  int count = 0;
};

bool is_kernel(const OpStep& step) {
  return step.stream == Stream::compute && step.sync == SyncGroup::none;
}

// The program with measured kernels: each op of a block takes its mean over all layers, stages and TP ranks
// that ran it.
OpProgram with_measured(const execution::ExecutableStep& step, const RankGrid& grid,
                        const std::vector<execution::StepRecord>& ranks) {
  OpProgram program = step.program;
  std::vector<std::vector<std::vector<Mean>>> means(
      program.lanes.size());  // [lane][block][step * context + r]
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (const OpBlock& block : program.lanes[l].blocks) means[l].emplace_back(block.durations.size());
  std::vector<std::vector<Mean>> ends;
  for (const StageEnd& end : program.ends) ends.emplace_back(end.steps.size());

  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const execution::RankPlace place = execution::place_of(grid, static_cast<int>(r));
    for (const execution::RecordedOp& op : ranks[r].ops) {
      const double seconds = 1e-9 * static_cast<double>(op.end_ns - op.begin_ns);
      Mean* mean = nullptr;
      if (op.lane < 0) {
        mean = &ends[at(place.stage)][at(op.step)];
      } else if (op.run >= 0) {
        const OpLane& lane = program.lanes[at(op.lane)];
        const ScheduledOp& scheduled = lane.stages[at(place.stage)][at(op.scheduled)];
        const BlockRun& run = lane.runs[scheduled.first_run + static_cast<std::uint32_t>(op.run)];
        mean =
            &means[at(op.lane)][run.block][at(op.step * lane.context + place.replica - lane.first_replica)];
      }
      if (mean == nullptr) continue;
      mean->sum += seconds;
      ++mean->count;
    }
  }
  const auto put = [](const OpStep& op, const Mean& mean, Picoseconds& duration) {
    if (is_kernel(op) && mean.count > 0) duration = to_picoseconds(mean.sum / mean.count);
  };
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (std::size_t b = 0; b < program.lanes[l].blocks.size(); ++b) {
      OpBlock& block = program.lanes[l].blocks[b];
      const auto context = at(program.lanes[l].context);
      for (std::size_t i = 0; i < block.durations.size(); ++i)
        put(block.steps[i / context], means[l][b][i], block.durations[i]);
    }
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (std::size_t i = 0; i < program.ends[s].steps.size(); ++i)
      put(program.ends[s].steps[i], ends[s][i], program.ends[s].durations[i]);
  return program;
}

}  // namespace

void compose_steps(const RealRow& row, RealResult& result) {
  for (TimedStep& timed : result.timed)
    timed.seconds = to_seconds(
        run(with_measured(row.steps[at(timed.step)], row.ready.models->grid, timed.ranks)).makespan);
}

// Windows below and above the study's, as shares of it, so that the validated window is between them.
constexpr double kWindows[] = {0.875, 1.125};
constexpr std::int64_t kWindowMultiple = 64;

static std::int64_t window_of_share(std::int64_t window, double by) {
  const auto least = static_cast<std::int64_t>(by * static_cast<double>(window));
  return std::max<std::int64_t>(1,
                                least >= kWindowMultiple ? least / kWindowMultiple * kWindowMultiple : least);
}

// Takes documents from the end of the trace, drawn with another seed. Rows with a plan of their own are
// skipped.
static StudyInputs other_documents(Study& study, const Trace& trace) {
  std::erase_if(study.policies, [](const PolicyRun& row) { return row.has_plan_file(); });
  study.batch.seed += 1;
  for (PolicyRun& row : study.policies) row.pack.seed += 1;
  Trace reversed = trace;
  std::reverse(reversed.lengths.begin(), reversed.lengths.end());
  DocumentSet documents = documents_of(study, reversed);
  return {Profile::load(study.cluster.profile), std::move(reversed), std::move(documents), {}};
}

Calibration::Calibration(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
                         const RealRank& rank, CalibrationOptions options)
    : rank_(rank), options_(std::move(options)) {
  if (options_.steps == 0) return;
  for (const double by : kWindows) {
    const std::int64_t tokens = window_of_share(context_window, by);
    try {
      Study study = study_of(tokens);
      use_own_ranks(study);
      study.steps = std::min<std::int64_t>(study.steps, options_.steps + 1);  // one more, since a policy may
                                                                              // carry documents over
      StudyInputs inputs = other_documents(study, trace);
      if (study.policies.empty()) continue;
      auto window = std::make_unique<Window>(Window{tokens, std::move(study), std::move(inputs), {}, {}});
      window->rows =
          real_rows(window->study, window->inputs,
                    {options_.policy, options_.steps, execution::LossNormalizer::token}, rank.floats);
      windows_.push_back(std::move(window));
    } catch (const UserError& e) {
      not_run_.push_back({"no_calibration", "", {{"tokens", tokens}, {"error", printable(e.what())}}});
    }
  }
}

void Calibration::run_round() {
  for (const auto& window : windows_) {
    if (options_.progress)
      options_.progress("calibration: windows of " + std::to_string(window->tokens) + " tokens");
    RealRunOptions run;
    run.check = false;
    run.warm_up = true;
    run.repetitions = 1;
    run.seed = options_.seed;
    std::vector<RealResult> results = run_real(window->study, window->rows, rank_, run);
    if (rank_.floats.rank() != 0) continue;
    if (options_.replay)
      for (std::size_t i = 0; i < results.size(); ++i) compose_steps(window->rows[i], results[i]);
    append_rounds(window->results, std::move(results));
  }
}

InStepTimes Calibration::times() const {
  Validation found;
  for (const auto& window : windows_) compare_real(window->rows, window->results, nullptr, found);
  if (options_.replay) keep_kernels(found);
  return InStepTimes(found.ops);
}

Notes Calibration::notes() const {
  Notes notes = not_run_;
  const auto tokens = [](const auto& window) { return std::to_string(window->tokens); };
  const std::string windows = all_joined(windows_, " and ", tokens);
  if (!windows.empty()) notes.push_back({"calibrated_in", "", {{"windows", windows}}});
  return notes;
}

}  // namespace equipoise
