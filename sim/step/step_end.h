// The end of a step: groups of lanes that wait for each other, gradient reduction over DP x CP, the
// optimizer, parameter gathering.
//
// Every resolution ends a step by the same three functions. LastArrival says when the last of several ranks
// is there and which rank that is. BarrierGroups lets the lanes of a group begin when those of the group
// before have ended. run_stage_end runs a stage's buckets and what follows them: a bucket is one layer's
// gradients (or the embedding's, the head's), which all replicas' ranks reduce together. It starts when the
// last of them has those gradients and the bucket before it is through, so that most buckets hide under the
// backward of earlier layers. After the last bucket and the last rank's backward come the optimizer and the
// gather of the parameters that it has updated.
//
// Example: buckets of 3 and 2 s, full at 10 and 11 s, the last backward ends at 11 s, an optimizer of 1 s.
// The buckets run from 10 to 13 and from 13 to 15, the optimizer from 15 to 16.
//
// Micro-batches add to their rank's gradients, which are reduced once a step, under the last backward of
// their layer. Where a rank keeps a shard of the sum and nothing else between micro-batches (ZeRO-3; ZeRO-2
// as DeepSpeed runs it, Layout::reduce_each_micro_batch), they are reduced with every backward instead: each
// layer's under the layers before it, the rest before the stage's next op. The last backward of a step has no
// next op: with ZeRO-2 its reductions hold up only the optimizer, like ZeRO-1's.
//
// With FrameworkOptions::overlap_grad_reduce off, ZeRO-0 and 1 reduce nothing under the backward: their
// buckets take no time, and the steps at the end begin with a reduction of all that a rank holds. So does
// ZeRO-1 with scatter_gradients off, by an all-reduce.
//
// In a bidirectional pipeline each layer has a copy on the opposite rank, which half of the micro-batches
// went through. Both are reduced over their own stage's replicas as any other; then the two ranks add up what
// each of them holds of the sums (ZeRO-1: a shard, of which each keeps half; ZeRO-0: all), and update that.
// Both hold the same layers and take equally long, so that a stage need not be told when the other begins:
// the later of the two ends the step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"
#include "sim/step/op_run.h"
#include "sim/step/part_order.h"

namespace equipoise {

inline constexpr Picoseconds kUnknown = -1;  // a time that a network still decides

// Waits on `clock` until `end`; how long that took.
inline Picoseconds wait_until(Picoseconds& clock, Picoseconds end) {
  const Picoseconds waited = std::max<Picoseconds>(0, end - clock);
  clock += waited;
  return waited;
}

// Calls run(stage) for every stage until none of them gets on: down for forwards and up for backwards.
template <class RunReady>
void sweep_stages(std::size_t stages, const RunReady& run_ready) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s) moved |= run_ready(s);
    for (std::size_t s = stages; s-- > 0;) moved |= run_ready(s);
  }
}

// Lanes of a barrier group use the GPUs of the group before. Groups that no lane is in are no barrier.
class BarrierGroups {
 public:
  // `running`: of each group, rising by group, how many ranks it has, or how many lanes.
  explicit BarrierGroups(std::vector<std::uint32_t> running)
      : running_(std::move(running)), end_(running_.size(), 0), begin_(running_.size(), kUnknown) {
    if (!begin_.empty()) begin_.front() = 0;
  }
  [[nodiscard]] std::size_t size() const { return begin_.size(); }
  // kUnknown until the group before has ended.
  [[nodiscard]] Picoseconds begin_of(std::size_t group) const { return begin_[group]; }
  // `many` of the group have ended, the last of them at `when`. Whether the next group begins now.
  bool leave(std::size_t group, Picoseconds when, std::uint32_t many = 1) {
    end_[group] = std::max(end_[group], when);
    running_[group] -= many;
    if (running_[group] > 0 || group + 1 == begin_.size()) return false;
    begin_[group + 1] = std::max(begin_[group], end_[group]);
    return true;
  }

 private:
  std::vector<std::uint32_t> running_;
  std::vector<Picoseconds> end_, begin_;
};

// Runs lanes group by group: run(group, begin) says when the last of a group's lanes ends. Lanes are those of
// a plan or of a program.
template <class Lanes, class Run>
Picoseconds run_barrier_groups(const Lanes& lanes, const Run& run) {
  std::vector<int> groups;
  for (const auto& lane : lanes) groups.push_back(lane.barrier_group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  BarrierGroups barriers(std::vector<std::uint32_t>(groups.size(), 1));
  Picoseconds end = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    end = std::max(barriers.begin_of(g), run(groups[g], barriers.begin_of(g)));
    barriers.leave(g, end);
  }
  return end;
}

// How far the end of a step has come on one stage, for the ranks of one TP coordinate.
struct StageEndRun {
  std::vector<std::uint32_t> order;    // of the buckets: as they are full, ties to the lower index
  std::vector<std::uint32_t> missing;  // by bucket: ranks that have not filled it
  std::uint32_t running_ranks = 0;     // that have not ended their last op
  Picoseconds done = 0;                // the last of the others has
  std::size_t next_bucket = 0, next_step = 0;
  Picoseconds begins = kUnknown;  // the steps begin: buckets and backward are done
  Picoseconds busy = 0;           // the bucket or step before ends
  bool running = false;           // a bucket or step whose end the network decides

  // All ranks have filled their buckets and ended.
  void begin(std::span<const OpResult::Bucket> buckets) {
    order.resize(buckets.size());
    for (std::uint32_t k = 0; k < order.size(); ++k) order[k] = k;
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return buckets[i].filled; });
    missing.assign(buckets.size(), 0);
    running_ranks = 0;
    done = busy = 0;
    next_bucket = next_step = 0;
    begins = kUnknown;
    running = false;
  }
};

// Starts what can start, and all that this lets start. launch.bucket(number, start) and launch.step(number,
// start) say when a bucket or step that starts then will have ended, or kUnknown; finish_bucket or
// finish_step tells later.
template <class Launch>
void run_stage_end(const StageEnd& end, StageEndRun& run, std::span<OpResult::Bucket> buckets,
                   const Launch& launch) {
  for (; !run.running && run.next_bucket < run.order.size(); ++run.next_bucket) {
    const std::size_t k = run.order[run.next_bucket];
    if (run.missing[k] > 0) return;
    buckets[k].start = std::max(run.busy, buckets[k].filled);
    buckets[k].end = launch.bucket(k, buckets[k].start);
    run.running = buckets[k].end == kUnknown;
    if (run.running) return;
    run.busy = buckets[k].end;
  }
  if (run.running || run.running_ranks > 0) return;
  if (run.begins == kUnknown) run.begins = run.busy = std::max(run.busy, run.done);
  for (; run.next_step < end.steps.size(); ++run.next_step) {
    const Picoseconds ended = launch.step(run.next_step, run.busy);
    run.running = ended == kUnknown;
    if (run.running) return;
    run.busy = ended;
  }
}

// Without a network that decides: durations are those of the program. A bucket that no rank fills has nothing
// to reduce.
struct StageEndAlone {
  const StageEnd& end;
  std::span<const OpResult::Bucket> buckets;
  [[nodiscard]] Picoseconds bucket(std::size_t k, Picoseconds start) const {
    return start + (buckets[k].last_lane < 0 ? 0 : end.buckets[k]);
  }
  [[nodiscard]] Picoseconds step(std::size_t i, Picoseconds start) const { return start + end.durations[i]; }
};

// What the end of a step costs on every stage, and when it ends at layer resolution.
class GradientSync {
 public:
  explicit GradientSync(const LayerCosts& costs);

  void begin_step();
  // Notes when a lane's gradients are ready (LaneEngine::grad_ready).
  void add_lane(const std::vector<std::vector<Picoseconds>>& ready);

  struct End {
    Picoseconds step = 0;       // all stages have optimized and gathered
    Picoseconds optimizer = 0;  // slowest stage
    RangeUse use;
  };
  // `pipeline_end`: the last backward of any lane. With ZeRO-3 only the optimizer is left: gradients were
  // reduced and parameters are gathered with every micro-batch.
  End finish(Picoseconds pipeline_end);

  // Gathering the parameters of a part, and reducing its gradients.
  [[nodiscard]] const Op& gather_of(ModelPart part) const { return gather_[at(part)]; }
  [[nodiscard]] const Op& reduce_of(ModelPart part) const { return reduce_[at(part)]; }
  // Whether lanes reduce gradients with every micro-batch; whether they gather parameters with every one.
  [[nodiscard]] bool reduces_each_micro_batch() const {
    return equipoise::reduces_each_micro_batch(costs_.layout());
  }
  [[nodiscard]] bool shards_parameters() const { return gathers_each_micro_batch(costs_.layout()); }
  // Whether the last backward of a virtual stage fills buckets. With ZeRO-2 only that of a stage's first
  // model chunk does, which is the stage's last op.
  [[nodiscard]] bool fills_buckets(int virtual_stage) const {
    if (!reduces_each_micro_batch()) return costs_.layout().zero < 3;
    return !shards_parameters() && virtual_stage < costs_.layout().pipeline;
  }

  // What the end of a step costs on one stage.
  struct StageCosts {
    std::vector<std::vector<Picoseconds>> buckets;  // by local virtual stage, in backward order
    std::vector<std::vector<double>> bucket_bytes;  // of their reductions
    Picoseconds reduce = 0;                         // of all of them at the end
    double reduce_bytes = 0;
    Picoseconds copies = 0;  // what both copies of its layers have to tell each other
    Picoseconds optimizer = 0;
    Picoseconds gather = 0;
    double gather_bytes = 0;
  };
  [[nodiscard]] const std::vector<StageCosts>& stages() const { return stages_; }
  // The same as a program's ends. What is sharded was reduced with every micro-batch; ZeRO-3 gathers
  // parameters with the next.
  [[nodiscard]] const std::vector<StageEnd>& ends() const { return ends_; }
  // The place of a virtual stage's first bucket among those of its pipeline stage.
  [[nodiscard]] std::size_t first_bucket(int virtual_stage) const { return first_bucket_[at(virtual_stage)]; }
  [[nodiscard]] bool has_replicas() const { return replicas_ > 1; }

 private:
  // Parameters that a rank holds of something: those that all data x context ranks have alike, and those of
  // its routed experts, which only the ranks of equal expert coordinate have.
  struct Held {
    double dense = 0;
    double experts = 0;
  };
  [[nodiscard]] static Held held_by_rank(const PartParameters& size, const Layout& layout);
  [[nodiscard]] bool reduces_at_end() const {
    const bool whole = costs_.layout().zero == 1 && !scatters();
    return costs_.layout().zero < 2 && (whole || !costs_.framework().overlap_grad_reduce);
  }
  // Whether a rank gets its shard of the sums only.
  [[nodiscard]] bool scatters() const {
    return costs_.layout().zero >= 2 || (costs_.layout().zero == 1 && costs_.framework().scatter_gradients);
  }
  void price_parts(const PartSizes& sizes, const PartSizes& trained);
  void make_ends();
  // The same between the two ranks that hold copies; `stage`: of either.
  Picoseconds between_copies(Collective kind, double bytes, int stage);
  Op reduce(const Held& held);
  Op gather(const Held& held, bool in_fp8 = false);
  // One over each of the two groups, one after the other.
  Op collective(OpName name, Collective kind, const Held& held, double bytes_each);

  const LayerCosts& costs_;
  int replicas_;
  std::vector<StageCosts> stages_;                      // by pipeline stage
  std::vector<StageEnd> ends_;                          // the same
  std::vector<std::size_t> first_bucket_;               // by virtual stage
  std::vector<std::vector<OpResult::Bucket>> buckets_;  // by pipeline stage, of the step that runs
  StageEndRun run_;
  std::array<Op, kModelParts> gather_{}, reduce_{};  // by part; where parameters, gradients are sharded
  RangeUse use_;
};

}  // namespace equipoise
