// Sizes that follow from memory and that nobody types: WLB-LLM's L_max, Skrull's BucketSize, HBP's and
// InfiniPipe's checkpointed layers.
//
// Each asks the peak of a schedule in which every micro-batch is equally large, op by op as for a real step
// (MemoryModel::lane_peak). So what a schedule keeps in flight, interleaved ones included, is the schedule's
// own and no formula's: a window that fits as every micro-batch of a plan is never above L_max. Memory is
// that without the headroom (MemoryModel::room_bytes). The peak
// grows with the tokens, so a size is found by bisection: O(log(limit) ops of the schedule).
#pragma once

#include <cstdint>
#include <span>

#include "sim/memory/memory_model.h"
#include "sim/schedule/schedule.h"

namespace equipoise {

// The schedule of a lane of `micro_batches` standalone micro-batches, as many more as the schedule asks for
// where it takes whole rounds only; fewer where more would keep no more in flight.
// `pairs`: as in ScheduleInput.
Schedule lane_schedule(const SchedulePolicy& policy, const Layout& layout, std::int64_t micro_batches,
                       bool pairs = false);

// Tokens of a micro-batch on the fullest of `context` ranks: two chunks per rank, the last ones padded.
std::int64_t tokens_of_rank(std::int64_t tokens, int context);

// WLB-LLM's L_max: most tokens, at most `limit`, of micro-batches on `context` ranks. 0 if nothing fits.
std::int64_t largest_micro_batch(const MemoryModel& memory, const Schedule& schedule, int context,
                                 std::int64_t limit);

// Skrull's BucketSize: the most tokens of a micro-batch that one of `context` ranks can hold.
std::int64_t largest_bucket(const MemoryModel& memory, const Schedule& schedule, int context);

// HBP Algorithm 4: fewest layers to checkpoint so that a step fits, from two probes: free memory m1 with
// c_min checkpointed layers, m2 with c_max. Any unit of memory; negative = over. Clipped to [0, layers].
int layers_between_probes(int c_min, double m1, int c_max, double m2, int layers);

// The same by the memory model: layers of the model to checkpoint so that micro-batches of `rank_tokens`
// tokens per rank fit; -1 if none suffices. From what the two probes say it goes to fewer or more layers
// where stages get their next layer early or late.
int layers_to_checkpoint(const MemoryModel& memory, const Schedule& schedule, std::int64_t rank_tokens,
                         int context);

// InfiniPipe's checkpointing by stage and slice (arXiv 2509.21275, section III-C3): layers that each
// micro-batch of a lane recomputes on each virtual stage (MicroBatch::recompute_by_stage), so that every
// stage fits and the least is recomputed. All layers where not even they suffice.
//
// A backward that recomputes is late, and other stages wait for it, unless theirs are late with it. So the
// k-th backward of stage s has the number C[k + P-1-s] (Eq. 15): the backwards that run at one time
// recompute together, and C is all that is chosen. Of a stage that does not fit, at the op that holds the
// most, the micro-batch in flight with the most tokens on a rank recomputes more: slices of equal work free
// the more the more tokens they hold, at one price. Then each C, those that free least first, becomes the
// least that fits. The paper solves an integer program for a C of the least sum; this is O(ops) a change of
// C.
void checkpoint_by_stage(const MemoryModel& memory, const Schedule& schedule,
                         std::span<const std::int64_t> rank_tokens, int context,
                         std::span<MicroBatch> micro_batches);

}  // namespace equipoise
