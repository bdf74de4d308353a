#include "sim/study/estimate.h"

#include <algorithm>
#include <cmath>

#include "policies/policy.h"
#include "policies/steps.h"
#include "policies/validator.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/metrics/step_figures.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/simulate.h"

namespace equipoise {
namespace {

// The size of a row, in which lanes have equally many micro-batches in each step.
struct RowSize {
  PlanSize plan;
  Layout layout;
  double layers = 0, stages = 0, micro_batches = 0, threads = 0;  // virtual stages; micro-batches per lane
  int layer_kinds = 0;
};

RowSize row_size(const Study& study, const PolicyRun& run, const DocumentSet& documents, int jobs) {
  RowSize row{plan_size(run, documents), layout_of(study, run)};
  row.layers = study.model.all_layers();
  row.layer_kinds = kLayerKinds - static_cast<int>(std::ranges::count(study.model.layer_counts(), 0));
  row.stages = row.layout.pipeline * row.layout.virtual_pipeline * row.layout.copies();
  row.micro_batches = std::max(1.0, row.plan.micro_batches / row.plan.steps / row.layout.data);
  row.threads = std::min<double>(jobs, row.plan.steps);
  return row;
}

double plan_bytes(const RowSize& row) {
  constexpr double kGrowth = 1.5;  // capacity of a growing vector over its size, mean of 1 and 2
  constexpr double kSlice = kGrowth * sizeof(Slice), kMicroBatch = kGrowth * sizeof(MicroBatch);
  const double lanes = row.layout.data * static_cast<double>(sizeof(Lane));
  const PlanSize& size = row.plan;
  // The bins of a step had room for the slices that it carries over.
  return kSlice * size.slices + 2.0 * sizeof(Slice) * size.carried + kMicroBatch * size.micro_batches +
         size.steps * (sizeof(Step) + lanes);
}

double plan_text_bytes(const RowSize& row) {
  return 26 * (row.plan.slices + row.plan.carried) + 110 * row.plan.micro_batches;
}

// Each thread has the costs of one lane (stage fidelity) or the program of one step (op fidelity); with
// contention it has the times of a step for each GPU.
double simulation_bytes(const RowSize& row, const StepSettings& settings) {
  const double context = row.layout.context, data = row.layout.data;
  double of_micro_batch = 3200 + 700 * context + 70 * row.stages;  // its costs are by kind of layer
  if (settings.fidelity == Fidelity::op) of_micro_batch += data * (6000 + 1200 * context + 100 * row.stages);
  if (settings.op.contention)
    of_micro_batch +=
        data * context * (settings.op.fold_tp ? 1 : row.layout.tensor) * (100 * row.stages + 80 * row.layers);
  return row.threads *
         (MicroBatchCoster::remembered_bytes(row.layer_kinds) + row.micro_batches * of_micro_batch);
}

// What a row keeps of its steps.
double figures_bytes(const RowSize& row, const RunStudyOptions& options) {
  const double gpus = options.record_gpus ? static_cast<double>(row.layout.gpus()) / row.layout.tensor : 0;
  return row.plan.steps * (sizeof(StepFigures) + gpus * sizeof(double));
}

// A plan while it is made: a block of steps if the policy streams, else whole, with the documents. It is also
// whole where the validator needs all its steps. Trials of a search have whole plans.
double planning_bytes(const RowSize& row, const PolicyRun& run, const RunStudyOptions& options) {
  constexpr double kChecked = 160;  // bytes for a slice in the validator's lists, measured
  const Policy& policy = run.policy();
  const bool verifies = is_verified(run.pack) || options.verify;
  if (!policy.streams || verifies)
    return plan_bytes(row) + (2.0 * sizeof(Slice) + (verifies ? kChecked : 0)) * row.plan.slices;
  PackOptions sized = run.pack;  // as when the search begins, after sizes were derived
  sized.bucket_size = std::max<std::int64_t>(1, sized.bucket_size);
  if (options.jobs == 0 || policy.search.is_open_in(sized)) return plan_bytes(row);
  return plan_bytes(row) * std::min(1.0, static_cast<double>(steps_of_block(options)) / row.plan.steps);
}

double timeline_bytes(const RowSize& row, const RunStudyOptions& options) {
  constexpr double kLayerOps = 45;    // kernels and collectives of a layer, forward and backward
  constexpr double kOpText = 70;      // bytes of a timeline per kernel or collective
  constexpr double kScheduled = 300;  // per op of the schedule, with its counters
  constexpr double kChakra = 240;     // per node of a Chakra trace
  constexpr double kCompressed = 4;
  const DetailOptions& details = options.details;
  const bool op = options.steps.fidelity == Fidelity::op;
  const auto chosen = [](const std::vector<int>& list, int all) {
    return list.empty() ? all : std::min<double>(all, static_cast<double>(list.size()));
  };
  const double layer_ops = row.micro_batches * row.layers / row.layout.pipeline * kLayerOps;
  const double tracks = chosen(details.selection.lanes, row.layout.data) *
                        chosen(details.selection.stages, row.layout.pipeline) *
                        chosen(details.selection.ranks, row.layout.context) *
                        (op && details.selection.all_tensor_ranks ? row.layout.tensor : 1);
  const double scheduled = 2 * row.micro_batches * row.stages / row.layout.pipeline * kScheduled;
  const double of_step = tracks * (scheduled + (op ? layer_ops * kOpText : 0));
  const double steps = std::min<double>(details.steps, row.plan.steps);
  const bool chakra = details.chakra && details.steps > 0;
  return steps * of_step / (details.gzip ? kCompressed : 1) +
         (chakra ? layer_ops * kChakra * static_cast<double>(row.layout.gpus()) : 0);
}

}  // namespace

PlanSize plan_size(const PolicyRun& run, const DocumentSet& documents) {
  const Policy& policy = run.policy();
  const PackOptions& pack = run.pack;
  const auto tokens = static_cast<double>(documents.tokens);
  const auto steps = std::max(1.0, static_cast<double>(documents.batches.size()));
  const bool has_bins = has_key(policy, "micro_batches");
  double capacity = policy.micro_batch_tokens ? static_cast<double>(policy.micro_batch_tokens(pack)) : 0;
  if (capacity == 0 && has_bins && policy.hard_limit) capacity = static_cast<double>(policy.hard_limit(pack));
  PlanSize size{steps};
  for (const GlobalBatch& batch : documents.batches) size.slices += static_cast<double>(batch.slices.size());
  if (policy.cuts_documents(pack) && capacity > 0) size.slices = std::max(size.slices, tokens / capacity);
  if (has_key(policy, "slices")) {
    size.slices *= static_cast<double>(std::get<std::int64_t>(pack_parameter("slices")->get(pack)));
    size.micro_batches = size.slices;
  } else if (policy.pads_documents) {
    size.micro_batches = size.slices / static_cast<double>(pack.micro_batch_size);
  } else if (!has_bins) {
    const auto windows = static_cast<double>(pack.sequences_per_step);
    size.micro_batches = steps * (capacity > 0 ? std::ceil(tokens / steps / capacity) : windows);
  } else {
    PackOptions of_step = pack;  // a wrong number of bins is refused later, by name
    of_step.sequences_per_step = std::max(pack.sequences_per_step, pack.micro_batch_size);
    of_step.sequences_per_step -= of_step.sequences_per_step % pack.micro_batch_size;
    if (pack.documents_per_step > 0)
      of_step.global_tokens = std::max<std::int64_t>(1, std::llround(tokens / steps));
    const auto bins = static_cast<double>(micro_batches_of_step(of_step));
    if (const double placed = capacity * bins; placed > 0 && placed * steps < tokens) {
      size.steps = std::ceil(tokens / placed);
      size.carried = size.steps * size.slices * (1 - placed * steps / tokens) / 2;
    }
    size.micro_batches = size.steps * bins;
  }
  return size;
}

Estimate estimate(const Study& study, const DocumentSet& documents, const RunStudyOptions& options) {
  constexpr double kProfile = 8e6;  // bytes of the profile and of tables of fixed size
  constexpr double kValues = 6;     // bytes of a JSON value per byte of its text
  Estimate made;
  double kept = kProfile, largest = 0;
  StepSettings largest_steps = options.steps;
  if (options.verify) largest_steps.fidelity = Fidelity::op;  // both engines run
  for (const PolicyRun& run : study.policies) {
    const RowSize row = row_size(study, run, documents, options.jobs);
    const double text = plan_text_bytes(row);
    const double work =
        planning_bytes(row, run, options) + (row.threads > 0 ? simulation_bytes(row, largest_steps) : 0);
    kept += row.threads > 0 ? figures_bytes(row, options) : 0;
    largest = std::max(largest, options.keep_plans ? std::max(work, (1 + kValues) * text) : work);
    if (!options.keep_plans) continue;
    kept += plan_bytes(row);
    made.output += text + timeline_bytes(row, options);
  }
  constexpr double kOfDocument = 2 * sizeof(std::int64_t);  // its length, of the trace and for the batches
  constexpr double kOfBatch = 100;                          // where it begins
  kept += kOfDocument * static_cast<double>(documents.recorded) +
          kOfBatch * static_cast<double>(documents.batches.size());
  made.memory = kept + largest;
  return made;
}

void check_estimate(const Study& study, const DocumentSet& documents, RunStudyOptions& options,
                    const MemoryLimit& limit, double max_output_GB) {
  const Estimate made = estimate(study, documents, options);
  require_memory(study.file + ": the plans of its rows", made.memory, limit,
                 std::string(options.steps.op.contention ? "no --contention, " : "") + "fewer steps" +
                     (options.jobs > 1 ? " or --jobs" : "") +
                     ", larger sizes (chunk_size, max_tokens, pack_length, fewer micro_batches)");
  require_output("--out", made.output, max_output_GB,
                 options.details.steps > 0 ? "--timeline-steps 0, or less by --timeline-lanes, "
                                             "--timeline-stages, --timeline-ranks, --timeline-counters none"
                                           : "fewer steps");
  options.rows_in_turn = 2 * made.memory > limit.bytes;
}

}  // namespace equipoise
