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
#include <algorithm>

#include "policies/base/index.h"
#include "sim/schedule/generators.h"

namespace equipoise {

void make_1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "1f1b", {}, out);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(2 * static_cast<std::size_t>(count));
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

}  // namespace equipoise
