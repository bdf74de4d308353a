// From documents and memory to a row's plan: what the study leaves to memory is derived, what a policy leaves
// to a search is searched, then the policy packs. One planner for studies, searches and `pack`.
//
// Sizes that a policy needs and the user need not type (L_max, BucketSize, HBP's groups and what they
// recompute) follow from the memory of the row's own schedule (sim/memory/derived_sizes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "sim/study/row/row.h"
#include "sim/study/run_options.h"

namespace equipoise {

// Fills row.run.pack: max_tokens, bucket_size; row.no_room where nothing fits into memory. With
// `ignore_memory`, sizes are then those that policies take without a memory model.
void derive_sizes(StudyRow& row, bool ignore_memory);

// Layers of the model that packs of `length` tokens on `degree` ranks must checkpoint (HBP Algorithm 4); -1
// if they do not fit.
int layers_of_group(const StudyRow& row, std::int64_t length, int degree);

// The same for a search of groups (PlanPrices::layers); -1 for a degree that the layout has no groups of, too.
// Holds on to the row.
std::function<int(std::int64_t length, int degree)> layers_of_groups(const StudyRow& row);

struct PlannedRow {
  Plan plan;
  double pack_ms = 0;              // measured, mean per global batch
  std::vector<std::string> notes;  // for the user, with the row's label
};

// Packs; puts what was searched into row.run. Throws UnplaceableDocument where the policy cannot place a
// document, UserError where it refuses its options. A search that needs a
// memory model is left out where `prices` has none.
PlannedRow pack_row(StudyRow& row, const PlanPrices& prices);

// The same by the row's own workload, with simulated steps as prices.
PlannedRow pack_row(StudyRow& row, const RunStudyOptions& options);

// Tokens of the longest slice.
std::int64_t longest_of(const DocumentSet& documents);

}  // namespace equipoise
