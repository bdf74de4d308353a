#include "sim/study/anchor.h"

#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/report/words/words.h"
#include "sim/study/row/pipeline.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

const PolicyRun& row_of(const Study& study, const std::string& label) {
  const std::string& wanted = label.empty() ? study.baseline : label;
  for (const PolicyRun& row : study.policies)
    if (row.label == wanted) return row;
  throw UserError("--row: expected the label of a row, one of ",
                  all_joined(study.policies, ", ", &PolicyRun::label), ", found ", printable(wanted));
}

}  // namespace

Anchor anchor_to(const Study& study, const std::string& label, double seconds,
                 const RunStudyOptions& options) {
  const PolicyRun& entry = row_of(study, label);
  const StudyInputs inputs = load_inputs(study);
  RunStudyOptions trial = trial_options(options);
  trial.find_fits = false;
  Study tried = study;
  const auto step_seconds = [&](double factor) {
    tried.framework.anchor = Anchor{entry.label, seconds, factor, degrees_text(study.layout)};
    const PolicyResult row = run_row(tried, inputs, entry, trial);
    if (row.status != RowStatus::ok || !row.metrics.step_seconds)
      throw UserError("--measured-step: expected a row that runs, found ", entry.label, ": ",
                      reason_text(row.reasons));
    return *row.metrics.step_seconds;
  };
  const auto error = [&](double log_factor) {
    return std::log(step_seconds(std::exp(log_factor)) / seconds);
  };
  const double low = std::log(kLeastAnchor), high = std::log(kMostAnchor);
  const double at_low = error(low), at_high = error(high);
  if (at_low > 0 || at_high < 0)
    throw UserError("--measured-step: expected what ", entry.label, " takes with kernels ",
                    short_number(kLeastAnchor), " to ", short_number(kMostAnchor), " times as slow, ",
                    short_number(seconds * std::exp(at_low)), " to ",
                    short_number(seconds * std::exp(at_high)), " s, found ", short_number(seconds), " s");
  std::uintmax_t most_tries = 30;
  const auto close_enough = [](double a, double b) { return std::abs(a - b) < 1e-6; };
  const auto [below, above] =
      boost::math::tools::toms748_solve(error, low, high, at_low, at_high, close_enough, most_tries);
  const double factor = std::exp((below + above) / 2);
  return {entry.label, seconds, std::round(factor * 1e6) / 1e6, degrees_text(study.layout)};
}

}  // namespace equipoise
