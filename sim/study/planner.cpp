#include "sim/study/planner.h"

#include <algorithm>

#include "policies/micro_batch_order.h"
#include "sim/study/plan_check.h"
#include "sim/study/simulate_plan.h"

namespace equipoise {
namespace {

// What the policy leaves to a search, under the row's options as they stand.
void search_options(const PackingProblem& problem, const PlanPrices& prices, PolicyRun& row,
                    std::vector<std::string>& notes) {
  const OptionSearch& search = row.policy().search;
  if (!search.is_open_in(row.pack) || (search.by_memory && !prices.layers)) return;
  for (const std::string& note : search.find(problem, prices, row.pack))
    notes.push_back(row.label + ": " + note);
  if (row.policy().derives == Derives::groups) row.recompute_chosen = true;
}

void note_plan(const DocumentSet& documents, const PolicyRun& row, const Plan& plan,
               std::vector<std::string>& notes) {
  const auto note = [&](const std::string& text) { notes.push_back(row.label + ": " + text); };
  std::int64_t dropped = 0;
  for (const Slice& s : plan.dropped) dropped += s.tokens();
  if (!plan.dropped.empty())
    note(std::to_string(plan.dropped.size()) + " slices with " + std::to_string(dropped) +
         " tokens dropped (--oversize)");
  for (const std::string& text : plan.notes) note(text);
  if (row.policy().places_documents && !row.says("bucket_size") && row.pack.context > 1 &&
      row.pack.bucket_size >= longest_of(documents))
    note(
        "that is room for the longest document on one CP rank, where the others may wait for it; a smaller "
        "bucket_size would distribute it");
}

// The policy's plan, or the one that was made elsewhere, if it fits.
Plan plan_of(const Study& study, const DocumentSet& documents, const PackingProblem& problem,
             const PolicyRun& row, std::vector<std::string>& notes) {
  if (!row.has_plan_file()) return make_plan(row.policy(), problem);
  std::vector<std::string> odd;
  check_plan(study, documents, row, odd);
  for (const std::string& note : odd) notes.push_back(row.label + ": " + note);
  Plan plan = *row.plan;
  order_micro_batches(plan, row.pack.order, problem.workload);
  return plan;
}

}  // namespace

PlannedRow plan_with(const Study& study, const DocumentSet& documents, const Workload& workload,
                     const PlanPrices& prices, PolicyRun& row) {
  PlannedRow planned;
  const PackingProblem problem{documents.batches, row.pack, workload};
  search_options(problem, prices, row, planned.notes);
  planned.plan = plan_of(study, documents, problem, row, planned.notes);
  for (const Step& step : planned.plan.steps) planned.pack_ms += step.pack_ms;
  planned.pack_ms /= static_cast<double>(std::max<std::size_t>(1, documents.batches.size()));
  note_plan(documents, row, planned.plan, planned.notes);
  return planned;
}

PlannedRow plan_row(const Run& run, PolicyRun& row) {
  // Groups are chosen at stage fidelity.
  const RunStudyOptions trial = trial_options(run.options);
  const Run quick{run.study, run.models, run.documents, row, run.workload, trial};
  const PlanPrices prices{[&](const Plan& plan) { return trial_seconds(run, plan); },
                          [&](const Plan& plan) { return trial_seconds_that_fit(quick, plan); },
                          layers_of_groups(run.study, run.models, row)};
  return plan_with(run.study, run.documents, run.workload, prices, row);
}

std::int64_t longest_of(const DocumentSet& documents) {
  std::int64_t longest = 0;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) longest = std::max(longest, slice.tokens());
  return longest;
}

}  // namespace equipoise
