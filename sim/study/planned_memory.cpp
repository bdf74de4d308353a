#include "sim/study/planned_memory.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "policies/policy.h"
#include "policies/steps.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/contended_run.h"
#include "sim/step/lane_run.h"
#include "traces/synth.h"

namespace equipoise {
namespace {

constexpr double kAllocation = 16;  // what malloc adds to a block
constexpr double kGrowth = 1.5;     // a growing vector's capacity over its size, mean of 1 and 2
constexpr std::int64_t kSample = 4096;

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

// Mean length of the documents where the study says it; 0: a file has to be read first.
double mean_length(const TraceSource& source) {
  if (source.uniform > 0) return as_double(source.uniform);
  if (source.distribution.empty()) return 0;
  double sum = 0;
  for (const std::int64_t length : synthesize(source.distribution, kSample, source.seed).lengths)
    sum += as_double(length);
  return sum / as_double(kSample);
}

// Most tokens of a micro-batch, where a size that the user gave bounds it; 0: nothing does. Bins of a given
// number that are not given one hold what the policy places at most.
double capacity_of(const PolicyRun& run) {
  const Policy& policy = run.policy();
  const double bound =
      policy.micro_batch_tokens == nullptr ? 0 : as_double(policy.micro_batch_tokens(run.pack));
  const bool holds = bound == 0 && policy.hard_limit != nullptr && has_key(policy, "micro_batches");
  return holds ? as_double(policy.hard_limit(run.pack)) : bound;
}

// Of reading a row's plan from its file (plan_file.h).
// A plan's file as values, which are many times its text, and then as a plan.
double plan_file_memory(const PolicyRun& run) {
  constexpr double kValues = 8;  // per byte of text: [7,0,512], is 10 bytes and 140 as values
  std::error_code error;
  const auto bytes = std::filesystem::file_size(run.plan_file, error);
  return error ? 0 : (1 + kGrowth + kValues) * static_cast<double>(bytes);
}

// Of its plan.json, and of what is held while it is written.
double plan_json_bytes(const PlanSize& size) {
  constexpr double kSliceText = 26;        // [12345,0,131072],
  constexpr double kMicroBatchText = 110;  // {"recompute_layers":0,"slices":[],"tokens":131072} and a chunk
  constexpr double kStepText = 100;
  return kSliceText * (size.slices + size.carried) + kMicroBatchText * size.micro_batches +
         kStepText * size.steps;
}

}  // namespace

DocumentTotals foreseen_documents(const Study& study) {
  const double mean = mean_length(study.trace);
  DocumentTotals totals;
  totals.batches = as_double(study.steps);
  const double drawn = mean > 0 ? as_double(study.trace.documents) : 0;
  if (study.batch.documents_per_step > 0) {
    totals.documents = totals.batches * as_double(study.batch.documents_per_step);
    totals.tokens = totals.documents * std::max(1.0, mean);
    totals.lengths = std::max(totals.documents, drawn);
    return totals;
  }
  const double windows = totals.batches * as_double(study.batch.sequences_per_step);
  totals.tokens = windows * as_double(study.batch.context_window);
  totals.documents = std::max(windows, mean > 0 ? totals.tokens / mean : 0);
  totals.lengths = std::max(mean > 0 ? totals.tokens / mean : 0, drawn);
  return totals;
}

DocumentTotals totals_of(const DocumentSet& documents) {
  DocumentTotals totals;
  totals.batches = as_double(static_cast<std::int64_t>(documents.batches.size()));
  totals.tokens = as_double(documents.tokens);
  for (const GlobalBatch& batch : documents.batches)
    totals.documents += as_double(static_cast<std::int64_t>(batch.slices.size()));
  totals.lengths = as_double(documents.documents);
  return totals;
}

PlanSize plan_size(const PolicyRun& run, const DocumentTotals& totals) {
  const Policy& policy = run.policy();
  const PackOptions& pack = run.pack;
  const double capacity = capacity_of(run);
  const double tokens = totals.tokens / std::max(1.0, totals.batches);  // of a step
  PlanSize size;
  size.steps = totals.batches;
  size.slices = totals.documents;
  // Cut at the policy's limit.
  const bool chunks = has_key(policy, "chunk_size");
  const double limit = chunks                                                             ? capacity
                       : policy.hard_limit != nullptr && pack.oversize == Oversize::split ? capacity
                                                                                          : 0;
  if (limit > 0) size.slices = std::max(size.slices, totals.tokens / limit);
  if (has_key(policy, "slices")) {  // at most: of documents of one length
    size.slices = totals.documents * as_double(std::get<std::int64_t>(pack_parameter("slices")->get(pack)));
    size.micro_batches = size.slices;
    return size;
  }
  // Policies with a given number of bins carry what does not fit; the others make as many as it takes.
  const bool bins = has_key(policy, "micro_batches");
  if (!bins) {
    const double full = capacity > 0 ? std::ceil(tokens / capacity) : as_double(pack.sequences_per_step);
    size.micro_batches =
        policy.pads_documents ? totals.documents / as_double(pack.micro_batch_size) : size.steps * full;
    return size;
  }
  PackOptions sized = pack;
  sized.sequences_per_step = std::max(pack.sequences_per_step, pack.micro_batch_size);
  if (pack.documents_per_step > 0) sized.global_tokens = std::max<std::int64_t>(1, std::llround(tokens));
  const bool fits = pack.micro_batches > 0 || pack.sequences_per_step % pack.micro_batch_size == 0 ||
                    pack.documents_per_step > 0;  // else it is refused later, by name
  const double count = fits ? as_double(micro_batches_of_step(sized)) : 1;
  if (capacity > 0 && capacity * count < tokens) {
    const double placed = capacity * count;  // tokens of a step; the steps go on until nothing is left
    size.steps = std::ceil(totals.tokens / placed);
    const double most = totals.tokens - totals.batches * placed;
    size.carried = size.steps * most / 2 * size.slices / totals.tokens;
  }
  size.micro_batches = size.steps * count;
  return size;
}

double documents_bytes(const DocumentTotals& totals) {
  return totals.lengths * sizeof(std::int64_t) + totals.documents * kGrowth * sizeof(Slice);
}

double plan_bytes(const PlanSize& size, const PackOptions& pack) {
  const double slices = kGrowth * sizeof(Slice) * size.slices;
  const double micro_batches = (kGrowth * sizeof(MicroBatch) + kAllocation) * size.micro_batches;
  const double lanes = size.steps * (sizeof(Step) + pack.lanes * (sizeof(Lane) + kAllocation));
  // Carried ones stand in the step's list, and the step's bins had room for them.
  return slices + micro_batches + lanes + 2 * sizeof(Slice) * size.carried;
}

double plan_json_memory(const PlanSize& size) {
  constexpr double kSliceValue = 140;  // a list of three numbers
  constexpr double kMicroBatchValue = 600;
  const double values = kSliceValue * (size.slices + size.carried) + kMicroBatchValue * size.micro_batches;
  return values + kGrowth * plan_json_bytes(size);
}

namespace {

// Ops of a layer, one rank, and how often the schedule runs them for a micro-batch.
struct Passes {
  double forward_ops = 0, backward_ops = 0;
  double forwards = 1;  // with those of ChunkFlow that only recompute
  double syncs = 0;     // of a forward
  double ops = 2;       // of the schedule, for a micro-batch on a virtual stage
};

Passes passes_of(const RunModels& models, const PolicyRun& run) {
  constexpr std::int64_t kTokens = 1024;  // ops do not depend on it
  const LayerKind kind = models.costs.model().moe ? LayerKind::moe : LayerKind::dense;
  RangeUse use;
  OpList before, after;
  Passes passes;
  const double context = models.layout.context;
  passes.syncs = context_form(models.costs).estimated_exchanges(models.layout, models.layout.context);
  const auto ops = [&] { return static_cast<double>(before.ops().size() + after.ops().size()); };
  models.costs.forward_ops(kind, kTokens, before, after, use);
  passes.forward_ops = ops() + 1 + (context > 1 ? passes.syncs : 0);  // and attention
  models.costs.backward_ops(kind, kTokens, before, after, use);
  passes.backward_ops = ops() + 1 + (context > 1 ? passes.syncs : 0);
  if (has_key(run.policy(), "chunk_size")) {  // chunks beyond K run forward twice
    passes.forwards = 2;
    passes.ops = 3;
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
  shape.layers = static_cast<double>(models.costs.model().all_layers()) / layout.pipeline;
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
  const double cost = sizeof(MicroBatchCost) + kVectors * kAllocation +
                      s.context * sizeof(Picoseconds) * (kTimelines * (2 * p.syncs + 1) + kRows) +
                      2 * sizeof(Segment) * s.context * slices;
  const double scheduled = p.ops * s.virtual_stages * s.stages;
  constexpr double kWaiting = 2;  // inputs of a micro-batch that wait at a time
  const double inboxes = kInboxes * s.virtual_stages * s.stages * sizeof(std::uint32_t) +
                         kWaiting * s.context * sizeof(Picoseconds);
  return s.micro_batches * (cost + scheduled * sizeof(ScheduleOp) + inboxes);
}

// The program of one step and the times of its ops.
double op_bytes(const StepShape& s, const Passes& p) {
  constexpr double kBlocks = 14;                            // layers by kind and pass, embedding, head
  const double ops = p.forward_ops + 2.5 * p.backward_ops;  // the backward whole, and in its two halves
  const double program = s.lanes * s.micro_batches *
                         (kBlocks * (sizeof(OpBlock) + 2 * kAllocation) +
                          ops * (sizeof(OpStep) + s.context * sizeof(Picoseconds)));
  const double scheduled = s.micro_batches * p.ops * s.virtual_stages;  // of a lane's stage
  // A pair has blocks of its own: its layers of one kind, beside those of one kind.
  const double pairs = s.pairs ? s.lanes * s.micro_batches * s.stages * s.virtual_stages : 0;
  const double of_pairs =
      pairs * (sizeof(OpBlock) + 2 * kAllocation +
               (p.forward_ops + p.backward_ops) * (sizeof(OpStep) + s.context * sizeof(Picoseconds)));
  const double times = 2 * sizeof(Picoseconds) * scheduled * s.ranks();
  return program + of_pairs + times +
         s.lanes * s.stages * scheduled * (sizeof(ScheduledOp) + 2 * sizeof(BlockRun));
}

double layer_ops(const StepShape& s, const Passes& p) {
  return s.micro_batches * s.layers * (p.forwards * p.forward_ops + p.backward_ops);  // of one rank
}

// Times of scheduled ops, inputs and collectives inside lanes, of two runs: with shared links and without.
double contention_bytes(const StepShape& s, const Passes& p) {
  constexpr double kRuns = 2;
  constexpr double kTensorOps = 8;  // of a layer's pass, where every TP rank has its own
  constexpr double kRouteUses = 8;  // links of a transfer, from one rank to two neighbours
  const double scheduled = s.micro_batches * p.ops * s.virtual_stages * s.ranks();
  const double passes = s.lanes * s.micro_batches * s.layers * s.stages * (p.forwards + 2);
  const double waits = passes * (p.syncs * s.tensor + (s.tensor > 1 ? kTensorOps * s.context : 0));
  const double routes = s.ranks() * 2 * (sizeof(contended::Rank) + kRouteUses * 4 * sizeof(LinkUse));
  return kRuns * sizeof(Picoseconds) * (3 * scheduled + waits) + routes;
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
  constexpr double kOpText = 62;          // a slice of a kernel or collective, with its end and its arguments
  constexpr double kScheduledText = 140;  // of an op of the schedule, with documents and arrows
  constexpr double kCounterText = 18;     // one value
  constexpr double kCounters = 3;         // that change where a layer begins
  constexpr double kChakraText = 240;     // a node
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
  const double scheduled = shape.micro_batches * passes.ops * shape.virtual_stages;
  double bytes = tracks * scheduled * kScheduledText;
  if (op) bytes += tracks * layer_ops(shape, passes) * kOpText;
  if (selection.counters.memory) {
    const double changes = op ? shape.micro_batches * shape.layers * 2 + scheduled : 2 * scheduled;
    bytes += counted * changes * kCounters * kCounterText;
  }
  const double steps = std::min(static_cast<double>(std::max(0, details.steps)), size.steps);
  constexpr double kCompressed = 4;  // at least: 4.4 to 6.2 were measured
  double all = steps * bytes / (details.gzip ? kCompressed : 1);
  if (details.chakra && details.steps > 0)
    all += static_cast<double>(models.layout.gpus()) * layer_ops(shape, passes) * kChakraText;
  return options.keep_plans ? all : 0;
}

void check_planned_memory(const Study& study, const DocumentTotals& totals, const RunStudyOptions& options,
                          const MemoryLimit& limit) {
  const double documents = documents_bytes(totals);
  require_memory(study.file + ": holding the documents", documents, limit, "fewer steps or smaller batches");
  double kept = 0, written = 0;
  for (const PolicyRun& run : study.policies) {
    if (run.has_plan_file())
      require_memory(study.file + ": reading " + run.plan_file, documents + kept + plan_file_memory(run),
                     limit, "a plan of fewer steps");
    const PlanSize size = plan_size(run, totals);
    const double plan = plan_bytes(size, run.pack);
    require_memory(study.file + ": the plan of " + run.label, documents + kept + plan, limit,
                   "fewer steps, or larger sizes (chunk_size, max_tokens, pack_length, fewer micro_batches)");
    if (!options.keep_plans) continue;
    kept += plan;
    written = std::max(written, plan_json_memory(size));
  }
  require_memory(study.file + ": writing plan.json", documents + kept + written, limit,
                 "fewer steps, or larger sizes (chunk_size, max_tokens, pack_length, fewer micro_batches)");
}

void check_planned_run(const Study& study, const StudyInputs& inputs, RunStudyOptions& options,
                       const MemoryLimit& limit, double max_output_GB) {
  const DocumentTotals totals = totals_of(inputs.documents);
  check_planned_memory(study, totals, options, limit);
  const double documents = documents_bytes(totals);
  double output = 0, largest = 0, second = 0;
  for (const PolicyRun& run : study.policies) {
    const RunModels models(study, layout_of(study, run), inputs.profile);
    const PlanSize size = plan_size(run, totals);
    const double row = plan_bytes(size, run.pack) + simulation_bytes(models, run, size, options);
    require_memory(
        study.file + ": simulating " + run.label, documents + row, limit,
        options.steps.op.contention ? "fewer --jobs, or no --contention" : "fewer --jobs or steps");
    second = std::max(second, std::min(largest, row));
    largest = std::max(largest, row);
    output += details_bytes(models, run, size, options);
    if (options.keep_plans) output += plan_json_bytes(size);
  }
  options.rows_in_turn = documents + largest + second > limit.bytes;
  require_output("--out", output, max_output_GB,
                 options.details.steps > 0 ? "--timeline-steps 0, or less by --timeline-lanes, "
                                             "--timeline-stages, --timeline-ranks, --timeline-counters none"
                                           : "fewer steps");
}

}  // namespace equipoise
