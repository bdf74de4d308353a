// 1F1B (PipeDream-Flush: Narayanan et al., arXiv 2006.09503; the default of arXiv 2104.04473, Fig. 3).
//
// Stage s runs P-1-s forwards as warm-up, then one forward and one backward in turn, then the backwards
// that are left. A stage so holds at most P-s activations, whatever the number of micro-batches. With equal
// micro-batches T = (m + P - 1)(f + b), as for GPipe. O(P m).
#include <algorithm>

#include "sim/schedule/generators.h"

namespace equipoise {

void make_1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "1f1b", {}, out);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[static_cast<std::size_t>(s)];
    ops.reserve(2 * static_cast<std::size_t>(count));
    const int warm_up = std::min(count, input.stages - 1 - s);
    for (int i = 0; i < warm_up; ++i) ops.push_back({OpKind::F, i, 0});
    for (int i = 0; i < count; ++i) {
      if (warm_up + i < count) ops.push_back({OpKind::F, warm_up + i, 0});
      ops.push_back({OpKind::B, i, 0});
    }
    out.kept_bound[static_cast<std::size_t>(s)] = std::min(count, warm_up + 1);
  }
}

}  // namespace equipoise
