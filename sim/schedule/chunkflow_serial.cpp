// ChunkFlow without a pipeline (arXiv 2503.02356, Algorithm 2): the chunks of a group on one stage.
//
// Group of n chunks, K kept: forwards ascending, the first n-K as D (only KV is kept), the last K as F; the
// backwards of the kept ones descending, since a chunk needs the KV gradients of all later ones; then for
// each dropped chunk, descending, R and at once its B. Example, n = 4, K = 2: D1 D2 F3 F4 B4 B3 R2 B2 R1 B1.
// At most min(n, K) activations are held, so strict_keep changes nothing here. O(m).
#include <algorithm>

#include "sim/schedule/generators.h"

namespace equipoise {

void make_chunkflow_serial(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "state-aware-1f1b", {.groups = true}, out);
  std::vector<ScheduleOp>& ops = out.ops.front();
  ops.reserve(3 * static_cast<std::size_t>(count));
  int bound = 0;
  int first = 0;
  for (const int size : input.group_sizes) {
    const int kept = std::min(size, input.keep);
    const int first_kept = first + size - kept;
    for (int i = first; i < first + size; ++i) ops.push_back({i < first_kept ? OpKind::D : OpKind::F, i, 0});
    for (int i = first + size; i-- > first_kept;) ops.push_back({OpKind::B, i, 0});
    for (int i = first_kept; i-- > first;) {
      ops.push_back({OpKind::R, i, 0});
      ops.push_back({OpKind::B, i, 0});
    }
    bound = std::max(bound, kept);
    first += size;
  }
  out.kept_bound.front() = bound;
}

}  // namespace equipoise
