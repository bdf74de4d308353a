// Estimates of what simulating a plan allocates, and of the files that show it (planned_memory.h).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "policies/policy_keys.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/contended_run.h"
#include "sim/step/lane_run.h"
#include "sim/study/derive.h"
#include "sim/study/planned_memory.h"

namespace equipoise {
namespace {

constexpr double kAllocationOfSimulation = 16;

// Ops of a layer, one rank, and how often the schedule runs them for a micro-batch.
struct Passes {
  double forward_ops = 0, backward_ops = 0;
  double forwards = 1;  // with those of ChunkFlow that only recompute
  double syncs = 0;     // of a forward
  double cells = 2;     // of a micro-batch on a virtual stage
};

Passes passes_of(const RunModels& models, const PolicyRun& run) {
  constexpr std::int64_t kTokens = 1024;  // ops do not depend on it
  const LayerKind kind = models.costs.model().moe ? LayerKind::moe : LayerKind::dense;
  RangeUse use;
  OpList before, after;
  Passes passes;
  const double context = models.layout.context;
  passes.syncs = models.layout.context_comm == ContextComm::ring ? context : 2;
  const auto ops = [&] { return static_cast<double>(before.ops().size() + after.ops().size()); };
  models.costs.forward_ops(kind, kTokens, before, after, use);
  passes.forward_ops = ops() + 1 + (context > 1 ? passes.syncs : 0);  // and attention
  models.costs.backward_ops(kind, kTokens, before, after, use);
  passes.backward_ops = ops() + 1 + (context > 1 ? passes.syncs : 0);
  if (has_key(run.policy(), "chunk_size")) {  // chunks beyond K run forward twice
    passes.forwards = 2;
    passes.cells = 3;
  }
  const bool full =
      models.layout.recompute == Recompute::full || models.layout.recompute == Recompute::layers;
  if (full) passes.forwards += 1;
  return passes;
}

// The shape of a step as the engines see it: ranks are those with tasks of their own.
struct StepShape {
  double lanes = 1, context = 1, stages = 1, virtual_stages = 1, layers = 1, tensor = 1;
  double micro_batches = 1;  // of a lane
  bool pairs = false;        // forwards and backwards are issued together
  [[nodiscard]] double ranks() const { return lanes * context * stages * tensor; }
};

StepShape shape_of(const RunModels& models, const PlanSize& size, const RunStudyOptions& options) {
  const Layout& layout = models.layout;
  StepShape shape;
  shape.lanes = layout.data;
  shape.context = layout.context;
  shape.stages = layout.pipeline;
  shape.virtual_stages = layout.virtual_pipeline * layout.copies();
  shape.layers = static_cast<double>(models.costs.model().layers) / layout.pipeline;
  const OpFidelity& op = options.steps.op;
  const bool folded = op.fold_tp && (!op.contention || (op.jitter == 0 && op.stragglers.empty()));
  shape.tensor = options.steps.fidelity == Fidelity::op && !folded ? layout.tensor : 1;
  shape.pairs = models.costs.pairs_micro_batches();
  shape.micro_batches =
      std::max(1.0, size.micro_batches / std::max(1.0, size.steps) / static_cast<double>(layout.data));
  return shape;
}

// Costs, schedule and inboxes of one lane.
double stage_bytes(const StepShape& s, const Passes& p, double slices) {
  constexpr double kTimelines = 4 * kLayerKinds, kRows = 20, kVectors = 60;
  const double cost = sizeof(MicroBatchCost) + kVectors * kAllocationOfSimulation +
                      s.context * sizeof(Picoseconds) * (kTimelines * (2 * p.syncs + 1) + kRows) +
                      2 * sizeof(Segment) * s.context * slices;
  const double cells = p.cells * s.virtual_stages * s.stages;
  constexpr double kWaiting = 2;  // inputs of a micro-batch that wait at a time
  const double inboxes = kInboxes * s.virtual_stages * s.stages * sizeof(std::uint32_t) +
                         kWaiting * s.context * sizeof(Picoseconds);
  return s.micro_batches * (cost + cells * sizeof(ScheduleOp) + inboxes);
}

// The program of one step and the times of its cells.
double op_bytes(const StepShape& s, const Passes& p) {
  constexpr double kBlocks = 14;                            // layers by kind and pass, embedding, head
  const double ops = p.forward_ops + 2.5 * p.backward_ops;  // the backward whole, and in its two halves
  const double program = s.lanes * s.micro_batches *
                         (kBlocks * (sizeof(OpBlock) + 2 * kAllocationOfSimulation) +
                          ops * (sizeof(OpStep) + s.context * sizeof(Picoseconds)));
  const double cells = s.micro_batches * p.cells * s.virtual_stages;  // of a lane's stage
  // A pair has blocks of its own: its layers of one kind, beside those of one kind.
  const double pairs = s.pairs ? s.lanes * s.micro_batches * s.stages * s.virtual_stages : 0;
  const double of_pairs =
      pairs * (sizeof(OpBlock) + 2 * kAllocationOfSimulation +
               (p.forward_ops + p.backward_ops) * (sizeof(OpStep) + s.context * sizeof(Picoseconds)));
  const double times = 2 * sizeof(Picoseconds) * cells * s.ranks();
  return program + of_pairs + times +
         s.lanes * s.stages * cells * (sizeof(ScheduledOp) + 2 * sizeof(BlockRun));
}

double layer_ops(const StepShape& s, const Passes& p) {
  return s.micro_batches * s.layers * (p.forwards * p.forward_ops + p.backward_ops);  // of one rank
}

// Times of scheduled ops, inputs and collectives inside lanes, of two runs: with shared links and without.
double contention_bytes(const StepShape& s, const Passes& p) {
  constexpr double kRuns = 2;
  constexpr double kTensorOps = 8;  // of a layer's pass, where every TP rank has its own
  constexpr double kRouteUses = 8;  // links of a transfer, from one rank to two neighbours
  const double cells = s.micro_batches * p.cells * s.virtual_stages * s.ranks();
  const double passes = s.lanes * s.micro_batches * s.layers * s.stages * (p.forwards + 2);
  const double meetings = passes * (p.syncs * s.tensor + (s.tensor > 1 ? kTensorOps * s.context : 0));
  const double routes = s.ranks() * 2 * (sizeof(contended::Rank) + kRouteUses * 4 * sizeof(LinkUse));
  return kRuns * sizeof(Picoseconds) * (3 * cells + meetings) + routes;
}

}  // namespace

double simulation_bytes(const RunModels& models, const PolicyRun& run, const PlanSize& size,
                        const RunStudyOptions& options) {
  const Passes passes = passes_of(models, run);
  const StepShape shape = shape_of(models, size, options);
  const double slices = size.slices / std::max(1.0, size.micro_batches);
  double thread = stage_bytes(shape, passes, slices);
  if (options.steps.fidelity == Fidelity::op) thread += op_bytes(shape, passes);
  if (options.steps.op.contention) thread += contention_bytes(shape, passes);
  const double gpus = options.record_gpus ? sizeof(double) * shape.ranks() : 0;
  const double results = size.steps * (sizeof(StepResult) + gpus + shape.lanes * sizeof(LaneResult)) +
                         size.micro_batches * sizeof(Picoseconds);
  return results + thread * std::min<double>(std::max(1, options.jobs), std::max(1.0, size.steps));
}

double details_bytes(const RunModels& models, const PolicyRun& run, const PlanSize& size,
                     const RunStudyOptions& options) {
  constexpr double kOpText = 62;       // a slice of a kernel or collective, with its end and its arguments
  constexpr double kCellText = 140;    // of an op of the schedule, with documents and arrows
  constexpr double kCounterText = 18;  // one value
  constexpr double kCounters = 3;      // that change where a layer begins
  constexpr double kChakraText = 240;  // a node
  const DetailOptions& details = options.details;
  const Passes passes = passes_of(models, run);
  const StepShape shape = shape_of(models, size, options);
  const auto chosen = [](const std::vector<int>& list, double all) {
    return list.empty() ? all : std::min(all, static_cast<double>(list.size()));
  };
  const TimelineSelection& selection = details.selection;
  const bool op = options.steps.fidelity == Fidelity::op;
  const double rows = chosen(selection.lanes, shape.lanes) * chosen(selection.stages, shape.stages);
  const double ranks = chosen(selection.ranks, shape.context);
  const double tracks = rows * ranks * (op && selection.all_tensor_ranks ? shape.tensor : 1);
  const double counted = rows * (op ? ranks : selection.ranks.empty() ? 1 : ranks);
  const double cells = shape.micro_batches * passes.cells * shape.virtual_stages;
  double bytes = tracks * cells * kCellText;
  if (op) bytes += tracks * layer_ops(shape, passes) * kOpText;
  if (selection.counters.memory) {
    const double changes = op ? shape.micro_batches * shape.layers * 2 + cells : 2 * cells;
    bytes += counted * changes * kCounters * kCounterText;
  }
  const double steps = std::min(static_cast<double>(std::max(0, details.steps)), size.steps);
  constexpr double kCompressed = 4;  // at least: 4.4 to 6.2 were measured
  double all = steps * bytes / (details.gzip ? kCompressed : 1);
  if (details.chakra && details.steps > 0)
    all += static_cast<double>(models.layout.gpus()) * layer_ops(shape, passes) * kChakraText;
  return options.keep_plans ? all : 0;
}

}  // namespace equipoise
