// DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; order of the authors' code,
// github.com/deepseek-ai/DualPipe).
//
// Micro-batches enter at both ends of the pipeline (Schedule::bidirectional), so that a rank always has a
// forward and a backward of different micro-batches to issue together: a pair, in which each hides the
// other's exchanges. Bs of the drain are split as in zero bubble, and their Ws fill it.
//
// With P ranks (even), m micro-batches (even, 2P or more, n = m/2 each way), rank s is r = min(s, P-1-s) from
// its nearer end; h = P/2. "near" are the micro-batches that enter there, "far" the others. Rank s runs
//   1. 2(h-r-1) times  F near
//   2. r+1 times       F near, F far
//   3. h-r-1 times     B far (input half), W, F far
//   4. n-P+r+1 times   F near with B far, F far with B near; the first two apart on the middle ranks
//   5. h-r-1 times     B far, F far with B near
//   6. r+1 times       B far, B near; of these 2(r+1) the last r+1 are input halves
//   7. h-r-1 times     W, B near (input half)
//   8. r+1 times       W
// where each W is that of the oldest input half that has none. Where F, the input half of B and W take
// equally long, as the paper draws them, a rank is idle for
//   (P/2 - 1)(F&B + B - 3W)
// of a step, with B whole and F&B a pair (the executor, which hides nothing, takes F + B for it),
// and a rank keeps P + 1 activations, each of a P-th of the layers; parameters are held twice. O(P m).
#include "sim/schedule/dualpipe.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {
namespace {

// One rank's ops, with the micro-batches of each direction in order.
class Rank {
 public:
  Rank(int near, std::vector<ScheduleOp>& ops) : near_(near), ops_(ops) {}

  enum Side { kNear, kFar };
  void forward(Side side) { ops_.push_back({OpKind::F, next(forwards_, side), direction(side)}); }
  void backward(Side side) {
    ops_.push_back({OpKind::B, next(backwards_, side), direction(side)});
    ops_.back().whole = true;
  }
  void input_half(Side side) {
    backward(side);
    ops_.back().whole = false;
    halves_.push_back(ops_.back());
  }
  void weight() {
    const ScheduleOp& half = halves_[weights_++];
    ops_.push_back({OpKind::W, half.micro_batch, half.virtual_stage});
  }
  void pair(Side forward_side, Side backward_side) {
    forward(forward_side);
    ops_.back().with_next = true;
    backward(backward_side);
  }

 private:
  [[nodiscard]] std::int32_t direction(Side side) const { return side == kNear ? near_ : 1 - near_; }
  std::int32_t next(std::array<std::int32_t, 2>& counts, Side side) const {
    const std::int32_t d = direction(side);
    return 2 * counts[at(d)]++ + d;
  }

  std::int32_t near_;
  std::vector<ScheduleOp>& ops_;
  std::array<std::int32_t, 2> forwards_{}, backwards_{};  // by direction: number issued
  std::vector<ScheduleOp> halves_;                        // input halves
  std::size_t weights_ = 0;                               // Ws issued
};

void issue(int stages, int s, int each_way, std::vector<ScheduleOp>& ops) {
  const int half = stages / 2;
  const int r = std::min(s, stages - 1 - s);
  const int inner = half - r - 1;  // ranks between this one and the middle
  Rank rank(s < half ? 0 : 1, ops);
  for (int i = 0; i < 2 * inner; ++i) rank.forward(Rank::kNear);
  for (int i = 0; i < r + 1; ++i) {
    rank.forward(Rank::kNear);
    rank.forward(Rank::kFar);
  }
  for (int i = 0; i < inner; ++i) {
    rank.input_half(Rank::kFar);
    rank.weight();
    rank.forward(Rank::kFar);
  }
  for (int i = 0; i < each_way - stages + r + 1; ++i) {
    if (i == 0 && inner == 0) {
      rank.forward(Rank::kNear);
      rank.backward(Rank::kFar);
    } else {
      rank.pair(Rank::kNear, Rank::kFar);
    }
    rank.pair(Rank::kFar, Rank::kNear);
  }
  for (int i = 0; i < inner; ++i) {
    rank.backward(Rank::kFar);
    rank.pair(Rank::kFar, Rank::kNear);
  }
  for (int i = 0; i < 2 * (r + 1); ++i) {
    const auto side = i % 2 == 0 ? Rank::kFar : Rank::kNear;
    if (i < r + 1)
      rank.backward(side);
    else
      rank.input_half(side);
  }
  for (int i = 0; i < inner; ++i) {
    rank.weight();
    rank.input_half(Rank::kNear);
  }
  for (int i = 0; i < r + 1; ++i) rank.weight();
}

}  // namespace

void make_dualpipe(const ScheduleInput& input, Schedule& out) {
  const int count = begin_schedule(input, "dualpipe", {}, out);
  const auto refuse = [](const std::string& what, int found) {
    throw UserError("schedule dualpipe: expected ", what, ", found ", found);
  };
  if (input.stages % 2 != 0) refuse("an even number of stages", input.stages);
  if (count % 2 != 0 || (count > 0 && count < 2 * input.stages))
    refuse("an even number of micro-batches, at least two for each of the " + std::to_string(input.stages) +
               " stages",
           count);
  out.bidirectional = true;
  out.virtual_stages = 2;
  for (int s = 0; s < input.stages; ++s) {
    std::vector<ScheduleOp>& ops = out.ops[at(s)];
    ops.reserve(3 * at(count));
    if (count > 0) issue(input.stages, s, count / 2, ops);
    out.kept_bound[at(s)] = input.stages + 1;
  }
}

}  // namespace equipoise
