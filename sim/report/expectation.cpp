#include "sim/report/expectation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr std::string_view kSchema = "equipoise.expectation/1";
constexpr std::string_view kStatuses[] = {"ok", "oom", "unplaceable", "refused"};
constexpr double kMost = 1e300;
constexpr std::int64_t kMostCount = INT64_MAX;

ordered_json value(const std::optional<double>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}

std::optional<double> metric_of(JsonObject& object, std::string_view key) {
  const json* node = object.find(key);
  if (node == nullptr || node->is_null()) return std::nullopt;
  return object.number(key, 0, 0, kMost);
}

ExpectedPolicy read_policy(const json& node, const std::string& where) {
  JsonObject object(node, where);
  ExpectedPolicy policy;
  policy.label = object.text("label", "");
  if (policy.label.empty()) object.fail("label", "a policy's label");
  policy.status = static_cast<RowStatus>(object.choice("status", 0, kStatuses));
  for (std::size_t m = 0; m < kGuarded; ++m) policy.metrics[m] = metric_of(object, kGuardedMetrics[m]);
  policy.speedup_low = metric_of(object, "speedup_low");
  policy.speedup_high = metric_of(object, "speedup_high");
  object.finish();
  return policy;
}

const ExpectedPolicy* policy_of(const Expectation& expectation, const std::string& label) {
  const auto found = std::ranges::find(expectation.policies, label, &ExpectedPolicy::label);
  return found == expectation.policies.end() ? nullptr : &*found;
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

Expectation expectation_of(const Study& study, const StudyResult& result) {
  Expectation expectation;
  expectation.study = study.name;
  expectation.baseline = study.baseline;
  expectation.documents = result.documents;
  expectation.tokens = result.tokens;
  for (const PolicyResult& row : result.policies) {
    const Metrics& m = row.metrics;
    expectation.policies.push_back({row.run.label,
                                    row.status,
                                    {m.speedup, m.step_seconds, m.tokens_per_second_per_gpu},
                                    m.speedup_low,
                                    m.speedup_high});
  }
  return expectation;
}

ordered_json to_json(const Expectation& expectation) {
  ordered_json policies = ordered_json::array();
  for (const ExpectedPolicy& policy : expectation.policies) {
    ordered_json node = {{"label", policy.label}, {"status", name_of(policy.status)}};
    for (std::size_t m = 0; m < kGuarded; ++m)
      node[std::string(kGuardedMetrics[m])] = value(policy.metrics[m]);
    node["speedup_low"] = value(policy.speedup_low);
    node["speedup_high"] = value(policy.speedup_high);
    policies.push_back(std::move(node));
  }
  return {{"schema", kSchema},
          {"study", expectation.study},
          {"baseline", expectation.baseline},
          {"documents", expectation.documents},
          {"tokens", expectation.tokens},
          {"policies", std::move(policies)}};
}

Expectation read_expectation(const json& file, const std::string& path) {
  JsonObject object(file, path + ": file");
  if (object.text("schema", "") != kSchema) object.fail("schema", std::string(kSchema));
  Expectation expectation;
  expectation.study = object.text("study", "");
  expectation.baseline = object.text("baseline", "");
  expectation.documents = object.integer("documents", 0, 0, kMostCount);
  expectation.tokens = object.integer("tokens", 0, 0, kMostCount);
  const json* policies = object.find("policies");
  if (policies == nullptr || !policies->is_array()) object.fail("policies", "a list");
  object.finish();
  for (std::size_t i = 0; i < policies->size(); ++i) {
    const std::string where = path + ": policies[" + std::to_string(i) + "]";
    ExpectedPolicy policy = read_policy((*policies)[i], where);
    if (policy_of(expectation, policy.label) != nullptr)
      throw UserError(where, ".label: expected each label once, found ", shown_json(policy.label), " again");
    expectation.policies.push_back(std::move(policy));
  }
  return expectation;
}

std::vector<PolicyChange> changes_between(const Expectation& expected, const Expectation& found,
                                          std::size_t metric, double tolerance, bool only_worse) {
  std::vector<PolicyChange> changes;
  const auto add = [&](const ExpectedPolicy* before, const ExpectedPolicy* now) {
    PolicyChange& change = changes.emplace_back();
    change.label = (before != nullptr ? before : now)->label;
    change.expected = before;
    change.found = now;
    change.metric = metric;
    if (before != nullptr) change.expected_value = before->metrics[metric];
    if (now != nullptr) change.found_value = now->metrics[metric];
    if (change.expected_value && change.found_value) {
      const bool same = *change.found_value == *change.expected_value;
      change.change = same ? 0 : *change.found_value / *change.expected_value - 1;  // from 0: infinite
    }
    change.problem = problem_of(change, metric, tolerance);
    const bool better = change.change && (*change.change > 0) == kMoreIsBetter[metric];
    const bool same_status = before != nullptr && now != nullptr && before->status == now->status;
    if (only_worse && better && same_status) std::swap(change.problem, change.gain);
  };
  for (const ExpectedPolicy& policy : expected.policies) add(&policy, policy_of(found, policy.label));
  for (const ExpectedPolicy& policy : found.policies)
    if (policy_of(expected, policy.label) == nullptr) add(nullptr, &policy);
  return changes;
}

std::vector<std::string> other_changes(const Expectation& expected, const Expectation& found) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const std::string& before, const std::string& now) {
    if (before != now) lines.push_back(std::string(what) + ": expected " + before + ", found " + now);
  };
  compare("study", shown_json(expected.study), shown_json(found.study));
  compare("baseline", shown_json(expected.baseline), shown_json(found.baseline));
  compare("documents", grouped(expected.documents), grouped(found.documents));
  compare("tokens", grouped(expected.tokens), grouped(found.tokens));
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
