#include "sim/report/expectation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/html_page.h"
#include "sim/report/study_table.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr std::string_view kSchema = "equipoise.expectation/1";
constexpr double kMost = 1e300;
constexpr std::int64_t kMostCount = INT64_MAX;

constexpr std::string_view kIntervalKeys[] = {"speedup_low", "speedup_high"};

const RowFigure& figure_of(std::string_view key) {
  return std::ranges::find(result_columns(), key, &ResultColumn::key)->value;
}

Metric guarded(const PolicyResult& row, std::size_t metric) {
  return figure_of(kGuardedMetrics[metric])({row.metrics});
}

void read_metric(JsonObject& object, std::string_view key, PolicyResult& row) {
  const json* node = object.find(key);
  if (node == nullptr || node->is_null()) return;
  figure_of(key).set(row.metrics, object.number(key, 0, 0, kMost));
}

PolicyResult read_policy(const json& node, const std::string& where) {
  JsonObject object(node, where);
  PolicyResult row;
  row.run.label = object.text("label", "");
  if (row.run.label.empty()) object.fail("label", "a policy's label");
  row.status = static_cast<RowStatus>(object.choice("status", 0, kRowStatusNames));
  for (const std::string_view key : kGuardedMetrics) read_metric(object, key, row);
  for (const std::string_view key : kIntervalKeys) read_metric(object, key, row);
  object.finish();
  return row;
}

std::string problem_of(const PolicyChange& change, std::size_t metric, double tolerance) {
  if (change.found == nullptr) return "is not in the study any more";
  if (change.expected == nullptr) return "is new: not in the expectation";
  if (change.expected->status != change.found->status)
    return std::string("status was ") + name_of(change.expected->status) + " and is " +
           name_of(change.found->status);
  const std::string name(kGuardedMetrics[metric]);
  if (change.expected_value.has_value() != change.found_value.has_value())
    return change.found_value ? name + " is new: it had no value" : name + " has no value any more";
  if (!change.change || std::abs(*change.change) <= tolerance) return {};
  return name + " moved by " + fixed(100 * *change.change, 2) + " %, beyond " + fixed(100 * tolerance, 2) +
         " %";
}

std::string xml_text(const std::string& text) {
  return markup_escaped(printable(text));
}

}  // namespace

SavedResult expectation_of(const Study& study, StudyResult result) {
  return {"", nullptr, study.name, study.baseline, std::move(result)};
}

ordered_json expectation_json(const SavedResult& expectation) {
  const StudyResult& result = expectation.result;
  ordered_json policies = ordered_json::array();
  for (const PolicyResult& row : result.policies) {
    ordered_json node = {{"label", row.run.label}, {"status", name_of(row.status)}};
    const json metrics = metrics_json(row.metrics);
    for (const std::string_view key : kGuardedMetrics) node[std::string(key)] = metrics.at(key);
    for (const std::string_view key : kIntervalKeys) node[std::string(key)] = metrics.at(key);
    policies.push_back(std::move(node));
  }
  return {{"schema", kSchema},
          {"study", expectation.study},
          {"baseline", expectation.baseline},
          {"documents", result.documents},
          {"tokens", result.tokens},
          {"policies", std::move(policies)}};
}

SavedResult read_expectation(const json& file, const std::string& path) {
  JsonObject object(file, path + ": file");
  if (object.text("schema", "") != kSchema) object.fail("schema", std::string(kSchema));
  SavedResult expectation{path, file, object.text("study", ""), object.text("baseline", ""), {}};
  StudyResult& result = expectation.result;
  result.documents = object.integer("documents", 0, 0, kMostCount);
  result.tokens = object.integer("tokens", 0, 0, kMostCount);
  const json* policies = object.find("policies");
  if (policies == nullptr || !policies->is_array()) object.fail("policies", "a list");
  object.finish();
  for (std::size_t i = 0; i < policies->size(); ++i) {
    const std::string where = path + ": policies[" + std::to_string(i) + "]";
    PolicyResult row = read_policy((*policies)[i], where);
    if (row_with_label(result, row.run.label) != nullptr)
      throw UserError(where, ".label: expected each label once, found ", shown_json(row.run.label), " again");
    result.policies.push_back(std::move(row));
  }
  return expectation;
}

std::vector<PolicyChange> changes_between(const SavedResult& expected, const SavedResult& found,
                                          std::size_t metric, double tolerance, bool only_worse) {
  std::vector<PolicyChange> changes;
  const auto add = [&](const PolicyResult* before, const PolicyResult* now) {
    PolicyChange& change = changes.emplace_back();
    change.label = (before != nullptr ? before : now)->run.label;
    change.expected = before;
    change.found = now;
    change.metric = metric;
    if (before != nullptr) change.expected_value = guarded(*before, metric);
    if (now != nullptr) change.found_value = guarded(*now, metric);
    if (change.expected_value && change.found_value) {
      const bool same = *change.found_value == *change.expected_value;
      change.change = same ? 0 : *change.found_value / *change.expected_value - 1;  // from 0: infinite
    }
    change.problem = problem_of(change, metric, tolerance);
    const bool better = change.change && (*change.change > 0) == kMoreIsBetter[metric];
    const bool same_status = before != nullptr && now != nullptr && before->status == now->status;
    if (only_worse && better && same_status) std::swap(change.problem, change.gain);
  };
  for (const PolicyResult& row : expected.result.policies)
    add(&row, row_with_label(found.result, row.run.label));
  for (const PolicyResult& row : found.result.policies)
    if (row_with_label(expected.result, row.run.label) == nullptr) add(nullptr, &row);
  return changes;
}

std::vector<std::string> other_changes(const SavedResult& expected, const SavedResult& found) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const std::string& before, const std::string& now) {
    if (before != now) lines.push_back(std::string(what) + ": expected " + before + ", found " + now);
  };
  compare("study", shown_json(expected.study), shown_json(found.study));
  compare("baseline", shown_json(expected.baseline), shown_json(found.baseline));
  compare("documents", grouped(expected.result.documents), grouped(found.result.documents));
  compare("tokens", grouped(expected.result.tokens), grouped(found.result.tokens));
  return lines;
}

std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases) {
  const auto failures = std::ranges::count_if(cases, [](const JunitCase& c) { return !c.failure.empty(); });
  std::string xml =
      concatenated("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"", xml_text(suite),
                   "\" tests=\"", cases.size(), "\" failures=\"", failures, "\">\n");
  for (const JunitCase& c : cases) {
    xml += "  <testcase classname=\"" + xml_text(suite) + "\" name=\"" + xml_text(c.name) + "\"";
    if (c.failure.empty())
      xml += "/>\n";
    else
      xml += "><failure message=\"" + xml_text(c.failure) + "\"/></testcase>\n";
  }
  return xml + "</testsuite>\n";
}

}  // namespace equipoise
