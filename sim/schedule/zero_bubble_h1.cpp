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
#include <algorithm>

#include "policies/base/index.h"
#include "sim/schedule/generators.h"

namespace equipoise {

void make_zb_h1(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "zb-h1", {}, out);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(3 * static_cast<std::size_t>(count));
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
