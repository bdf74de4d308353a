#include "sim/engine/op/op_step.h"

#include <algorithm>
#include <utility>

#include "sim/engine/op/contention.h"

namespace equipoise {
namespace {

constexpr double kSecondsPerPicosecond = 1e-12;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

OpStepSimulator::OpStepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                                 OpStepOptions op, const MemoryModel* memory)
    : costs_(costs),
      options_(options),
      op_(std::move(op)),
      stage_(costs, shard, options, memory),
      expander_(costs, shard, options, op_.fold_tp && op_.fabric == nullptr) {
  op_options_.speed = op_.speed;
  op_options_.jitter = op_.jitter;
  op_options_.threads = op_.threads;
}

StepResult OpStepSimulator::run(const Step& step, std::int64_t number) {
  StepResult out = stage_.run(step);
  op_options_.jitter.seed = op_.jitter.seed + static_cast<std::uint64_t>(number);
  program_ = expander_.expand(step);
  result_ = equipoise::run(program_, op_options_);
  take_times(step, out);
  if (op_.fabric != nullptr)
    take_contention(out);
  else
    time_peak(out);
  return out;
}

// When the op ran that sets the memory peak.
void OpStepSimulator::time_peak(StepResult& out) const {
  const MemoryPeak& peak = out.peak;
  if (peak.op_index < 0) return;
  const auto& cells = program_.lanes[at(peak.lane)].stages[at(peak.stage)];
  const ScheduleOp op{peak.op, peak.micro_batch, peak.virtual_stage};
  const auto cell = std::find_if(cells.begin(), cells.end(), [&](const OpCell& c) { return c.op == op; });
  if (cell == cells.end()) return;
  const OpResult::Lane& lane = result_.lanes[at(peak.lane)];
  const std::size_t ranks = at(program_.lanes[at(peak.lane)].context) * at(program_.tensor);
  const auto first = (cell - cells.begin()) * static_cast<std::ptrdiff_t>(ranks);
  const auto last = first + static_cast<std::ptrdiff_t>(ranks);
  const auto& start = lane.start[at(peak.stage)];
  const auto& end = lane.end[at(peak.stage)];
  out.peak_start = *std::min_element(start.begin() + first, start.begin() + last);
  out.peak_end = *std::max_element(end.begin() + first, end.begin() + last);
}

void OpStepSimulator::take_contention(StepResult& out) const {
  const LoweredProgram lowered = lower(program_, op_options_, result_);
  const LinkTraffic traffic = traffic_of(lowered, program_, costs_.placement(), *op_.fabric);
  const EngineResult shared = run_with_contention(lowered.graph, traffic);
  out.step = shared.makespan;
  out.pipeline = 0;
  for (TaskId t = 0; t < lowered.origin.size(); ++t)
    if (lowered.origin[t].lane >= 0) out.pipeline = std::max(out.pipeline, shared.end[t]);
  out.gradient_wait = std::max<Picoseconds>(0, out.step - out.pipeline - out.optimizer);
}

void OpStepSimulator::take_times(const Step& step, StepResult& out) {
  const Picoseconds gradient_wait = out.gradient_wait;
  out.step = result_.makespan;
  out.pipeline = result_.pipeline_end;
  out.gradient_wait = std::max<Picoseconds>(0, out.step - out.pipeline - out.optimizer);
  // What the stage engine found inside the pipeline (ZeRO-3), and what follows it.
  out.exposed_seconds[static_cast<std::size_t>(Stream::dp)] +=
      static_cast<double>(out.gradient_wait - gradient_wait) * kSecondsPerPicosecond;
  out.ops.clear();
  gpu_compute_.begin_step(step, costs_.layout(), program_.tensor);
  std::size_t ran = 0;  // among the lanes that have micro-batches
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const OpResult::Lane& lane = result_.lanes[l];
    const std::size_t ranks = at(program_.lanes[l].context) * at(program_.tensor);
    if (step.lanes[l].micro_batches.empty()) continue;
    Picoseconds begin = result_.makespan, end = 0;
    for (int s = 0; s < program_.stages; ++s) {
      for (std::size_t r = 0; r < ranks; ++r)
        gpu_compute_.add(l, s, r, static_cast<double>(lane.compute[at(s)][r]) * kSecondsPerPicosecond);
      const auto& cells = program_.lanes[l].stages[at(s)];
      for (std::size_t c = 0; c < cells.size(); ++c) {
        const auto first = static_cast<std::ptrdiff_t>(c * ranks),
                   last = first + static_cast<std::ptrdiff_t>(ranks);
        const Picoseconds starts =
            *std::min_element(lane.start[at(s)].begin() + first, lane.start[at(s)].begin() + last);
        const Picoseconds ends =
            *std::max_element(lane.end[at(s)].begin() + first, lane.end[at(s)].begin() + last);
        begin = std::min(begin, starts);
        end = std::max(end, ends);
        const bool real = at(cells[c].op.micro_batch) < step.lanes[l].micro_batches.size();
        if (options_.record_ops && real)
          out.ops.push_back({static_cast<std::int32_t>(l), s, cells[c].op, starts, ends});
      }
    }
    if (ran < out.lanes.size()) {
      // Useful time is the stage engine's: what the ops take without waiting for each other.
      const double before = out.lanes[ran].bubble(program_.stages);
      out.lanes[ran].makespan = end - begin;
      out.bubble_ratio +=
          (out.lanes[ran].bubble(program_.stages) - before) / static_cast<double>(out.lanes.size());
    }
    ++ran;
  }
  out.compute_max = gpu_compute_.largest();
  out.compute_mean = gpu_compute_.mean();
  if (options_.record_gpus) out.gpu_compute = gpu_compute_.seconds();
}

}  // namespace equipoise
