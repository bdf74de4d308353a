#include "sim/cli/measured_step.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/study/anchor.h"
#include "sim/validation/compare_log.h"

namespace equipoise {
namespace {

// The mean of the simulated steps of the row, corrected by the ratio of those that the log also has. A log
// may begin and end elsewhere.
double mean_step_of_log(const std::string& path, const std::string& label, Study study,
                        const RunStudyOptions& options, Notes& notes) {
  MeasuredLog log = read_measured_log(path);
  log.ops.clear();
  keep_rows(label, study, log);
  const StudyInputs inputs = load_inputs(study);
  const SimulatedForLog simulated = simulate_for_log(study, inputs, options, false);
  const Validation found = compare_with_log(log, simulated.policies, kCudaLimits);
  notes = found.notes;
  for (Note& note : unlike_runs(log, study, inputs.profile.device().name)) notes.push_back(std::move(note));
  double predicted = 0, measured = 0, mean = 0;
  for (const PolicyPairs& row : found.policies)
    for (const StepPair& pair : row.steps)
      if (!pair.measured_seconds.empty()) {
        predicted += pair.predicted_seconds;
        measured += median(pair.measured_seconds);
      }
  if (predicted <= 0)
    throw UserError(path, ": expected measured steps of ", label, " that runs in the study, found none");
  const auto& steps = simulated.policies.front().steps;
  for (const SimulatedStep& step : steps) mean += step.seconds / static_cast<double>(steps.size());
  return mean * measured / predicted;
}

// None if the text is no number; then it names a log.
std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string anchor_assignment(const std::string& measured, const std::string& label, const Study& study,
                              const RunStudyOptions& options, Notes& notes) {
  const std::string& row = label.empty() ? study.baseline : label;
  const std::optional<double> number = number_of(measured);
  if (number && !is_step_time(*number))
    throw UserError("--measured-step: expected seconds above 0 and at most 10^7, or a log, found ",
                    printable(measured));
  const Anchor anchor = anchor_to(
      study, row, number ? *number : mean_step_of_log(measured, row, study, options, notes), options);
  return "framework.anchor=" + nlohmann::json{{"row", anchor.row},
                                              {"seconds", anchor.seconds},
                                              {"factor", anchor.factor},
                                              {"layout", anchor.layout}}
                                   .dump();
}

}  // namespace equipoise
