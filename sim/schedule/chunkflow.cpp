// State-aware 1F1B (ChunkFlow, arXiv 2503.02356): 1F1B on groups of dependent chunks.
//
// Every stage issues the forwards of any kind in one common order. Group of n chunks, K = keep: ascending,
// the first n-K as D (activations dropped, KV kept), the last K as F; then R for the dropped chunks in
// descending order, each a full pipeline forward. Backwards: group by group, inside a group descending, as
// chunk i needs the KV gradients of all later chunks.
// Stage s issues P-1-s forwards as warm-up, then one forward and one backward in turn; a backward that is
// not eligible yet on this stage is skipped (its turn is lost), and those left at the end follow. The k-th
// backward of a group is eligible when its own kept forward (F or R) and the k-th R of the group, if there
// is one, have been issued on this stage. `strict_keep` drops the second condition.
//
// No deadlock: let e_j be the position in the common forward order after which backward j is eligible. Stage
// s issues it after forward i_s(j) = max(e_j, i_s(j-1) + 1), starting from i_s = P-1-s; hence i_{s+1}(j) <=
// i_s(j), and the backward a stage waits for never waits for a forward that this stage has not yet sent.
//
// Memory: on the last stage a lost turn happens only inside the newest group, all older backwards done, so
// after a turn it holds at most L = K activations of a group with n > K (K-1 with strict_keep) or n-1 of one
// with n <= K; before the turn's backward one more. Stage s has at most P-1-s further forwards ahead of its
// turns. Hence kept_bound = P-s+L: K+1 on the last stage, K with strict_keep (the paper's promise). The paper
// draws its schedule and states no rule for the turns; this rule is ours and gives the drawn orders.
// All groups of size 1: L = 0 and the order is that of 1F1B, op for op. O(P m).
#include "sim/schedule/chunkflow.h"

#include <algorithm>
#include <span>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {
namespace {

// A group in the list of all groups, and how far one stage has come in it.
struct Cursor {
  std::size_t group = 0;
  int first = 0;   // micro-batch that begins the group
  int issued = 0;  // ops of the group issued so far
};

class Order {
 public:
  explicit Order(const ScheduleInput& input)
      : sizes_(input.group_sizes), keep_(input.keep), strict_(input.strict_keep) {}

  // Appends the next forward of any kind; false if there is none.
  bool forward(std::vector<ScheduleOp>& ops) {
    if (forward_.group == sizes_.size()) return false;
    const int size = sizes_[forward_.group];
    const int dropped = std::max(0, size - keep_);
    const int i = forward_.issued;
    if (i >= size)
      ops.push_back({OpKind::R, forward_.first + dropped - 1 - (i - size), 0});
    else
      ops.push_back({i < dropped ? OpKind::D : OpKind::F, forward_.first + i, 0});
    if (++forward_.issued == size + dropped) forward_ = {forward_.group + 1, forward_.first + size, 0};
    return true;
  }

  // Appends the next backward if it is eligible; false if it is not or there is none.
  bool backward(std::vector<ScheduleOp>& ops) {
    if (backward_.group == sizes_.size()) return false;
    const int size = sizes_[backward_.group];
    const int k = backward_.issued + 1;
    if (forward_.group == backward_.group && forward_.issued < forwards_before(k, size)) return false;
    ops.push_back({OpKind::B, backward_.first + size - k, 0});
    if (++backward_.issued == size) backward_ = {backward_.group + 1, backward_.first + size, 0};
    return true;
  }

 private:
  // How many forwards of a group must be issued before its k-th backward (k from 1).
  [[nodiscard]] int forwards_before(int k, int size) const {
    const int dropped = std::max(0, size - keep_);
    const int recomputes = strict_ ? std::max(0, k - std::min(keep_, size)) : std::min(k, dropped);
    return size + recomputes;
  }

  std::span<const std::int32_t> sizes_;
  int keep_;
  bool strict_;
  Cursor forward_;
  Cursor backward_;
};

// Computes L of the header comment.
int held_after_a_turn(const ScheduleInput& input) {
  int held = 0;
  for (const int size : input.group_sizes) {
    const bool recomputes = size > input.keep;
    held = std::max(held, recomputes && !input.strict_keep ? input.keep : std::min(size, input.keep) - 1);
  }
  return held;
}

}  // namespace

// ChunkFlow without a pipeline (arXiv 2503.02356, Algorithm 2): the chunks of a group on one stage.
//
// Group of n chunks, K kept: forwards ascending, the first n-K as D (only KV is kept), the last K as F; the
// backwards of the kept ones descending, since a chunk needs the KV gradients of all later ones; then for
// each dropped chunk, descending, R and at once its B. Example, n = 4, K = 2: D1 D2 F3 F4 B4 B3 R2 B2 R1 B1.
// At most min(n, K) activations are held, so strict_keep changes nothing here. The paper's prose is followed;
// its printed listing departs from it. O(m).
static void make_chunkflow_serial(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "state-aware-1f1b", {.groups = true}, out);
  std::vector<ScheduleOp>& ops = out.ops.front();
  ops.reserve(3 * at(count));
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

void make_state_aware_1f1b(const ScheduleInput& input, Schedule& out) {
  if (input.stages == 1) return make_chunkflow_serial(input, out);
  const int count = begin_schedule(input, "state-aware-1f1b", {.groups = true}, out);
  const int held = held_after_a_turn(input);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(3 * at(count));
    const int warm_up = input.stages - 1 - s;
    Order order(input);
    for (int i = 0; i < warm_up && order.forward(ops); ++i) {
    }
    while (order.forward(ops)) order.backward(ops);
    while (order.backward(ops)) {
    }
    out.kept_bound[at(s)] = static_cast<int>(std::min<std::int64_t>(count, std::int64_t{warm_up} + 1 + held));
  }
}

}  // namespace equipoise
