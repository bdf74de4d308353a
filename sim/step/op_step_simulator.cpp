#include "sim/step/op_step_simulator.h"

#include <algorithm>
#include <utility>

#include "policies/base/index.h"

namespace equipoise {

constexpr double kSecondsPerPicosecond = 1e-12;

// Under contention, jitter and slow GPUs apply to each TP rank.
static bool folds_tp(const OpStepOptions& op) {
  return op.fold_tp && (op.fabric == nullptr || (op.jitter.sigma == 0 && op.speed.empty()));
}

OpStepSimulator::OpStepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                                 OpStepOptions op, const MemoryModel* memory)
    : costs_(costs),
      shard_(shard),
      options_(options),
      op_(std::move(op)),
      stage_(costs, shard, options, memory),
      expander_(costs, shard, options, folds_tp(op_)) {
  op_options_.speed = op_.speed;
  op_options_.jitter = op_.jitter;
  op_options_.threads = op_.threads;
}

StepResult OpStepSimulator::run(const Step& step, std::int64_t number) {
  // The stage engine's costs also serve here, lane by lane.
  expander_.begin(step, program_);
  StepResult stage = stage_.run(step, [&](const CostedLane& lane) { expander_.add_lane(lane, program_); });
  expander_.finish(program_);
  op_options_.jitter.seed = op_.jitter.seed + static_cast<std::uint64_t>(number);
  contended_.reset();
  result_ = equipoise::run(program_, op_options_, std::move(result_));
  if (op_.fabric != nullptr) run_with_contention(step);
  StepTimes times = make_times(step, stage.times, stage.work.peak);
  return {std::move(stage.work), std::move(times)};
}

void OpStepSimulator::run_with_contention(const Step& step) {
  std::optional<NetworkRoutes> routes;
  routes.emplace(program_, costs_.grid(), *op_.fabric);
  if (!routes->alike()) {
    if (!unfolded_) unfolded_.emplace(costs_, shard_, options_, false);
    program_ = unfolded_->expand(step);
    result_ = equipoise::run(program_, op_options_, std::move(result_));
    routes.emplace(program_, costs_.grid(), *op_.fabric);
  }
  ContendedOptions how;
  how.threads = op_.threads;
  how.share = false;
  const ExposedTime alone = run_contended(program_, op_options_, result_, *routes, how).exposed;
  how.share = true;
  how.progress = op_.progress;
  contended_ = run_contended(program_, op_options_, result_, *routes, how);
  added_ = contended_->exposed;
  const Picoseconds width = routes->width();
  for (std::size_t s = 0; s < kStreams; ++s)
    added_.by_stream[s] = width * (added_.by_stream[s] - alone.by_stream[s]);
  for (std::size_t l = 0; l < added_.in_ops.size(); ++l) {
    added_.in_ops[l] = width * (added_.in_ops[l] - alone.in_ops[l]);
    added_.in_recompute[l] = width * (added_.in_recompute[l] - alone.in_recompute[l]);
  }
}

StepTimes OpStepSimulator::make_times(const Step& step, const StepTimes& stage, const MemoryPeak& peak) {
  const OpResult& run = result();
  constexpr auto kDp = at(Stream::dp);
  StepTimes times;
  times.makespan = run.makespan;
  times.pipeline = run.pipeline_end;
  times.optimizer = stage.optimizer;
  times.gradient_wait = std::max<Picoseconds>(0, times.makespan - times.pipeline - times.optimizer);
  times.lanes = lanes_of(step, stage.lanes);
  times.forward_latency = stage.forward_latency;
  account_gpus(step);
  times.compute = gpu_compute_.spread();
  times.attention = attention_spread(stage.attention);
  times.cp_imbalance = stage.cp_imbalance;
  times.recompute_seconds = stage.recompute_seconds;
  times.recompute_exposed_seconds = stage.recompute_exposed_seconds;
  times.exposed_seconds = stage.exposed_seconds;
  // ZeRO-3's exposed time inside the pipeline is the stage engine's; the ops say what follows it.
  times.exposed_seconds[kDp] +=
      static_cast<double>(times.gradient_wait - stage.gradient_wait) * kSecondsPerPicosecond;
  if (contended_) add_contention(step, times);
  times.losses = lane_losses(times.lanes, times.pipeline, costs_.layout());
  times.peak_op = time_of_peak(peak);
  if (options_.record_gpus) times.gpu_compute = gpu_compute_.seconds();
  if (options_.record_ops) times.ops = stage_ops(step);
  return times;
}

// The time from the first rank's begin to the last rank's end.
TimeSpan OpStepSimulator::span_of(std::size_t lane, int stage, std::size_t scheduled) const {
  const std::size_t ranks = at(program_.lanes[lane].context) * at(program_.tensor);
  const auto first = static_cast<std::ptrdiff_t>(scheduled * ranks);
  const auto last = first + static_cast<std::ptrdiff_t>(ranks);
  const auto& start = result().lanes[lane].start[at(stage)];
  const auto& end = result().lanes[lane].end[at(stage)];
  return {*std::min_element(start.begin() + first, start.begin() + last),
          *std::max_element(end.begin() + first, end.begin() + last)};
}

// Useful time and recompute are the stage engine's: what ops take without waiting for each other. Contention
// adds to them, since communication that takes longer is still work of its ops.
std::vector<LaneResult> OpStepSimulator::lanes_of(const Step& step,
                                                  const std::vector<LaneResult>& stage) const {
  std::vector<LaneResult> lanes;
  for (std::size_t l = 0; l < step.lanes.size() && lanes.size() < stage.size(); ++l) {
    if (step.lanes[l].micro_batches.empty()) continue;
    TimeSpan all{result().makespan, 0};
    for (int s = 0; s < program_.stages; ++s)
      for (std::size_t c = 0; c < program_.lanes[l].stages[at(s)].size(); ++c) {
        const TimeSpan op = span_of(l, s, c);
        all = {std::min(all.start, op.start), std::max(all.end, op.end)};
      }
    LaneResult lane = stage[lanes.size()];
    lane.makespan = all.end - all.start;
    if (contended_) {
      const Picoseconds ranks = Picoseconds{program_.lanes[l].context} * costs_.layout().tensor;
      lane.useful += added_.in_ops[l] / ranks;
      lane.recompute += added_.in_recompute[l] / ranks;
    }
    lanes.push_back(lane);
  }
  return lanes;
}

// Adds the communication that contention exposes: in all ops, and in those that recompute.
void OpStepSimulator::add_contention(const Step& step, StepTimes& times) const {
  const double gpus = static_cast<double>(costs_.layout().gpus());
  for (std::size_t s = 0; s < kStreams; ++s)
    times.exposed_seconds[s] += static_cast<double>(added_.by_stream[s]) * kSecondsPerPicosecond / gpus;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    if (step.lanes[l].micro_batches.empty()) continue;
    const double of_recompute = static_cast<double>(added_.in_recompute[l]) * kSecondsPerPicosecond / gpus;
    times.recompute_seconds += of_recompute;
    times.recompute_exposed_seconds += of_recompute;
  }
}

// Under contention times are by GPU, whether TP is folded or not.
void OpStepSimulator::account_gpus(const Step& step) {
  const int width = contended_ ? costs_.layout().tensor / program_.tensor : 1;
  gpu_compute_.begin_step(step, costs_.layout(), program_.tensor * width);
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    if (step.lanes[l].micro_batches.empty()) continue;
    const std::vector<std::vector<Picoseconds>>& compute = result().lanes[l].compute;
    for (int s = 0; s < program_.stages; ++s)
      for (std::size_t gpu = 0; gpu < compute[at(s)].size() * at(width); ++gpu)
        gpu_compute_.add(l, s, gpu,
                         static_cast<double>(compute[at(s)][gpu / at(width)]) * kSecondsPerPicosecond);
  }
}

// The ops without the empty micro-batches that keep synchronized lanes in step.
std::vector<StageOp> OpStepSimulator::stage_ops(const Step& step) const {
  std::vector<StageOp> ops;
  for (std::size_t l = 0; l < step.lanes.size(); ++l)
    for (int s = 0; s < program_.stages; ++s) {
      const auto& scheduled_ops = program_.lanes[l].stages[at(s)];
      for (std::size_t c = 0; c < scheduled_ops.size(); ++c) {
        if (at(scheduled_ops[c].op.micro_batch) >= step.lanes[l].micro_batches.size()) continue;
        const TimeSpan span = span_of(l, s, c);
        ops.push_back({static_cast<std::int32_t>(l), s, scheduled_ops[c].op, span.start, span.end});
      }
    }
  return ops;
}

// The stage engine's attention times, longer on slow GPUs. Jitter is not counted.
GpuSpread OpStepSimulator::attention_spread(const GpuSpread& nominal) const {
  if (op_.speed.empty()) return nominal;
  const std::vector<double>& folded = stage_.gpu_attention().seconds();
  const std::size_t tensor = op_.speed.size() / folded.size();
  GpuSpread attention{0, 0, folded.front() / op_.speed.front()};
  for (std::size_t gpu = 0; gpu < op_.speed.size(); ++gpu) {
    const double seconds = folded[gpu / tensor] / op_.speed[gpu];
    attention.max = std::max(attention.max, seconds);
    attention.min = std::min(attention.min, seconds);
    attention.mean += seconds / static_cast<double>(op_.speed.size());
  }
  return attention;
}

// When the op ran that sets the memory peak; nothing if no op does.
std::optional<TimeSpan> OpStepSimulator::time_of_peak(const MemoryPeak& peak) const {
  if (peak.op_index < 0) return std::nullopt;
  const auto& scheduled_ops = program_.lanes[at(peak.lane)].stages[at(peak.stage)];
  const ScheduleOp op{peak.op, peak.micro_batch, peak.virtual_stage};
  const auto same = [&](const ScheduledOp& scheduled) { return same_work(scheduled.op, op); };
  const auto scheduled = std::ranges::find_if(scheduled_ops, same);
  if (scheduled == scheduled_ops.end()) return std::nullopt;
  return span_of(at(peak.lane), peak.stage, at(scheduled - scheduled_ops.begin()));
}

}  // namespace equipoise
