// Orders of standalone micro-batches that go through the stages from the first to the last: GPipe, 1F1B, its
// interleaved form and zero bubble.
#include <algorithm>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/schedule/schedule.h"

namespace equipoise {

// GPipe (Huang et al., arXiv 1811.06965, Fig. 2c): every stage runs all forwards, then all backwards.
//
// The backwards run in reverse order, as in the paper's figure: the last stage turns around on the
// micro-batch that it has just finished. So groups of dependent chunks run unchanged: forwards ascending,
// backwards descending, everything kept. With equal micro-batches T = (m + P - 1)(f + b); the price is
// memory: all m activations at once. O(P m).
void make_gpipe(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "gpipe", {.groups = true}, out);
  for (std::size_t s = 0; s < out.ops.size(); ++s) {
    std::vector<ScheduleOp>& ops = out.ops[s];
    ops.reserve(2 * at(count));
    for (int i = 0; i < count; ++i) ops.push_back({OpKind::F, i, 0});
    for (int i = count; i-- > 0;) ops.push_back({OpKind::B, i, 0});
    out.kept_bound[s] = count;
  }
}

// 1F1B (PipeDream-Flush: Narayanan et al., arXiv 2006.09503; the default of arXiv 2104.04473, Fig. 3).
//
// Stage s runs P-1-s forwards as warm-up, then one forward and one backward in turn, then the backwards
// that are left. A stage so holds at most P-s activations, whatever the number of micro-batches. With equal
// micro-batches T = (m + P - 1)(f + b), as for GPipe. O(P m).
//
// In pairs (expert_overlap: dualpipe) the forward and the backward of a turn are issued together, so neither
// may wait for the other, on any stage. With w(s) forwards of warm-up, pair k of stage s is forward k + w(s)
// and backward k. It waits for pair k of stage s+1, which waits for pair k - (w(s) - w(s+1)) of stage s: the
// two stages would take turns unless w(s) - w(s+1) >= 2. The last stage's w is 1, since forward k feeds its
// backward k. So w(s) = 2(P-1-s) + 1: Megatron-LM's interleaved rule at V = 1, with the one more that it runs
// with overlap_moe_expert_parallel_comm. The price: up to 2(P-s) activations. With equal micro-batches and
// pairs that take u, T = P(f + b) + (m - 1)u, which is 1F1B's where u = f + b.
void make_1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "1f1b", {}, out);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(2 * at(count));
    const int behind = input.stages - 1 - s;  // stages
    const int warm_up = std::min(count, input.pairs ? 2 * behind + 1 : behind);
    for (int i = 0; i < warm_up; ++i) ops.push_back({OpKind::F, i, 0});
    for (int i = 0; i < count; ++i) {
      if (warm_up + i < count) ops.push_back({OpKind::F, warm_up + i, 0, input.pairs});
      ops.push_back({OpKind::B, i, 0});
    }
    out.kept_bound[at(s)] = std::min(count, warm_up + 1);
  }
}

namespace {

// Walks one rank's forwards (or backwards) in order without a division per op.
class Round {
 public:
  Round(int stages, int virtual_stages, bool backward)
      : stages_(stages), virtual_stages_(virtual_stages), backward_(backward) {}

  ScheduleOp next() {
    const ScheduleOp op{backward_ ? OpKind::B : OpKind::F, first_ + offset_,
                        backward_ ? virtual_stages_ - 1 - chunk_ : chunk_};
    if (++offset_ == stages_) {
      offset_ = 0;
      if (++chunk_ == virtual_stages_) {
        chunk_ = 0;
        first_ += stages_;
      }
    }
    return op;
  }

 private:
  int stages_;
  int virtual_stages_;
  bool backward_;
  int first_ = 0;   // micro-batch that opens the round
  int offset_ = 0;  // inside the round
  int chunk_ = 0;
};

}  // namespace

// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2), in the order of Megatron-LM.
//
// A rank holds V model chunks (virtual stages): chunk v of rank s is layer block v*P + s, so a micro-batch
// goes around the ranks V times. Micro-batches advance in rounds of P: all P through chunk 0, then all P
// through chunk 1, and so on; backwards likewise from the last chunk down. With k counting the forwards of
// a rank, round = k div PV, chunk = (k mod PV) div P, micro-batch = round * P + k mod P. This is why m must
// be a multiple of P.
// Rank s runs min(mV, 2(P-1-s) + (V-1)P) forwards as warm-up (Megatron-LM's rule of today; older versions
// ran all of them when m = P), then one forward and one backward in turn. With equal micro-batches
// T = (m + (P-1)/V)(f + b), where f and b are those of a whole rank. O(P m V).
//
// In pairs (expert_overlap: dualpipe) the forward and the backward of a turn are issued together. The warm-up
// is then one forward longer, as in Megatron-LM with overlap_moe_expert_parallel_comm: on the last rank the
// forward of a turn would else be what its backward waits for.
//
// An activation counted in kept_bound is that of one chunk: 1/V of a rank's layers.
void make_interleaved_1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "interleaved-1f1b", {.virtual_stages = true}, out);
  const int stages = input.stages;
  const int chunks = input.virtual_stages;
  if (count % stages != 0)
    throw UserError(
        "schedule interleaved-1f1b: expected a number of micro-batches that is a multiple of the " +
        std::to_string(stages) + " stages, found " + std::to_string(count));
  const int total = count * chunks;
  for (int s = 0; s < stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(2 * at(total));
    const std::int64_t lead =
        2 * std::int64_t{stages - 1 - s} + std::int64_t{chunks - 1} * stages + (input.pairs ? 1 : 0);
    const int warm_up = static_cast<int>(std::min<std::int64_t>(total, lead));
    Round forward(stages, chunks, false);
    Round backward(stages, chunks, true);
    for (int k = 0; k < warm_up; ++k) ops.push_back(forward.next());
    for (int k = 0; k < total; ++k) {
      if (warm_up + k < total) {
        ops.push_back(forward.next());
        ops.back().with_next = input.pairs;
      }
      ops.push_back(backward.next());
    }
    out.kept_bound[at(s)] = std::min(total, warm_up + 1);
  }
}

// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1).
//
// A backward is split: B computes the gradient of the input, which the previous stage waits for, and W the
// gradients of the weights, which nobody waits for. Forwards and Bs keep the order of 1F1B; stage s lets
// its Ws lag s micro-batches behind its Bs, and so fills with them the bubbles of the drain. The lag is what
// 1F1B's memory leaves free: stage s holds P-s activations that wait for B and s that wait for W.
//
// With equal micro-batches, m >= P and equal times on all stages,
//   T = m (F + B + W) + (P - 1) max(F, B, F + B - W)
// (the paper prints F + B - W, its case W <= min(F, B)), against (P - 1)(F + B + W) of 1F1B. An activation is
// counted until its W has ended, as W still needs the layer inputs: every stage holds at most P, the peak of
// 1F1B's first stage. (The paper frees a part of it after B, M_B - M_W, which can only lower the peak.) O(P
// m).
void make_zb_h1(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "zb-h1", {}, out);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(3 * at(count));
    const int warm_up = std::min(count, input.stages - 1 - s);
    for (int i = 0; i < warm_up; ++i) ops.push_back({OpKind::F, i, 0});
    for (int i = 0; i < count; ++i) {
      if (warm_up + i < count) ops.push_back({OpKind::F, warm_up + i, 0});
      ops.push_back({OpKind::B, i, 0});
      if (i >= s) ops.push_back({OpKind::W, i - s, 0});
    }
    for (int i = std::max(0, count - s); i < count; ++i) ops.push_back({OpKind::W, i, 0});
    out.kept_bound[at(s)] = std::min(count, input.stages);
  }
}

}  // namespace equipoise
