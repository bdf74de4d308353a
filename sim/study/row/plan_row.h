// From documents and memory to a row's plan: sizes that the study leaves to memory are derived, options that
// a policy leaves to a search are searched, then the policy packs. Studies, searches and `pack` all plan so.
//
// The sizes (L_max, BucketSize, the groups of HBP and what they recompute) follow from the memory of the
// row's own schedule (sim/memory/derived_sizes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "policies/policy.h"
#include "sim/study/plan_facts.h"
#include "sim/study/row/study_row.h"
#include "sim/study/run_options.h"

namespace equipoise {

// What prices the row's documents: the FLOPs formula of Skrull for gds, dacp and skrull, the profile for all
// others, unless the study says otherwise.
std::shared_ptr<const Workload> workload_of(const StudyRow& row);

// The FLOPs of a document on a model (Skrull Eq. 13).
FlopsWorkload flops_workload(const ModelShape& model);

// Fills row.run.pack: max_tokens, bucket_size; row.no_room where nothing fits into memory. With
// `ignore_memory`, sizes are then those that policies take without a memory model.
void derive_sizes(StudyRow& row, bool ignore_memory);

// Layers of the model that packs of `length` tokens on `degree` ranks must checkpoint (HBP Algorithm 4); -1
// if they do not fit.
int layers_of_group(const StudyRow& row, std::int64_t length, int degree);

// The same for a search of groups (PlanPrices::layers); -1 for a degree that the layout has no groups of,
// too. Holds on to the row. Empty where neither the policy's search nor the choice of what is recomputed asks
// memory.
std::function<int(std::int64_t length, int degree)> layers_of_groups(const StudyRow& row);

// CP degrees that lanes of the row may have (PlanPrices::degrees): that of the layout times and by powers of
// two.
std::vector<int> degrees_of_lanes(const StudyRow& row);

struct PlannedRow {
  Plan plan;           // without steps if a sink takes them
  PlanFacts facts;     // of all its steps
  double pack_ms = 0;  // measured, as a mean per global batch
  Notes notes;         // for the user, with the row's label
};

// Packs; puts what was searched into row.run. Throws UnplaceableDocument where the policy cannot place a
// document, UserError where it refuses its options. A search that needs a memory model is skipped where
// `prices` has none. `sink`: as make_plan has it, after the search.
PlannedRow pack_row(StudyRow& row, const PlanPrices& prices, const StepSink* sink = nullptr);

// The same by the row's own workload, with simulated steps as prices.
PlannedRow pack_row(StudyRow& row, const RunStudyOptions& options, const StepSink* sink = nullptr);

// Tokens of the longest slice.
std::int64_t longest_of(const DocumentSet& documents);

}  // namespace equipoise
