#include "sim/cli/command_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/report/expectation.h"
#include "sim/report/text_table.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

using nlohmann::ordered_json;

// Reads "0.5%" or "0.005" as a share.
double share_of(const std::string& text) {
  const bool percent = !text.empty() && text.back() == '%';
  const char* end = text.data() + text.size() - (percent ? 1 : 0);
  double value = 0;
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(value) || value < 0)
    throw UserError("--tolerance: expected a share such as 0.5% or 0.005, found ", text);
  const double share = percent ? value / 100 : value;
  if (share > 1)
    throw UserError("--tolerance: expected a share up to 1 such as 0.5% or 0.005, found ", text,
                    (percent ? "" : "; " + text + " % is " + text + "% or " + short_number(value / 100)));
  return share;
}

struct Guard {
  std::size_t metric = 0;
  double tolerance = 0;
};

std::vector<Guard> guards_of(const CheckOptions& options) {
  const std::size_t given = options.tolerances.size();
  if (given > 1 && given != options.metrics.size())
    throw UserError("--tolerance: expected one share, or one for each of ", options.metrics.size(),
                    " metrics, found ", given);
  std::vector<Guard> guards;
  for (std::size_t i = 0; i < options.metrics.size(); ++i) {
    const std::size_t metric = choice_of(options.metrics[i], "--metric", kGuardedMetrics);
    guards.push_back(
        {metric, given == 0 ? kGuardedTolerances[metric] : share_of(options.tolerances[given == 1 ? 0 : i])});
  }
  return guards;
}

// The changes by metric. A policy's own problem (status, gone, new) is told with its first metric.
std::vector<PolicyChange> changes_of(const SavedResult& expected, const SavedResult& found,
                                     const std::vector<Guard>& guards, bool only_worse) {
  std::vector<PolicyChange> all;
  for (const Guard& guard : guards)
    for (PolicyChange& change : changes_between(expected, found, guard.metric, guard.tolerance, only_worse)) {
      const bool compared = change.expected != nullptr && change.found != nullptr &&
                            change.expected->status == change.found->status;
      if (guard.metric == guards.front().metric ||
          (compared && (change.expected_value || change.found_value)))
        all.push_back(std::move(change));
    }
  return all;
}

// The expectation in the file; nothing if --update is to make the file.
std::optional<SavedResult> expected_of(const CheckOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.expect, ignored)) {
    if (options.update) return std::nullopt;
    throw UserError("--expect ", options.expect, ": no such file; --update makes it");
  }
  return read_expectation(read_json_file(options.expect), options.expect);
}

std::string value_text(const std::optional<double>& value) {
  return value ? fixed(*value, 4) : "-";
}
std::string interval_of_speedup(const PolicyResult* policy) {
  if (policy == nullptr || !policy->metrics.speedup_low || !policy->metrics.speedup_high) return "-";
  return fixed(*policy->metrics.speedup_low, 3) + " .. " + fixed(*policy->metrics.speedup_high, 3);
}
std::string metric_of(const PolicyChange& change) {
  return std::string(kGuardedMetrics[change.metric]);
}

// The row already has the metric's name.
std::string verdict(const PolicyChange& change) {
  if (!change.moved() && change.gain.empty()) return "as expected";
  const std::string& text = change.moved() ? change.problem : change.gain;
  const std::string named = metric_of(change) + " moved";
  return (change.moved() ? "MOVED" : "better") +
         (text.starts_with(named) ? text.substr(named.size()) : ": " + text);
}

std::string changes_table(const std::vector<PolicyChange>& changes) {
  TextTable table({"policy", "metric", "expected", "found", "change", "speed-up's interval", ""});
  for (const std::size_t left : {1U, 6U}) table.align_left(left);
  for (const PolicyChange& c : changes)
    table.add({c.label, metric_of(c), value_text(c.expected_value), value_text(c.found_value),
               c.change ? fixed(100 * *c.change, 3) + " %" : "-",
               c.metric == 0 ? interval_of_speedup(c.found) : "-", verdict(c)});
  return table.text(screen_width());
}

ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}
ordered_json status_or_null(const PolicyResult* policy) {
  return policy == nullptr ? ordered_json(nullptr) : ordered_json(name_of(policy->status));
}

ordered_json changes_json(const std::vector<PolicyChange>& changes, const SavedResult& found,
                          const std::vector<Guard>& guards, bool passed) {
  ordered_json policies = ordered_json::array(), tolerances = ordered_json::object();
  for (const Guard& guard : guards) tolerances[std::string(kGuardedMetrics[guard.metric])] = guard.tolerance;
  for (const PolicyChange& c : changes)
    policies.push_back({{"label", printable(c.label)},
                        {"metric", metric_of(c)},
                        {"expected", number_or_null(c.expected_value)},
                        {"found", number_or_null(c.found_value)},
                        {"change", number_or_null(c.change)},
                        {"expected_status", status_or_null(c.expected)},
                        {"status", status_or_null(c.found)},
                        {"moved", c.moved()},
                        {"problem", c.problem.empty() ? ordered_json(nullptr) : ordered_json(c.problem)},
                        {"gain", c.gain.empty() ? ordered_json(nullptr) : ordered_json(c.gain)}});
  return {{"schema", "equipoise.check/1"},
          {"study", printable(found.study)},
          {"tolerances", std::move(tolerances)},
          {"policies", std::move(policies)},
          {"passed", passed}};
}

std::string changes_csv(const std::vector<PolicyChange>& changes) {
  const auto cell = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value).dump() : std::string();
  };
  std::string text = "policy,metric,expected,found,change,moved,problem\n";
  for (const PolicyChange& c : changes)
    text += csv_cell(c.label) + "," + metric_of(c) + "," + cell(c.expected_value) + "," +
            cell(c.found_value) + "," + cell(c.change) + "," + (c.moved() ? "true" : "false") + "," +
            csv_cell(c.problem) + "\n";
  return text;
}

// With --update both are written, and the second would replace the first.
void require_two_files(const CheckOptions& options) {
  if (options.update && !options.junit.empty() &&
      std::filesystem::weakly_canonical(options.junit) == std::filesystem::weakly_canonical(options.expect))
    throw UserError("--junit: expected another file than --expect's, found ", options.junit);
}

void write_junit(const std::string& path, const SavedResult& found,
                 const std::vector<PolicyChange>& changes) {
  std::vector<JunitCase> cases;
  for (const PolicyChange& c : changes) cases.push_back({c.label + ": " + metric_of(c), c.problem});
  write_file_atomically(path, junit_xml("equipoise check: " + found.study, cases));
}

// Rows whose speed-up an expectation cannot guard, since they or the baseline have no time.
void warn_of_unguarded(const SavedResult& expectation, std::ostream& log) {
  for (const PolicyResult& row : expectation.result.policies)
    if (!row.metrics.speedup)
      log << "warning: " << printable(row.run.label) << " (" << name_of(row.status)
          << ") has no speed-up over " << printable(expectation.baseline) << ", so none is guarded\n";
}

}  // namespace

int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  require_two_files(options);
  const std::vector<Guard> guards = guards_of(options);
  const std::optional<SavedResult> before = expected_of(options);
  const Study study = possible_study(options.file, options.set);
  const SavedResult found = expectation_of(study, run_within(options, study, stop));
  const SavedResult& expected = before ? *before : found;
  const std::vector<PolicyChange> changes = changes_of(expected, found, guards, options.only_worse);
  const bool same = std::ranges::none_of(changes, [](const PolicyChange& change) { return change.moved(); });
  if (!options.quiet && before)
    for (const std::string& line : other_changes(*before, found)) log << "note: " << printable(line) << '\n';
  if (!options.junit.empty()) write_junit(options.junit, found, changes);
  if (options.update) {
    forget_input(options.expect);
    write_file_atomically(options.expect, expectation_json(found).dump(1) + "\n");
    warn_of_unguarded(found, log);
  }
  const bool passed = same || options.update;
  if (options.format == Format::json)
    out << changes_json(changes, found, guards, passed).dump(2) << '\n';
  else if (options.format == Format::csv)
    out << changes_csv(changes);
  else
    out << changes_table(changes);
  if (options.format == Format::table) {
    if (options.update)
      out << options.expect << (before ? ": updated\n" : ": made\n");
    else
      out << (same ? "passed" : "failed: what moved on purpose is accepted with --update") << '\n';
  }
  return passed ? 0 : 1;
}

}  // namespace equipoise
