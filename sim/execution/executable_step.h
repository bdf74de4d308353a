// A step of a plan made ready to run: the simulator's own op program for it, where every token goes, and what
// its loss counts. Every rank has the same. And what a rank records while it runs it.
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

// Tokens of the documents of a trace; one that is read again goes on counting.
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

// What the stages of a lane run at one time where they share out attention.
struct StageTick {
  std::array<std::vector<StageMove>, 2> moves;  // forward and backward
  // By stage: its micro-batch; kIdle computes for the others. Empty where stages do not pool their CP ranks.
  std::vector<std::int32_t> pool;
};
inline constexpr std::int32_t kIdle = -1;
// A stage's op of a tick, and for whom it computes meanwhile.
struct TickPlace {
  std::size_t tick = 0;
  std::int32_t op = kIdle;
};
struct LaneTicks {
  std::vector<StageTick> ticks;                // in an order in which all stages may run them
  std::vector<std::vector<TickPlace>> stages;  // what each runs
  // A stage that has an op in a tick, and which.
  std::vector<TickOp> first;
};

struct ExecutableStep {
  Step step;
  Layout layout;  // of its row
  DocumentLengths documents;
  OpProgram program;                            // sequential
  bool repeats_attention = false;               // selective recompute: in every backward
  std::vector<std::vector<Sharding>> sharding;  // [lane][micro-batch]
  std::vector<LaneTicks> ticks;                 // by lane, where stages share out attention
  // [lane][micro-batch][slice]: what each of its tokens' losses is multiplied with
  std::vector<std::vector<std::vector<double>>> weights;
};

// Why ranks cannot run the exchange of attention among stages; empty where they can: all stages run as many
// layers, and recompute as many.
std::string stage_exchange_fault(const ModelShape& model, const Layout& layout);

// The program as ranks run it that overlap nothing: a collective that overlaps a kernel comes before it,
// gradients are reduced after the last backward.
OpProgram sequential(OpProgram program);

// How the losses of a step's tokens become one number. token: mean over all tokens of the step. sample: mean
// over slices of the means of their tokens. sum: the sum. stable (HBP): each lane divides by its slices times
// the mean tokens per slice of the step, and the lanes are averaged.
enum class LossNormalizer { token, sample, sum, stable };
inline constexpr std::string_view kLossNormalizerNames[] = {"token", "sample", "sum", "stable"};

// Weights of ExecutableStep. A document cut into slices or chunks counts as that many samples, a group of
// dependent chunks as one.
std::vector<std::vector<std::vector<double>>> loss_weights(const Step& step, LossNormalizer normalizer);

// The step with the simulator's op program for it. `fold_tp` as in StepExpander: ranks run either form, op by
// op the same. Throws UserError where the sharding rule or the schedule refuses the step, or where the layout
// has what no rank can run (check_layout_runs).
ExecutableStep make_step(const LayerCosts& costs, const ShardRule& rule, const StepOptions& options,
                         const Step& step, const DocumentLengths& documents, LossNormalizer normalizer,
                         bool fold_tp = true);

// Throws UserError for what real execution does not do: experts, ZeRO-2 and ZeRO-3, more TP ranks than tokens
// of the vocabulary.
void check_layout_runs(const ModelShape& model, const Layout& layout);

// The longest slice or group of dependent chunks, padding included: positions go so far.
std::int64_t longest_attended(const ExecutableStep& step);

// --- When a rank ran what, op by op, in the terms of the op program.

// The clock that all processes of a host share, in nanoseconds.
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

// Where a rank is in the op program.
struct RankPlace {
  int stage = 0;
  int replica = 0;  // among the data x context ranks of its stage
  int tensor = 0;
};
RankPlace place_of(const RankGrid& grid, int rank);

struct RecordedOp {
  std::int64_t begin_ns = 0, end_ns = 0;  // begin: the rank has come to it; others may not have
  std::int32_t lane = -1;                 // -1: the end of the step
  std::int32_t scheduled = -1;            // of the rank's stage
  std::int32_t run = -1;                  // of the scheduled op; -1: its input arrives
  std::int32_t repetition = 0;
  std::int32_t step = 0;  // of the block, or of the step's end
  std::int32_t name = 0;  // OpName
};

struct StepRecord {
  std::int64_t begin_ns = 0, end_ns = 0;  // of this rank
  std::int64_t cpu_ns = 0;                // of its thread meanwhile
  std::vector<RecordedOp> ops;
};

}  // namespace equipoise::execution
