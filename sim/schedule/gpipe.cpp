// GPipe (Huang et al., arXiv 1811.06965, Fig. 2c): every stage runs all forwards, then all backwards.
//
// The backwards run in reverse order, as in the paper's figure: the last stage turns around on the
// micro-batch that it has just finished. So groups of dependent chunks run unchanged: forwards ascending,
// backwards descending, everything kept. With equal micro-batches T = (m + P - 1)(f + b); the price is
// memory: all m activations at once. O(P m).
#include "sim/schedule/generators.h"

namespace equipoise {

void make_gpipe(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "gpipe", {.groups = true}, out);
  for (std::size_t s = 0; s < out.ops.size(); ++s) {
    std::vector<ScheduleOp>& ops = out.ops[s];
    ops.reserve(2 * static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) ops.push_back({OpKind::F, i, 0});
    for (int i = count; i-- > 0;) ops.push_back({OpKind::B, i, 0});
    out.kept_bound[s] = count;
  }
}

}  // namespace equipoise
