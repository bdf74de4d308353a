#include "sim/validation/validation_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/screen.h"
#include "sim/report/study_table.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::ordered_json;

namespace {

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

// The place of an op, without coordinates that it does not have.
ordered_json place_json(const OpPair& op) {
  ordered_json node = {{"label", printable(op.label)}, {"step", op.step}};
  const auto add = [&](const char* key, int value) {
    if (value >= 0) node[key] = value;
  };
  add("lane", op.lane);
  add("stage", op.stage);
  add("micro_batch", op.micro_batch);
  add("rank", op.rank);
  node["predicted_seconds"] = op.predicted_seconds;
  node["measured_seconds"] =
      op.measured_seconds.empty() ? ordered_json(nullptr) : ordered_json(op.measured_seconds[0]);
  return node;
}

// Specified keys come first, then additional ones. A number that is none is written as null. `first` is what
// speed-ups are over.
ordered_json policy_json(const PolicyFigures& p, const PolicyFigures& first) {
  ordered_json steps = ordered_json::array();
  for (const MeasuredStep& step : p.steps)
    steps.push_back({{"step", step.step},
                     {"predicted_seconds", step.predicted_seconds},
                     {"measured_seconds", step.measured_seconds},
                     {"error", step.error()},
                     {"noise_seconds", or_null(step.noise_seconds)},
                     {"repetitions", step.repetitions}});
  return {{"label", printable(p.label)},
          {"predicted_seconds", p.predicted_seconds},
          {"measured_seconds", p.measured_seconds},
          {"error", p.errors.error()},
          {"error_of_profile_alone", or_null(p.errors.error_alone())},
          {"noise_seconds", or_null(p.noise_seconds)},
          {"predicted_speedup", first.predicted_rate / p.predicted_rate},
          {"measured_speedup", first.measured_rate / p.measured_rate},
          {"within_limit", p.within_limit},
          {"mean_abs_step_error", p.errors.mean_abs},
          {"mean_step_error", p.errors.mean},
          {"worst_step_error", p.errors.worst},
          {"runs", p.runs},
          {"dropped_runs", p.dropped_runs},
          {"steps", std::move(steps)}};
}

ordered_json op_json(const OpFigures& op) {
  return {{"op", printable(op.op)},
          {"count", op.errors.count},
          {"mean_abs_error", op.errors.mean_abs},
          {"mean_error", op.errors.mean},
          {"worst", op.errors.worst},
          {"worst_at", place_json(op.worst)},
          {"error", op.errors.error()},
          {"error_of_profile_alone", or_null(op.errors.error_alone())},
          {"predicted_seconds", op.errors.predicted_seconds},
          {"measured_seconds", op.errors.measured_seconds},
          {"within_limit", op.within_limit}};
}

ordered_json micro_batches_json(const ValidationFigures& figures) {
  const Errors& errors = figures.micro_batches;
  ordered_json worst = ordered_json::array();
  for (const MicroBatchFigures& m : figures.worst_micro_batches)
    worst.push_back({{"label", printable(m.label)},
                     {"step", m.step},
                     {"lane", m.lane},
                     {"micro_batch", m.micro_batch},
                     {"predicted_seconds", m.predicted_seconds},
                     {"measured_seconds", m.measured_seconds},
                     {"error", m.error()}});
  return {{"count", errors.count},
          {"mean_abs_error", errors.mean_abs},
          {"mean_error", errors.mean},
          {"worst", std::move(worst)}};
}

ordered_json labels_json(const std::vector<std::string>& labels) {
  ordered_json list = ordered_json::array();
  for (const std::string& label : labels) list.push_back(printable(label));
  return list;
}

ordered_json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  ordered_json list = ordered_json::array();
  for (const auto& [fast, slow] : pairs) list.push_back({printable(fast), printable(slow)});
  return list;
}

}  // namespace

ordered_json validation_json(const Validation& validation, const ValidationFigures& figures) {
  ordered_json policies = ordered_json::array(), ops = ordered_json::array();
  for (const PolicyFigures& p : figures.policies)
    policies.push_back(policy_json(p, figures.policies.front()));
  for (const OpFigures& op : figures.ops) ops.push_back(op_json(op));
  const Ranking& ranking = figures.ranking;
  return {{"schema", "equipoise.validation/1"},
          {"study", printable(validation.study)},
          {"device", printable(validation.device)},
          {"profile", printable(validation.profile)},
          {"policies", std::move(policies)},
          {"ops", std::move(ops)},
          {"micro_batches", micro_batches_json(figures)},
          {"ranking",
           {{"predicted", labels_json(ranking.predicted)},
            {"measured", labels_json(ranking.measured)},
            {"same", ranking.same()},
            {"by", ranking.per_token ? "seconds per token" : "seconds per step"},
            {"ties", pairs_json(ranking.ties)},
            {"swaps", pairs_json(ranking.swaps)}}},
          {"limits", {{"step", validation.limits.step}, {"op", validation.limits.op}}},
          {"unmeasured_ops", figures.unmeasured_ops},
          {"notes", nlohmann::json(validation.notes)},
          {"beyond_samples_share", validation.beyond_samples},
          {"broken", labels_json(figures.broken)},
          {"other_load", validation.other_load},
          {"judged", figures.judged()},
          {"passed", figures.passed()}};
}

namespace {

// Chooses the unit that gives digits before the point: "1.234 s", "12.3 ms", "4.56 us".
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

// Columns of a terminal that labels keep.
constexpr std::size_t kLabel = 24;

std::string steps_table(const ValidationFigures& figures, std::size_t width) {
  constexpr Expendable kOfSteps[] = {{"worst step", kLabel},
                                     {"mean |step error|", kLabel},
                                     {"runs dropped", kLabel},
                                     {"profile alone", kLabel}};

  ComparisonTable table{{"policy", "steps", "simulated", "measured", "noise +-", "error", "profile alone",
                         "mean |step error|", "worst step", "runs dropped"},
                        {}};
  for (const PolicyFigures& p : figures.policies)
    table.rows.push_back(
        {p.label, std::to_string(p.steps.size()), time_text(p.predicted_seconds),
         time_text(p.measured_seconds), p.noise_seconds ? time_text(*p.noise_seconds) : "-",
         signed_percent(p.errors.error()) + mark(p.within_limit), alone(p.errors),
         signed_percent(p.errors.mean_abs).substr(1),
         signed_percent(p.errors.worst) + " (" + std::to_string(p.steps[p.errors.worst_at].step) + ")",
         std::to_string(p.dropped_runs) + " of " + std::to_string(p.runs)});
  for (const std::string_view title : {"noise +-", "profile alone"}) drop_without_news(table, title);
  return fitted_text(std::move(table), {.width = width, .expendable = kOfSteps});
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

std::string ops_table(const ValidationFigures& figures, std::size_t width) {
  constexpr Expendable kOfOps[] = {{"where", kLabel},
                                   {"mean error", kLabel},
                                   {"mean |error|", kLabel},
                                   {"profile alone", kLabel},
                                   {"count", kLabel}};

  ComparisonTable table{{"op", "count", "simulated", "measured", "error by time", "profile alone",
                         "mean |error|", "mean error", "worst", "where"},
                        {}};
  for (const OpFigures& op : figures.ops)
    table.rows.push_back({op.op, grouped(op.errors.count), time_text(op.errors.predicted_seconds),
                          time_text(op.errors.measured_seconds),
                          signed_percent(op.errors.error()) + mark(op.within_limit), alone(op.errors),
                          signed_percent(op.errors.mean_abs).substr(1), signed_percent(op.errors.mean),
                          signed_percent(op.errors.worst), place_text(op.worst)});
  drop_without_news(table, "profile alone");
  return fitted_text(std::move(table), {.width = width, .expendable = kOfOps, .text = "where"});
}

std::string micro_batches_table(const ValidationFigures& figures, std::size_t width) {
  TextTable table({"micro-batch", "simulated", "measured", "error"});
  const Errors& e = figures.micro_batches;
  table.add(
      {"all " + grouped(e.count) + ": mean |error| " + signed_percent(e.mean_abs).substr(1) + ", mean error",
       time_text(e.predicted_seconds), time_text(e.measured_seconds), signed_percent(e.mean)});
  for (const MicroBatchFigures& m : figures.worst_micro_batches)
    table.add({m.label + ", step " + std::to_string(m.step) + ", lane " + std::to_string(m.lane) +
                   ", micro-batch " + std::to_string(m.micro_batch),
               time_text(m.predicted_seconds), time_text(m.measured_seconds), signed_percent(m.error())});
  return table.text(width);
}

std::string in_order(const std::vector<std::string>& labels) {
  return all_joined(labels, " < ", printable);
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

std::string validation_text(const Validation& validation, const ValidationFigures& figures,
                            std::size_t width) {
  constexpr std::size_t kRankingLabel = 13;
  std::string text =
      folded(printable(validation.study) + ": simulated with profile " + printable(validation.profile) +
                 ", measured on " + printable(validation.device),
             width);
  if (!figures.policies.empty()) text += '\n' + steps_table(figures, width);
  if (!figures.ops.empty()) text += '\n' + ops_table(figures, width);
  if (figures.micro_batches.count > 0) text += '\n' + micro_batches_table(figures, width);
  if (const std::string ranking = ranking_text(figures.ranking); !ranking.empty())
    text += '\n' + folded(ranking, width, kRankingLabel);
  std::ostringstream out;
  if (figures.unmeasured_ops > 0)
    out << "Note: " << counted(figures.unmeasured_ops, "op") << " without a measured time: in no figure\n";
  for (const Note& note : validation.notes) out << "Note: " << printable(text_of(note)) << '\n';
  out << "An error is simulated / measured - 1; noise is half the 95 % interval of the measured median\n"
      << "(below 6 repetitions half their range).\n"
      << "Limits: step " << signed_percent(validation.limits.step).substr(1) << ", op kind by time "
      << signed_percent(validation.limits.op).substr(1) << ", the same ranking.\n";
  for (const std::string& broken : figures.broken) out << "BROKEN: " << printable(broken) << '\n';
  out << figures.verdict() << '\n';
  return text + '\n' + folded(out.str(), width);
}

namespace {

// What a reader asks first: whether the policy to choose is the one that measuring chooses, and by how much.
std::string finding_of(const ValidationFigures& figures) {
  const auto& all = figures.policies;
  if (all.empty()) return figures.passed() ? "Every kind of op is within its limit" : "Not within the limits";
  const auto [fast, slow] = std::ranges::minmax_element(all, {}, &PolicyFigures::measured_rate);
  if (fast == slow)
    return "A mean step is simulated " + signed_percent(std::abs(fast->errors.error())).substr(1) +
           (fast->errors.error() < 0 ? " shorter" : " longer") + " than it was measured";
  return fast->label + " is simulated " + fixed(slow->predicted_rate / fast->predicted_rate, 2) +
         "x as fast as " + slow->label + " and was measured " +
         fixed(slow->measured_rate / fast->measured_rate, 2) + "x as fast";
}

// Whether the limits hold, and how far steps are off.
std::string summary_of(const ValidationFigures& figures) {
  std::string text = figures.passed()   ? "All limits hold."
                     : figures.judged() ? "Beyond its limit: " + all_joined(figures.broken, "; ") + "."
                                        : "Limits are " + figures.verdict() + ".";
  if (!figures.policies.empty()) {
    const auto far = std::ranges::max_element(
        figures.policies, {}, [](const PolicyFigures& p) { return std::abs(p.errors.error()); });
    text += " A mean step is simulated within " + signed_percent(std::abs(far->errors.error())).substr(1) +
            " of what was measured.";
  }
  if (figures.ranking.measured.size() > 1)
    text += figures.ranking.same() ? " Policies rank as they were measured."
                                   : " Policies rank otherwise than they were measured.";
  return text;
}

}  // namespace

std::string validation_html(const Validation& validation, const ValidationFigures& figures) {
  std::vector<std::string> lines = {summary_of(figures)};
  if (!figures.ops.empty()) {
    const auto far = std::ranges::max_element(
        figures.ops, {}, [](const OpFigures& op) { return std::abs(op.errors.error()); });
    const auto within = std::ranges::count(figures.ops, true, &OpFigures::within_limit);
    lines.push_back(std::to_string(within) + " of " + std::to_string(figures.ops.size()) +
                    " kinds of op are simulated within " + fixed(100 * validation.limits.op, 0) +
                    " % by time; farthest is " + far->op + " at " + signed_percent(far->errors.error()) +
                    ".");
  }
  for (const PolicyFigures& policy : figures.policies)
    lines.push_back(policy.label + ": " + signed_percent(policy.errors.error()) + " by time; single steps " +
                    fixed(100 * policy.errors.mean_abs, 1) + " % on the mean, the farthest " +
                    signed_percent(policy.errors.worst) + ".");
  const std::string setup =
      "Simulated with profile " + validation.profile + ", measured on " + validation.device;
  return html_page({validation.study, html_head(validation.study, finding_of(figures), lines, {setup})},
                   {{"schema", "equipoise.report/1"},
                    {"kind", "validation"},
                    {"validation", validation_json(validation, figures)}});
}

}  // namespace equipoise
