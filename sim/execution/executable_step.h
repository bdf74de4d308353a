// A step of a plan made ready to run, equal on every rank: the simulator's own op program for it, where every
// token goes, and what its loss counts. Also what a rank records while it runs the step.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/step/expansion.h"
#include "sim/step/lockstep_costs.h"
#include "sim/step/op_program.h"
#include "sim/step/stage_ticks.h"
#include "sim/topology/rank_grid.h"

namespace equipoise::execution {

// Tokens of the documents of a trace. A trace that is read again continues the numbers.
class DocumentLengths {
 public:
  DocumentLengths() = default;
  explicit DocumentLengths(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  [[nodiscard]] std::int64_t of(std::int64_t document) const {
    return lengths_.at(static_cast<std::size_t>(document) % lengths_.size());
  }

 private:
  std::vector<std::int64_t> lengths_;
};

// What the stages of a lane run at one time while they share attention.
struct StageTick {
  std::array<std::vector<StageMove>, 2> moves;  // forward and backward
  // The micro-batch of each stage, or kIdle for a stage that computes for others; empty without pooled ranks.
  std::vector<std::int32_t> pool;
};
inline constexpr std::int32_t kIdle = -1;
// A stage's op in a tick, and the stages that it computes for meanwhile.
struct TickPlace {
  std::size_t tick = 0;
  std::int32_t op = kIdle;
};
struct LaneTicks {
  std::vector<StageTick> ticks;                // in an order in which every stage can run them
  std::vector<std::vector<TickPlace>> stages;  // by stage, what each op runs
  // By tick, one stage that has an op in it, and which op.
  std::vector<TickOp> first;
};

struct ExecutableStep {
  Step step;
  Layout layout;  // the row's layout
  DocumentLengths documents;
  OpProgram program;                            // sequential
  bool repeats_attention = false;               // selective recompute: every backward repeats attention
  std::vector<std::vector<Sharding>> sharding;  // [lane][micro-batch]
  std::vector<LaneTicks> ticks;                 // by lane, if stages share attention
  // [lane][micro-batch][slice]: the factor of each token's loss
  std::vector<std::vector<std::vector<double>>> weights;
};

// Why ranks cannot run the exchange of attention among stages. Empty if they can: all stages must run and
// recompute equal numbers of layers.
std::string stage_exchange_fault(const ModelShape& model, const Layout& layout);

// The program for ranks that overlap nothing: a collective that would overlap a kernel comes before it, and
// gradients are reduced after the last backward.
OpProgram sequential(OpProgram program);

// How the losses of a step's tokens become one number. token: mean over all tokens of the step. sample: mean
// over slices of the means of their tokens. sum: the sum. stable (HBP): each lane divides by its slices times
// the step's mean tokens per slice, and the lanes are averaged.
enum class LossNormalizer { token, sample, sum, stable };
inline constexpr std::string_view kLossNormalizerNames[] = {"token", "sample", "sum", "stable"};

// The weights for ExecutableStep. A document cut into slices or chunks counts as that many samples, a group
// of dependent chunks as one.
std::vector<std::vector<std::vector<double>>> loss_weights(const Step& step, LossNormalizer normalizer);

// The step with the simulator's op program for it. Ranks run the program with or without `fold_tp` (see
// StepExpander) in the same way, op by op. Throws UserError if the sharding rule or the schedule refuses the
// step, or the layout has something that ranks cannot run (check_layout_runs).
ExecutableStep make_step(const LayerCosts& costs, const ShardRule& rule, const StepOptions& options,
                         const Step& step, const DocumentLengths& documents, LossNormalizer normalizer,
                         bool fold_tp = true);

// Throws UserError for what real execution does not support: experts, ZeRO-2 and ZeRO-3, and more TP ranks
// than tokens of the vocabulary.
void check_layout_runs(const ModelShape& model, const Layout& layout);

// The length of the longest slice or group of dependent chunks with padding: the number of positions.
std::int64_t longest_attended(const ExecutableStep& step);

// --- When a rank ran what, op by op, in the terms of the op program.

// Nanoseconds on the clock that all processes of a host share.
inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
inline std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A rank's place in the op program.
struct RankPlace {
  int stage = 0;
  int replica = 0;  // among the data x context ranks of its stage
  int tensor = 0;
};
RankPlace place_of(const RankGrid& grid, int rank);

struct RecordedOp {
  std::int64_t begin_ns = 0, end_ns = 0;  // when the rank arrives at the op, and when it ends
  std::int32_t lane = -1;                 // -1 at the end of the step
  std::int32_t scheduled = -1;            // on the rank's stage
  std::int32_t run = -1;                  // in the scheduled op; -1 while its input arrives
  std::int32_t repetition = 0;
  std::int32_t step = 0;  // in the block, or in the step's end
  std::int32_t name = 0;  // OpName
};

struct StepRecord {
  std::int64_t begin_ns = 0, end_ns = 0;  // on this rank
  std::int64_t cpu_ns = 0;                // CPU time of its thread meanwhile
  std::vector<RecordedOp> ops;
};

}  // namespace equipoise::execution
