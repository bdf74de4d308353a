#include <cmath>
#include <sstream>

#include "policies/base/number_text.h"
#include "policies/base/utf8.h"
#include "sim/report/text_table.h"
#include "sim/validation/validation_report.h"

namespace equipoise {
namespace {

// In the unit that leaves digits before the point: "1.234 s", "12.3 ms", "4.56 us".
std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 1) return fixed(seconds, 3) + " s";
  if (seconds >= 1e-3) return fixed(1e3 * seconds, 3) + " ms";
  return fixed(1e6 * seconds, 3) + " us";
}

std::string mark(bool within_limit) {
  return within_limit ? "" : "  BEYOND";
}

std::string alone(const Errors& errors) {
  return errors.error_alone() ? signed_percent(*errors.error_alone()) : "-";
}

std::string steps_table(const ValidationFigures& figures) {
  TextTable table({"policy", "steps", "simulated", "measured", "noise +-", "error", "profile alone",
                   "mean |step error|", "worst step", "runs dropped"});
  for (const PolicyFigures& p : figures.policies)
    table.add({p.label, std::to_string(p.steps.size()), time_text(p.predicted_seconds),
               time_text(p.measured_seconds), p.noise_seconds ? time_text(*p.noise_seconds) : "-",
               signed_percent(p.errors.error()) + mark(p.within_limit), alone(p.errors),
               signed_percent(p.errors.mean_abs).substr(1),
               signed_percent(p.errors.worst) + " (" + std::to_string(p.steps[p.errors.worst_at].step) + ")",
               std::to_string(p.dropped_runs) + " of " + std::to_string(p.runs)});
  return table.text();
}

std::string place_text(const OpPair& op) {
  std::string text = op.label + ", step " + std::to_string(op.step);
  const auto add = [&](const char* what, int value) {
    if (value >= 0) text.append(", ").append(what).append(" ").append(std::to_string(value));
  };
  add("lane", op.lane);
  add("stage", op.stage);
  add("micro-batch", op.micro_batch);
  add("rank", op.rank);
  return text;
}

std::string ops_table(const ValidationFigures& figures) {
  TextTable table({"op", "count", "simulated", "measured", "error by time", "profile alone", "mean |error|",
                   "mean error", "worst", "where"});
  table.align_left(9);
  for (const OpFigures& op : figures.ops)
    table.add({op.op, grouped(op.errors.count), time_text(op.errors.predicted_seconds),
               time_text(op.errors.measured_seconds),
               signed_percent(op.errors.error()) + mark(op.within_limit), alone(op.errors),
               signed_percent(op.errors.mean_abs).substr(1), signed_percent(op.errors.mean),
               signed_percent(op.errors.worst), place_text(op.worst)});
  return table.text();
}

std::string micro_batches_table(const ValidationFigures& figures) {
  TextTable table({"micro-batch", "simulated", "measured", "error"});
  const Errors& e = figures.micro_batches;
  table.add(
      {"all " + grouped(e.count) + ": mean |error| " + signed_percent(e.mean_abs).substr(1) + ", mean error",
       time_text(e.predicted_seconds), time_text(e.measured_seconds), signed_percent(e.mean)});
  for (const MicroBatchFigures& m : figures.worst_micro_batches)
    table.add({m.label + ", step " + std::to_string(m.step) + ", lane " + std::to_string(m.lane) +
                   ", micro-batch " + std::to_string(m.micro_batch),
               time_text(m.predicted_seconds), time_text(m.measured_seconds), signed_percent(m.error())});
  return table.text();
}

std::string in_order(const std::vector<std::string>& labels) {
  std::string text;
  for (const std::string& label : labels) text.append(text.empty() ? "" : " < ").append(printable(label));
  return text;
}

std::string ranking_text(const Ranking& ranking) {
  if (ranking.measured.size() < 2) return "";
  std::ostringstream out;
  out << "Ranking by seconds per " << (ranking.per_token ? "token" : "step") << ", fastest first\n"
      << "  simulated  " << in_order(ranking.predicted) << '\n'
      << "  measured   " << in_order(ranking.measured) << '\n';
  for (const auto& [fast, slow] : ranking.ties)
    out << "  no order   " << printable(fast) << " and " << printable(slow)
        << ": measured closer than their noise\n";
  out << (ranking.same() ? "  the same order\n" : "  another order\n");
  return out.str();
}

}  // namespace

std::string validation_text(const Validation& validation, const ValidationFigures& figures) {
  std::ostringstream out;
  out << printable(validation.study) << ": simulated with profile " << printable(validation.profile)
      << ", measured on " << printable(validation.device) << '\n';
  if (!figures.policies.empty()) out << '\n' << steps_table(figures);
  if (!figures.ops.empty()) out << '\n' << ops_table(figures);
  if (figures.micro_batches.count > 0) out << '\n' << micro_batches_table(figures);
  if (const std::string ranking = ranking_text(figures.ranking); !ranking.empty()) out << '\n' << ranking;
  out << '\n';
  if (figures.unmeasured_ops > 0)
    out << "Note: " << grouped(figures.unmeasured_ops) << " ops have no measured time and are in no figure\n";
  for (const std::string& note : validation.notes) out << "Note: " << printable(note) << '\n';
  out << "An error is simulated / measured - 1; noise is half the 95% interval of the measured median\n"
      << "(below 6 repetitions half their range).\n"
      << "Limits: step " << signed_percent(validation.limits.step).substr(1) << ", op kind by time "
      << signed_percent(validation.limits.op).substr(1) << ", the same ranking.\n";
  for (const std::string& broken : figures.broken) out << "BROKEN: " << printable(broken) << '\n';
  out << (figures.passed() ? "passed\n" : "failed\n");
  return out.str();
}

}  // namespace equipoise
