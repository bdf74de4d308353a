// A study from its file's contents to its rows, top to bottom: documents, plan, steps, table. Each line of
// run_row is a file of this folder.
#include "sim/study/run_study.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "policies/base/error.h"
#include "policies/unplaceable.h"
#include "profiler/profile/json_fields.h"
#include "sim/metrics/speedup.h"
#include "sim/report/text_table.h"
#include "sim/study/hardware.h"
#include "sim/study/json_object.h"
#include "sim/study/ready_row.h"
#include "sim/study/row_result.h"
#include "sim/study/row_trial.h"
#include "sim/study/simulate_plan.h"
#include "sim/study/study_html.h"
#include "sim/study/write_details.h"

namespace equipoise {
namespace {

// What is wrong with the study as a whole is an error before any row runs.
void check_before(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  check_stragglers(options.steps, study.layout.gpus());
  if (options.steps.op.contention)
    naming(study.file, [&] { return check_links(study, study.layout, inputs.profile); });
}

std::size_t baseline_of(const Study& study) {
  const auto is_baseline = [&](const PolicyRun& row) { return row.label == study.baseline; };
  const auto found = std::find_if(study.policies.begin(), study.policies.end(), is_baseline);
  return found == study.policies.end() ? 0 : static_cast<std::size_t>(found - study.policies.begin());
}

// What stands above the table.
StudyResult heading(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  StudyResult result;
  result.fidelity = options.steps.fidelity;
  if (!options.details.directory.empty()) {
    result.sources = sources_of(study, inputs, options);
    result.lengths = length_bins(inputs.documents);
  }
  result.profile = inputs.profile.name();
  result.kernels = study.framework.kernels_text_on(inputs.profile);
  const FrameworkOptions framework = study.framework.on(inputs.profile);
  if (study.model.moe && framework.expert_gemm_slowdown != 1)
    result.kernels += "; experts' GEMM x" + fixed(framework.expert_gemm_slowdown, 2) + " more";
  if (study.model.moe && framework.expert_product_seconds > 0)
    result.kernels +=
        "; " + fixed(1e6 * framework.expert_product_seconds, 1) + " us more for each expert's product";
  if (study.model.moe && study.layout.expert > 1)
    result.kernels += "; " + study.framework.routing_text_on(inputs.profile);
  result.notes = study.framework.notes_on(inputs.profile);
  if (std::string note = borrowed_network(study, study.layout, inputs.profile); !note.empty())
    result.notes.push_back(std::move(note));
  result.trace_origin = inputs.trace.origin;
  result.documents = inputs.documents.documents;
  result.tokens = inputs.documents.tokens;
  result.dropped_tokens = inputs.documents.dropped_tokens;
  result.baseline = baseline_of(study);
  return result;
}

PolicyResult after(std::vector<std::string> notes, PolicyResult row) {
  notes.insert(notes.end(), row.notes.begin(), row.notes.end());
  row.notes = std::move(notes);
  return row;
}

// A row from its entry in the file to its result. What the row's own options do not allow is its reason; a
// file that cannot be written is an error of the whole study. `alongside`: what a thread does meanwhile.
PolicyResult run_row(const Study& study, const StudyInputs& inputs, RowAhead& ahead,
                     const RunStudyOptions& options, Alongside alongside) {
  ReadyRow& ready = ahead.with_models();
  const auto run = [&] { return ready.run(study, inputs, options); };
  SimulatedPlan simulated;
  try {
    ahead.planned();
    if (!ready.no_room.empty())
      return after(ready.notes, without_room(*ready.models, std::move(ready.row), ready.no_room));
    simulated = simulate_plan(run(), ready.planned.plan, Until::all_steps, std::move(alongside));
  } catch (const UnplaceableDocument& e) {
    return not_run(std::move(ready.row), RowStatus::unplaceable, e.what());
  } catch (const UserError& e) {
    return not_run(std::move(ready.row), RowStatus::refused, e.what());
  }
  const std::string shard = simulated.shard;
  WrittenDetails written = write_details(run(), ready.planned.plan, run().rule(shard));
  PolicyResult result = describe_row(run(), std::move(ready.planned), std::move(simulated));
  if (!options.details.directory.empty()) {
    result.details =
        look_closer(run(), result, run().rule(shard), written.recorded, kOpsOfPage / study.policies.size());
    result.details.critical_path = std::move(written.critical_path);
  }
  if (!options.keep_plans) result.plan = {};
  return after(ready.notes, std::move(result));
}

// The rows of a study in turn. Where there are several threads, the next one is planned while this one is
// simulated: planning is a thread's work.
class RowsAhead {
 public:
  RowsAhead(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options)
      : study_(study), inputs_(inputs), options_(options) {}

  RowAhead& take(std::size_t row) {
    if (prepared_ != row) prepare(row, options_);
    std::swap(current_, next_);
    return current_;
  }
  // What makes the row after this one ready; empty where nothing does.
  Alongside next(std::size_t row) {
    if (options_.jobs < 2 || row + 1 == study_.policies.size()) return {};
    return [this, row] {
      RunStudyOptions alone = options_;  // the other threads are at work, and their row tells its progress
      alone.jobs = 1;
      alone.progress_of_row = nullptr;
      prepare(row + 1, alone);
    };
  }

 private:
  void prepare(std::size_t row, const RunStudyOptions& options) {
    next_.prepare(study_, inputs_, study_.policies[row], options);
    prepared_ = row;
  }

  const Study& study_;
  const StudyInputs& inputs_;
  const RunStudyOptions& options_;
  RowAhead current_, next_;
  std::size_t prepared_ = std::numeric_limits<std::size_t>::max();  // whose next_ is
};

void compare_with_baseline(const DocumentSet& documents, StudyResult& result) {
  const PolicyResult& baseline = result.policies[result.baseline];
  const Metrics reference = baseline.simulated() ? baseline.metrics : Metrics{};
  for (PolicyResult& row : result.policies)
    if (row.simulated()) compare(reference, baseline.steps, documents.batches.size(), row.steps, row.metrics);
}

}  // namespace

StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  check_before(study, inputs, options);
  StudyResult result =
      refusing_other_types(inputs.profile.origin(), [&] { return heading(study, inputs, options); });
  RowsAhead rows(study, inputs, options);
  for (std::size_t i = 0; i < study.policies.size(); ++i) {
    const PolicyRun& entry = study.policies[i];
    end_if_stopped(options);
    if (options.progress) options.progress(entry.label);
    PolicyResult row = run_row(study, inputs, rows.take(i), options, rows.next(i));
    if (row.status != RowStatus::ok && options.find_fits)
      if (const std::string change = what_would_run(study, inputs, entry, row.status, options);
          !change.empty())
        row.reason += "; " + change;
    result.policies.push_back(std::move(row));
  }
  compare_with_baseline(inputs.documents, result);
  return result;
}

StudyResult run_study(const Study& study, const RunStudyOptions& options) {
  return run_study(study, load_inputs(study), options);
}

StudyResult refused_study(const Study& study, const std::string& reason) {
  StudyResult result;
  result.profile = study.cluster.profile;
  result.baseline = baseline_of(study);
  for (const PolicyRun& row : study.policies)
    result.policies.push_back(not_run(row, RowStatus::refused, reason));
  return result;
}

}  // namespace equipoise
