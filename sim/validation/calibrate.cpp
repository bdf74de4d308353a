#include "sim/validation/calibrate.h"

#include <algorithm>

#include "policies/base/error.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/compose.h"

namespace equipoise {
namespace {

// Of the study's window: below and above, so that what is validated lies between.
constexpr double kWindows[] = {0.875, 1.125};
constexpr std::int64_t kWindowMultiple = 64;

std::int64_t window_of_share(std::int64_t window, double by) {
  const auto least = static_cast<std::int64_t>(by * static_cast<double>(window));
  return std::max<std::int64_t>(1,
                                least >= kWindowMultiple ? least / kWindowMultiple * kWindowMultiple : least);
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

}  // namespace

Calibration::Calibration(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
                         const RealRank& rank, CalibrationOptions options)
    : rank_(rank), options_(std::move(options)) {
  if (options_.steps == 0) return;
  for (const double by : kWindows) {
    const std::int64_t tokens = window_of_share(context_window, by);
    try {
      Study study = study_of(tokens);
      use_own_ranks(study);
      study.steps = std::min<std::int64_t>(study.steps, options_.steps + 1);  // one more: a policy may carry
      StudyInputs inputs = other_documents(study, trace);
      if (study.policies.empty()) continue;
      auto window = std::make_unique<Window>(Window{tokens, std::move(study), std::move(inputs), {}, {}});
      window->rows =
          real_rows(window->study, window->inputs,
                    {options_.policy, options_.steps, execution::LossNormalizer::token}, rank.floats);
      windows_.push_back(std::move(window));
    } catch (const UserError& e) {
      left_out_.push_back("no calibration in windows of " + std::to_string(tokens) + ": " + e.what());
    }
  }
}

void Calibration::run_round() {
  for (const auto& window : windows_) {
    if (options_.progress)
      options_.progress("calibration: windows of " + std::to_string(window->tokens) + " tokens");
    RealRunOptions run;
    run.check = false;
    run.warm_up = true;
    run.repetitions = 1;
    run.seed = options_.seed;
    std::vector<RealResult> results = run_real(window->study, window->rows, rank_, run);
    if (rank_.floats.rank() != 0) continue;
    if (options_.replay)
      for (std::size_t i = 0; i < results.size(); ++i) compose_steps(window->rows[i], results[i]);
    append_rounds(window->results, std::move(results));
  }
}

InStepTimes Calibration::times() const {
  Validation found;
  for (const auto& window : windows_) compare_real(window->rows, window->results, nullptr, found);
  if (options_.replay) keep_kernels(found);
  return InStepTimes(found.ops);
}

std::vector<std::string> Calibration::notes() const {
  std::vector<std::string> notes = left_out_;
  std::string windows;
  for (const auto& window : windows_)
    windows.append(windows.empty() ? "" : " and ").append(std::to_string(window->tokens));
  if (!windows.empty())
    notes.push_back(
        "simulated: the profile's times, changed as kinds of ops did inside steps of other documents in "
        "windows of " +
        windows + " (fitted there, predicted here); \"profile alone\" is without that");
  return notes;
}

}  // namespace equipoise
