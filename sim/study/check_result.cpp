#include "sim/study/check_result.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/metrics/metrics.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

constexpr double kFidelitiesAgree = 0.001;  // bound for makespans (specs/5), which agree to the picosecond

bool same(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

// Sums the row's steps again. Returns what is wrong in its table, or nothing.
std::string wrong_sum(const PolicyResult& row, const PolicyResult& baseline, std::int64_t gpus) {
  const Metrics& m = row.metrics;
  double seconds = 0, full = 0;
  int full_steps = 0;
  for (const StepFigures& figures : row.steps) {
    const double step = to_seconds(figures.times.makespan);
    seconds += step;
    if (figures.plan.tail) continue;
    full += step;
    ++full_steps;
  }
  if (!same(seconds, m.seconds)) return "total_seconds is not the sum of its steps";
  if (full_steps > 0 && m.step_seconds && !same(full / full_steps, *m.step_seconds))
    return "step_seconds is not the mean of its full steps";
  if (m.tokens_per_second_per_gpu &&
      !same(m.tokens / seconds / static_cast<double>(gpus), *m.tokens_per_second_per_gpu))
    return "tokens_per_second_per_gpu is not tokens / (seconds x GPUs)";
  const Metrics& b = baseline.metrics;
  if (m.speedup && !same(b.seconds / b.tokens / (m.seconds / m.tokens), *m.speedup))
    return "speedup is not the ratio of seconds a token";
  if (row.status == RowStatus::ok && row.peak.parts.total() > row.capacity_bytes)
    return "its memory is above the GPU's, and it is not out of memory";
  return "";
}

// Compares the times with those of the engine of the other fidelity, which shares no event loop.
std::string wrong_time(const PolicyResult& row, const PolicyResult& other) {
  if (row.steps.size() != other.steps.size()) return "the other fidelity has another number of steps";
  for (std::size_t s = 0; s < row.steps.size(); ++s) {
    const double a = to_seconds(row.steps[s].times.makespan), b = to_seconds(other.steps[s].times.makespan);
    if (std::abs(a - b) > kFidelitiesAgree * std::max(a, b))
      return "step " + std::to_string(s) + " takes " + short_number(a) + " s and at the other fidelity " +
             short_number(b) + " s";
  }
  return "";
}

using StepChecks = std::map<std::string, std::vector<Check>>;  // by row

// A RunStudyOptions::check_step that fills `checks`.
std::function<void(const std::string&, const StepToCheck&)> checked_into(StepChecks& checks) {
  return
      [&checks, several = std::make_shared<std::mutex>()](const std::string& label, const StepToCheck& step) {
        const std::scoped_lock one_at_a_time(*several);  // one at a time, because each check takes memory
        checks[label] = check_step(step);
      };
}

}  // namespace

CheckedResult run_checked(Study study, const StudyInputs& inputs, RunStudyOptions options) {
  if (!options.verify) return {run_study(study, inputs, options), {}};
  for (PolicyRun& row : study.policies) row.pack.verify = true;
  StepChecks of_steps;
  options.check_step = checked_into(of_steps);
  CheckedResult checked{run_study(study, inputs, options), {}};
  std::optional<StudyResult> other;
  if (options.steps.op.is_plain()) {
    options.steps.fidelity = options.steps.fidelity == Fidelity::stage ? Fidelity::op : Fidelity::stage;
    options.details = {};
    options.find_fits = false;
    options.check_step = nullptr;
    options.verify = false;
    other = run_study(study, inputs, options);
  }
  const std::vector<PolicyResult>& rows = checked.result.policies;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].simulated()) continue;
    const std::string row = rows[r].run.label + ": ";
    const auto add = [&](const char* what, std::string fault) {
      checked.checks.push_back({row + what, fault.empty(), std::move(fault)});
    };
    add("plan, by the validator", "");  // it throws
    if (other) add("times, by the engine of the other fidelity", wrong_time(rows[r], other->policies[r]));
    for (const Check& check : of_steps[rows[r].run.label])
      checked.checks.push_back({row + check.what, check.holds, check.found});
    add("table, by the sums of its steps",
        wrong_sum(rows[r], rows[checked.result.baseline], study.layout.gpus()));
  }
  return checked;
}

}  // namespace equipoise
