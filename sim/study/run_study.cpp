// A study from its inputs to its results, top to bottom: the faults of the whole study, the head of its
// table, its rows (row/pipeline.h), and their speed-ups.
#include "sim/study/run_study.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/study/row/details.h"
#include "sim/study/row/judge.h"
#include "sim/study/row/pipeline.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

// Each row has its own files; two with one name would overwrite each other.
void check_file_names(const Study& study) {
  std::map<std::string, std::string> labels;  // by file name
  for (const PolicyRun& row : study.policies) {
    const auto [other, is_new] = labels.emplace(file_name(row.label), row.label);
    if (!is_new)
      throw UserError(
          study.file, ": policies: expected labels that differ in more than spaces, slashes and _ ",
          "where files are written for each, found \"", other->second, "\" and \"", row.label, "\"");
  }
}

// A fault of the study as a whole is an error before any row runs.
void check_before(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  const std::int64_t gpus = study.layout.gpus();
  check_stragglers(options.steps, gpus);
  if (!options.details.directory.empty()) check_file_names(study);
  if (options.steps.op.contention) check_links(study.cluster, gpus, inputs.profile, study.file);
}

std::size_t baseline_of(const Study& study) {
  const auto is_baseline = [&](const PolicyRun& row) { return row.label == study.baseline; };
  const auto found = std::find_if(study.policies.begin(), study.policies.end(), is_baseline);
  return found == study.policies.end() ? 0 : static_cast<std::size_t>(found - study.policies.begin());
}

// Mixers whose kernels are modelled, as StepFamily names them.
std::string modelled_mixers(const ModelShape& model) {
  if (model.recurrence) return "linear recurrences";
  return model.indexer ? "an indexer" : "";
}

// Fills in the head of the table.
StudyResult heading(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  StudyResult result;
  result.fidelity = options.steps.fidelity;
  result.max_delay = options.max_delay.value_or(study.max_delay);
  result.tokens_of_job = options.tokens_of_job;
  if (!options.details.directory.empty()) {
    result.sources = sources_of(study, inputs, options);
    result.lengths = length_bins(inputs.documents);
  }
  result.profile = inputs.profile.name();
  result.kernels = study.framework.kernel_notes_on(inputs.profile, study.layout.precision);
  result.mfu_peak = peak_note(study.layout, inputs.profile.device());
  result.slowdowns = study.framework.rule_on(inputs.profile);
  result.family = {
      study.framework.preset.name,  study.model.moe.has_value(), study.model.training.lora_dim > 0,
      inputs.profile.device().name, study.layout.precision,      modelled_mixers(study.model)};
  result.expected_error = study.framework.error_of(result.family, study.layout, inputs.profile);
  if (!result.expected_error)
    result.kernel_errors = study.framework.kernel_errors_on(inputs.profile, study.cluster.network.name);
  const FrameworkOptions framework = study.framework.on(inputs.profile, study.layout.precision);
  if (study.model.moe && framework.expert_gemm_slowdown != 1)
    result.kernels.push_back({"experts_slower", "", {{"slowdown", framework.expert_gemm_slowdown}}});
  if (study.model.moe && framework.product_seconds() > 0)
    result.kernels.push_back({"expert_product_takes", "", {{"us", 1e6 * framework.product_seconds()}}});
  if (study.model.moe && study.layout.expert > 1)
    result.kernels.push_back(study.framework.routing_note_on(inputs.profile));
  result.notes = study.framework.notes_on(inputs.profile);
  if (const auto& anchor = study.framework.anchor)
    result.notes.push_back(
        {"anchored", anchor->row, {{"seconds", anchor->seconds}, {"factor", anchor->factor}}});
  for (Note& note : unlikely_cluster(study.cluster, study.layout, inputs.profile))
    result.notes.push_back(std::move(note));
  add(result.notes, cut_note(inputs.documents, study.batch, "batch.max_length"));
  const std::int64_t recorded = std::ssize(inputs.trace.lengths), read = inputs.documents.documents;
  if (read > recorded)
    result.notes.push_back(
        {"documents_repeated",
         "",
         {{"documents", recorded}, {"times", static_cast<double>(read) / static_cast<double>(recorded)}}});
  result.network_note = borrowed_network(study.cluster, study.layout.gpus(), inputs.profile);
  result.trace_origin = inputs.trace.origin;
  result.documents = inputs.documents.documents;
  result.tokens = inputs.documents.tokens;
  result.dropped_tokens = inputs.documents.dropped_tokens;
  result.baseline = baseline_of(study);
  return result;
}

struct RowsThatRan {
  std::vector<PolicyResult> rows;
  std::size_t unfinished = 0;
};

// Runs all rows. The next may start before one has ended if rows_at_a_time allows it. Throws Interrupted only
// if no row has finished or none is to be kept.
RowsThatRan run_rows(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  RowsThatRan ran{std::vector<PolicyResult>(study.policies.size())};
  std::atomic<std::size_t> unfinished = 0;
  const int at_a_time = rows_at_a_time(study, options);
  Cores cores(std::max(1, options.jobs));
  std::mutex progress;
  parallel_for(at_a_time, ran.rows.size(), [&](int, std::size_t i) {
    Cores::Row row(cores, i);
    RunStudyOptions of_row = options;
    of_row.row = &row;
    of_row.details.most_ops = kOpsOfPage / ran.rows.size();
    try {
      end_if_stopped(of_row);
      if (options.progress) {
        const std::lock_guard lock(progress);
        options.progress(study.policies[i].label);
      }
      ran.rows[i] = run_row(study, inputs, study.policies[i], of_row);
      if (options.row_done) {
        const std::lock_guard lock(progress);
        options.row_done(ran.rows[i]);
      }
    } catch (const Interrupted&) {
      if (!options.keep_finished || row.is_in_vain()) throw;
      ran.rows[i] = not_run(study.policies[i], RowStatus::refused, {"interrupted_row", "", {}});
      ++unfinished;
    } catch (...) {
      row.fail();
      throw;
    }
  });
  ran.unfinished = unfinished;
  if (ran.unfinished == ran.rows.size()) throw Interrupted();
  return ran;
}

void compare_with_baseline(const DocumentSet& documents, StudyResult& result) {
  result.batches = documents.batches.size();
  const PolicyResult& baseline = result.policies[result.baseline];
  const Metrics reference = baseline.simulated() ? baseline.metrics : Metrics{};
  for (PolicyResult& row : result.policies)
    if (row.simulated())
      static_cast<SpeedUp&>(row.metrics) =
          speed_up({row.metrics, row.steps}, {reference, baseline.steps}, result.batches);
}

}  // namespace

int rows_at_a_time(const Study& study, const RunStudyOptions& options) {
  const bool op = options.steps.fidelity == Fidelity::op;
  const bool threads_in_steps =
      options.steps.op.contention ||
      (op && threads_of_step(options.jobs, static_cast<std::size_t>(study.steps)) > 1);
  return options.jobs > 1 && study.policies.size() > 1 && !threads_in_steps && !options.rows_in_turn ? 2 : 1;
}

StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  check_before(study, inputs, options);
  RowsThatRan ran = run_rows(study, inputs, options);
  StudyResult result = study_of_rows(study, inputs, options, std::move(ran.rows));
  result.incomplete = ran.unfinished > 0;
  return result;
}

StudyResult study_of_rows(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                          std::vector<PolicyResult> rows) {
  StudyResult result =
      refusing_other_types(inputs.profile.origin(), [&] { return heading(study, inputs, options); });
  result.policies = std::move(rows);
  for (PolicyResult& row : result.policies) row.metrics.gpus = static_cast<double>(study.layout.gpus());
  compare_with_baseline(inputs.documents, result);
  if (!result.expected_error || !result.expected_error->step) return result;
  for (PolicyResult& row : result.policies)
    if (row.metrics.step_seconds) {
      row.metrics.expected_error_low = result.expected_error->step->low;
      row.metrics.expected_error_high = result.expected_error->step->high;
    }
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
    result.policies.push_back(not_run(row, RowStatus::refused, fault_note(reason)));
  const std::int64_t stated = study.cluster.gpus;
  for (PolicyResult& row : result.policies)
    row.metrics.gpus = static_cast<double>(stated > 0 ? stated : study.layout.gpus());
  return result;
}

}  // namespace equipoise
