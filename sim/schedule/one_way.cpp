// Orders of micro-batches that go through the stages from the first to the last: GPipe, 1F1B, its interleaved
// form, both on slices of sequences, and zero bubble.
#include "sim/schedule/one_way.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"

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

namespace {

void require_whole_rounds(const char* name, int micro_batches, int stages) {
  if (micro_batches % stages == 0) return;
  throw UserError("schedule ", name, ": expected a number of micro-batches that is a multiple of the ",
                  stages, " stages, found ", micro_batches);
}

// Walks one rank's forwards in order without a division per op.
class Round {
 public:
  explicit Round(const ScheduleInput& input) : stages_(input.stages), virtual_stages_(input.virtual_stages) {}

  ScheduleOp next() {
    const ScheduleOp op{OpKind::F, first_ + offset_, chunk_};
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
  int first_ = 0;   // micro-batch that begins the round
  int offset_ = 0;  // place in the round
  int chunk_ = 0;
};

// Walks one rank's backwards if micro-batches are slices: groups ascending, slices of a group descending, in
// the rounds of `Round`.
class SliceBackwards {
 public:
  explicit SliceBackwards(const ScheduleInput& input)
      : sizes_(input.group_sizes),
        stages_(input.stages),
        chunks_(input.virtual_stages),
        chunk_(input.virtual_stages - 1) {
    find_longest();
  }

  ScheduleOp next() {
    const int size = sizes_[here_.group];
    const ScheduleOp op{OpKind::B, here_.first + size - 1 - here_.issued, chunk_};
    if (++here_.issued == size) {
      here_ = {here_.group + 1, here_.first + size, 0};
      if (size == longest_) find_longest();
    }
    if (++offset_ < stages_) return op;
    offset_ = 0;
    chunk_ = (chunk_ > 0 ? chunk_ : chunks_) - 1;
    if (chunk_ + 1 == chunks_)
      round_ = here_;
    else
      here_ = round_;
    return op;
  }

  // Slices of the longest group with backwards left.
  [[nodiscard]] int longest_left() const { return longest_; }

 private:
  struct Place {
    std::size_t group = 0;
    int first = 0;   // micro-batch that begins the group
    int issued = 0;  // number of its backwards issued so far
  };

  void find_longest() {
    const int before = longest_;
    longest_ = 0;
    for (std::size_t g = here_.group; g < sizes_.size() && (before == 0 || longest_ < before); ++g)
      longest_ = std::max(longest_, sizes_[g]);
  }

  std::span<const std::int32_t> sizes_;
  int stages_;
  int chunks_;
  int chunk_;
  int offset_ = 0;  // place in the round
  int longest_ = 0;
  Place here_, round_;
};

int forward_place(const ScheduleOp& op, const ScheduleInput& input) {
  const int round = op.micro_batch / input.stages;
  return (round * input.virtual_stages + op.virtual_stage) * input.stages + op.micro_batch % input.stages;
}

// How many forwards the last rank must be ahead, so that no backward of its own waits for its forward. It is
// the largest distance from a backward's place in its order to its forward's.
int slices_ahead(const ScheduleInput& input, int ops) {
  SliceBackwards backward(input);
  int ahead = 0;
  for (int i = 0; i < ops; ++i) ahead = std::max(ahead, forward_place(backward.next(), input) - i);
  return ahead;
}

// 1F1B and its relatives: warm-up, then one forward and one backward in turn. The warm-up of stage s is P-1-s
// forwards plus those that the last stage must be ahead. `in_step`: it is 2(P-1-s) plus always those of the
// longest group. Then forward i of a stage and i-1 of the next coincide, and backward i and i+1 of the next.
// Interleaved orders and pairs have the same warm-up. Only the last forward of a turn pairs with its
// backward, and none once the forwards have run out.
void take_turns(const ScheduleInput& input, bool in_step, bool pairs, bool never_waits, Schedule& out) {
  const int total = out.micro_batches * input.virtual_stages;
  const int most_ahead = slices_ahead(input, total) + (pairs ? 1 : 0);
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(2 * at(total));
    const int behind = (in_step ? 2 : 1) * (input.stages - 1 - s);
    Round forward(input);
    SliceBackwards backward(input);
    for (int i = 0, issued = 0; i < total; ++i) {
      const int ahead = in_step ? most_ahead : backward.longest_left() - 1;
      const ScheduleOp op = backward.next();
      const std::int64_t needed =
          never_waits ? forward_place(op, input) + 1 : std::int64_t{i} + ahead + behind + 1;
      for (; issued < std::min<std::int64_t>(total, needed); ++issued) ops.push_back(forward.next());
      ops.back().with_next = pairs && issued == needed;
      ops.push_back(op);
    }
    out.kept_bound[at(s)] =
        static_cast<int>(std::min<std::int64_t>(total, std::int64_t{most_ahead} + behind + 1));
  }
}

}  // namespace

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
  begin_schedule(input, "1f1b", {}, out);
  take_turns(input, input.pairs, input.pairs, false, out);
}

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
// is then one forward longer, as in Megatron-LM with overlap_moe_expert_parallel_comm. Otherwise the
// backward of a turn on the last rank would wait for the forward of the same turn.
//
// An activation counted in kept_bound is that of one chunk: 1/V of a rank's layers.
void make_interleaved_1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "interleaved-1f1b", {.virtual_stages = true}, out);
  require_whole_rounds("interleaved-1f1b", count, input.stages);
  take_turns(input, true, input.pairs, false, out);
}

// Seq1F1B (Sun et al., arXiv 2406.03488): 1F1B whose unit is a slice of a sequence. Forwards of a document's
// slices (a group of dependent chunks) run in ascending order, each attending to the K and V of those before.
// Backwards run in descending order, since a slice needs the KV gradients of all later ones. This is the
// paper's partially ordered queue. Nothing is dropped. A standalone micro-batch is a group of one; if all
// are, this is 1F1B (interleaved 1F1B), op for op.
//
// The first backward of k slices is that of the last one, so a stage runs k-1 forwards more as warm-up:
// P-1-s + k-1 on stage s (P - rank + splits - 2 in the authors' code), then one forward and one backward in
// turn. Where documents have different numbers of slices, k is that of the longest one left: when it is
// through, backwards come alone until the stage is only as far ahead as the others need. Longest first, so,
// memory falls as InfiniPipe's rule (arXiv 2509.21275) asks. On one stage no one waits, and no forward is
// ahead.
//
// With equal slices, m documents of k each, T = (k m + P - 1)(f + b), of one slice: a bubble of (P - 1)/(k m
// + P - 1), as if there were k m micro-batches. At most P-1-s + k slices are held.
//
// With V model chunks a rank (Seq1F1B-I; SlimPipe, arXiv 2504.14519) forwards and backwards go in the rounds
// of interleaved 1F1B, and the warm-up is 2(P-1-s) + L: L is how far a forward must be ahead of its backward
// on the last rank. Where k divides P, L = (V-1)P + k-1, which is Seq1F1B-I's rule. Where P divides k, L =
// k V - 1: a document's slices through all chunks. Then k V + 2(P-1-s) are held, each 1/V of a rank's layers:
// little more than one document, as in SlimPipe. T = (k m + (P - 1)/V)(f + b). O(P m V).
void make_seq1f1b(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "seq1f1b", {.virtual_stages = true, .groups = true}, out);
  const bool interleaved = input.virtual_stages > 1;
  if (interleaved) require_whole_rounds("seq1f1b", count, input.stages);
  take_turns(input, interleaved || input.in_step, false, input.stages == 1, out);
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
