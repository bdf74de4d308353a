#include "sim/validation/calibrate.h"

#include <algorithm>

#include "policies/base/error.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/compose.h"

namespace equipoise {
namespace {

// Of the study's window: below and above, so that what is validated lies between.
constexpr double kWindows[] = {0.75, 1.25};
constexpr std::int64_t kWindowMultiple = 64;

std::int64_t window_of_share(std::int64_t window, double by) {
  const auto least = static_cast<std::int64_t>(by * static_cast<double>(window));
  return std::max<std::int64_t>(1, least >= kWindowMultiple ? least / kWindowMultiple * kWindowMultiple : least);
}

// Documents from the end of the trace, drawn by another seed; rows with a plan of their own have none here.
StudyInputs other_documents(Study& study, const Trace& trace) {
  std::erase_if(study.policies, [](const PolicyRun& row) { return row.has_plan_file(); });
  study.batch.seed += 1;
  for (PolicyRun& row : study.policies) row.pack.seed += 1;
  Trace reversed = trace;
  std::reverse(reversed.lengths.begin(), reversed.lengths.end());
  DocumentSet documents = documents_of(study, reversed);
  return {Profile::load(study.cluster.profile), std::move(reversed), std::move(documents), {}};
}

void run_window(const StudyOfWindow& study_of, std::int64_t window, const Trace& trace, const RealRank& rank,
                const CalibrationOptions& options, Validation& found) {
  Study study = study_of(window);
  use_own_ranks(study);
  study.steps = std::min<std::int64_t>(study.steps, options.steps + 1);  // one more: a policy may carry
  const StudyInputs inputs = other_documents(study, trace);
  if (study.policies.empty()) return;
  const std::vector<RealRow> rows = real_rows(
      study, inputs, {options.policy, options.steps, execution::LossNormalizer::token}, rank.floats);
  RealRunOptions run;
  run.check = false;
  run.warm_up = true;
  run.repetitions = 1;
  run.seed = options.seed;
  std::vector<RealResult> results = run_real(study, rows, rank, run);
  if (rank.floats.rank() != 0) return;
  if (options.replay)
    for (std::size_t i = 0; i < rows.size(); ++i) compose_steps(rows[i], results[i]);
  compare_real(rows, results, nullptr, found);
}

}  // namespace

Calibration calibrate(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
                      const RealRank& rank, const CalibrationOptions& options) {
  Calibration calibration;
  if (options.steps == 0) return calibration;
  Validation found;
  std::string windows;
  for (const double by : kWindows) {
    const std::int64_t window = window_of_share(context_window, by);
    if (options.progress) options.progress("calibration: windows of " + std::to_string(window));
    try {
      run_window(study_of, window, trace, rank, options, found);
      windows += (windows.empty() ? "" : " and ") + std::to_string(window);
    } catch (const UserError& e) {
      calibration.notes.push_back("no calibration in windows of " + std::to_string(window) + ": " + e.what());
    }
  }
  if (options.replay) keep_kernels(found);
  calibration.times = InStepTimes(found.ops);
  if (!calibration.times.empty())
    calibration.notes.push_back(
        "simulated: the profile's times, changed as kinds of ops did inside steps of other documents in windows of " +
        windows + " (fitted there, predicted here); \"profile alone\" is without that");
  return calibration;
}

}  // namespace equipoise
