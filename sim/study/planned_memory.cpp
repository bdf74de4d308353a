#include "sim/study/planned_memory.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "policies/policy_keys.h"
#include "policies/step_shape.h"
#include "sim/study/derive.h"
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

// Most tokens of a micro-batch, where a size that the user gave bounds it; 0: nothing does.
double capacity_of(const PolicyRun& run) {
  const auto bound = run.policy().micro_batch_tokens;
  return bound == nullptr ? 0 : as_double(bound(run.pack));
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

// A plan's file as values, which are many times its text, and then as a plan.
double plan_file_memory(const PolicyRun& run) {
  constexpr double kValues = 8;  // per byte of text: [7,0,512], is 10 bytes and 140 as values
  std::error_code error;
  const auto bytes = std::filesystem::file_size(run.plan_file, error);
  return error ? 0 : (1 + kGrowth + kValues) * static_cast<double>(bytes);
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
  // Policies with a given number of bins carry what does not fit; the others make as many as it takes.
  const bool bins = has_key(policy, "micro_batches");
  if (!bins) {
    const double full = capacity > 0 ? std::ceil(tokens / capacity) : as_double(pack.sequences_per_step);
    size.micro_batches =
        policy.pads_documents ? totals.documents / as_double(pack.micro_batch_size) : size.steps * full;
    return size;
  }
  const double count =
      as_double(pack.micro_batches > 0
                    ? pack.micro_batches
                    : std::max<std::int64_t>(
                          1, pack.sequences_per_step / std::max<std::int64_t>(1, pack.micro_batch_size)));
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

double plan_json_bytes(const PlanSize& size) {
  constexpr double kSliceText = 26;        // [12345,0,131072],
  constexpr double kMicroBatchText = 110;  // {"recompute_layers":0,"slices":[],"tokens":131072} and a chunk
  constexpr double kStepText = 100;
  return kSliceText * (size.slices + size.carried) + kMicroBatchText * size.micro_batches +
         kStepText * size.steps;
}

double plan_json_memory(const PlanSize& size) {
  constexpr double kSliceValue = 140;  // a list of three numbers
  constexpr double kMicroBatchValue = 600;
  const double values = kSliceValue * (size.slices + size.carried) + kMicroBatchValue * size.micro_batches;
  return values + kGrowth * plan_json_bytes(size);
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
  require_output(
      "--out", output, max_output_GB,
      options.details.steps > 0
          ? "--timeline-steps 0, or less by --timeline-lanes, --timeline-stages, --timeline-ranks, "
            "--timeline-counters none"
          : "fewer steps");
}

}  // namespace equipoise
