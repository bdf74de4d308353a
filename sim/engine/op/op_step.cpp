#include "sim/engine/op/op_step.h"

#include <algorithm>
#include <utility>

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
  contended_.reset();
  result_ = equipoise::run(program_, op_options_);
  if (op_.fabric != nullptr)
    contended_.emplace(program_, op_options_, result_, costs_.placement(), *op_.fabric);
  take_times(step, out);
  if (contended_) take_contention(out);
  sum_lanes(out, costs_.layout());
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
  const OpResult::Lane& lane = result().lanes[at(peak.lane)];
  const std::size_t ranks = at(program_.lanes[at(peak.lane)].context) * at(program_.tensor);
  const auto first = (cell - cells.begin()) * static_cast<std::ptrdiff_t>(ranks);
  const auto last = first + static_cast<std::ptrdiff_t>(ranks);
  const auto& start = lane.start[at(peak.stage)];
  const auto& end = lane.end[at(peak.stage)];
  out.peak_start = *std::min_element(start.begin() + first, start.begin() + last);
  out.peak_end = *std::max_element(end.begin() + first, end.begin() + last);
}

// Communication that takes longer is still work of its ops, exposed where nothing hides it.
void OpStepSimulator::take_contention(StepResult& out) const {
  const ExposedTime& added = contended_->added();
  const double gpus = static_cast<double>(costs_.layout().gpus());
  for (std::size_t s = 0; s < kStreams; ++s)
    out.exposed_seconds[s] += static_cast<double>(added.by_stream[s]) * kSecondsPerPicosecond / gpus;
  std::size_t ran = 0;
  for (std::size_t l = 0; l < program_.lanes.size() && ran < out.lanes.size(); ++l) {
    if (lane_is_empty_[l] != 0) continue;
    const Picoseconds ranks = Picoseconds{program_.lanes[l].context} * program_.tensor;
    out.lanes[ran].useful += added.in_ops[l] / ranks;
    out.lanes[ran++].recompute += added.in_recompute[l] / ranks;
    const double of_recompute = static_cast<double>(added.in_recompute[l]) * kSecondsPerPicosecond / gpus;
    out.recompute_seconds += of_recompute;
    out.recompute_exposed_seconds += of_recompute;
  }
}

void OpStepSimulator::take_times(const Step& step, StepResult& out) {
  const Picoseconds gradient_wait = out.gradient_wait;
  const OpResult& run = result();
  out.step = run.makespan;
  out.pipeline = run.pipeline_end;
  out.gradient_wait = std::max<Picoseconds>(0, out.step - out.pipeline - out.optimizer);
  // What the stage engine found inside the pipeline (ZeRO-3), and what follows it.
  out.exposed_seconds[static_cast<std::size_t>(Stream::dp)] +=
      static_cast<double>(out.gradient_wait - gradient_wait) * kSecondsPerPicosecond;
  out.ops.clear();
  gpu_compute_.begin_step(step, costs_.layout(), program_.tensor);
  lane_is_empty_.assign(step.lanes.size(), 0);
  std::size_t ran = 0;  // among the lanes that have micro-batches
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const OpResult::Lane& lane = run.lanes[l];
    const std::size_t ranks = at(program_.lanes[l].context) * at(program_.tensor);
    lane_is_empty_[l] = step.lanes[l].micro_batches.empty();
    if (lane_is_empty_[l] != 0) continue;
    Picoseconds begin = run.makespan, end = 0;
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
    // Useful time is the stage engine's: what the ops take without waiting for each other.
    if (ran < out.lanes.size()) out.lanes[ran].makespan = end - begin;
    ++ran;
  }
  out.compute = gpu_compute_.spread();
  spread_attention(out);
  if (options_.record_gpus) out.gpu_compute = gpu_compute_.seconds();
}

// The stage engine's attention times, slower on slow GPUs; jitter is left out.
void OpStepSimulator::spread_attention(StepResult& out) const {
  if (op_.speed.empty()) return;
  const std::vector<double>& folded = stage_.gpu_attention().seconds();
  const std::size_t tensor = op_.speed.size() / folded.size();
  out.attention = {0, 0, folded.front() / op_.speed.front()};
  for (std::size_t gpu = 0; gpu < op_.speed.size(); ++gpu) {
    const double seconds = folded[gpu / tensor] / op_.speed[gpu];
    out.attention.max = std::max(out.attention.max, seconds);
    out.attention.min = std::min(out.attention.min, seconds);
    out.attention.mean += seconds / static_cast<double>(op_.speed.size());
  }
}

}  // namespace equipoise
