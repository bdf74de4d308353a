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
#include <algorithm>
#include <string>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/schedule/generators.h"

namespace equipoise {
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
    ops.reserve(2 * static_cast<std::size_t>(total));
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

}  // namespace equipoise
