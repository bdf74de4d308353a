// `equipoise check`.
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
#include "sim/cli/study_commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/expectation.h"
#include "sim/report/text_table.h"
#include "sim/study/planned_memory.h"
#include "sim/study/run_study.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

using nlohmann::ordered_json;

// "0.5%" or "0.005", as a share.
double share_of(const std::string& text) {
  const bool percent = !text.empty() && text.back() == '%';
  const char* end = text.data() + text.size() - (percent ? 1 : 0);
  double value = 0;
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(value) || value < 0)
    throw UserError("--tolerance: expected a share such as 0.5% or 0.005, found " + text);
  return percent ? value / 100 : value;
}

// The expectation of the file; nothing where --update is to make the file.
std::optional<Expectation> expected_of(const CheckOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.expect, ignored)) {
    if (options.update) return std::nullopt;
    throw UserError("--expect " + options.expect + ": no such file; --update makes it");
  }
  return read_expectation(read_json_file(options.expect), options.expect);
}

StudyResult run_checked(const Study& study, const CheckOptions& options, const std::atomic<bool>& stop) {
  RunStudyOptions run;
  run.jobs = threads_of(options.jobs);
  run.stop = &stop;
  const StudyInputs inputs = load_inputs(study);
  check_planned_run(study, inputs, run, memory_limit(options.max_memory_GB), kDefaultOutputGB);
  return run_study(study, inputs, run);
}

std::string value_text(const std::optional<double>& value) {
  return value ? fixed(*value, 4) : "-";
}
std::string interval_of_speedup(const ExpectedPolicy* policy) {
  if (policy == nullptr || !policy->speedup_low || !policy->speedup_high) return "-";
  return fixed(*policy->speedup_low, 3) + " .. " + fixed(*policy->speedup_high, 3);
}
std::string verdict(const PolicyChange& change) {
  return change.moved() ? "MOVED: " + change.problem : "as expected";
}

std::string changes_table(const std::vector<PolicyChange>& changes, const std::string& metric) {
  TextTable table({"policy", "expected " + metric, "found", "change", "speed-up's interval", ""});
  table.align_left(5);
  for (const PolicyChange& c : changes)
    table.add({c.label, value_text(c.expected_value), value_text(c.found_value),
               c.change ? fixed(100 * *c.change, 3) + " %" : "-", interval_of_speedup(c.found), verdict(c)});
  return table.text();
}

ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}
ordered_json status_or_null(const ExpectedPolicy* policy) {
  return policy == nullptr ? ordered_json(nullptr) : ordered_json(name_of(policy->status));
}

ordered_json changes_json(const std::vector<PolicyChange>& changes, const Expectation& found,
                          const std::string& metric, double tolerance, bool passed) {
  ordered_json policies = ordered_json::array();
  for (const PolicyChange& c : changes)
    policies.push_back({{"label", printable(c.label)},
                        {"expected", number_or_null(c.expected_value)},
                        {"found", number_or_null(c.found_value)},
                        {"change", number_or_null(c.change)},
                        {"expected_status", status_or_null(c.expected)},
                        {"status", status_or_null(c.found)},
                        {"moved", c.moved()},
                        {"problem", c.problem.empty() ? ordered_json(nullptr) : ordered_json(c.problem)}});
  return {{"schema", "equipoise.check/1"}, {"study", printable(found.study)}, {"metric", metric},
          {"tolerance", tolerance},        {"policies", std::move(policies)}, {"passed", passed}};
}

std::string changes_csv(const std::vector<PolicyChange>& changes) {
  const auto cell = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value).dump() : std::string();
  };
  std::string text = "policy,expected,found,change,moved,problem\n";
  for (const PolicyChange& c : changes)
    text += csv_cell(c.label) + "," + cell(c.expected_value) + "," + cell(c.found_value) + "," +
            cell(c.change) + "," + (c.moved() ? "true" : "false") + "," + csv_cell(c.problem) + "\n";
  return text;
}

void write_junit(const std::string& path, const Expectation& found,
                 const std::vector<PolicyChange>& changes) {
  std::vector<JunitCase> cases;
  for (const PolicyChange& c : changes) cases.push_back({c.label, c.problem});
  write_file_atomically(path, junit_xml("equipoise check: " + found.study, cases));
}

}  // namespace

int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  const std::size_t metric = choice_of(options.metric, "--metric", kGuardedMetrics);
  const double tolerance = share_of(options.tolerance);
  const std::optional<Expectation> before = expected_of(options);
  const Study study = read_study(options.file, options.set);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  Expectation found;
  try {
    found = expectation_of(study, run_checked(study, options, stop));
  } catch (const Interrupted&) {
    log << "interrupted\n";
    return kInterrupted;
  }
  const Expectation& expected = before ? *before : found;
  const std::vector<PolicyChange> changes = changes_between(expected, found, metric, tolerance);
  const bool same =
      std::none_of(changes.begin(), changes.end(), [](const PolicyChange& change) { return change.moved(); });
  if (!options.quiet && before)
    for (const std::string& line : other_changes(*before, found)) log << "note: " << printable(line) << '\n';
  if (!options.junit.empty()) write_junit(options.junit, found, changes);
  if (options.update) write_file_atomically(options.expect, to_json(found).dump(1) + "\n");
  const bool passed = same || options.update;
  if (options.format == Format::json)
    out << changes_json(changes, found, options.metric, tolerance, passed).dump(2) << '\n';
  else if (options.format == Format::csv)
    out << changes_csv(changes);
  else
    out << changes_table(changes, options.metric);
  if (options.format == Format::table) {
    if (options.update)
      out << options.expect << (before ? ": updated\n" : ": made\n");
    else
      out << (same ? "passed" : "failed: what moved on purpose is accepted with --update") << '\n';
  }
  return passed ? 0 : 1;
}

}  // namespace equipoise
