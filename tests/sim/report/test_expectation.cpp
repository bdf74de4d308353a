#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "sim/report/expectation.h"

using namespace equipoise;
using nlohmann::json;

namespace {

PolicyResult row(const char* label, RowStatus status, const std::vector<Metric>& figures = {}) {
  PolicyResult made;
  made.run.label = label;
  made.status = status;
  Metrics& m = made.metrics;
  if (figures.size() >= 3) {
    m.speedup = figures[0];
    m.step_seconds = figures[1];
    m.tokens_per_second_per_gpu = figures[2];
  }
  if (figures.size() == 5) {
    m.speedup_low = figures[3];
    m.speedup_high = figures[4];
  }
  return made;
}

SavedResult two() {
  SavedResult e;
  e.study = "two";
  e.baseline = "plain";
  e.result.documents = 10;
  e.result.tokens = 1000;
  e.result.policies = {row("plain", RowStatus::ok, {1.0, 2.0, 500.0}),
                       row("wlb", RowStatus::ok, {1.25, 1.6, 625.0, 1.2, 1.3}),
                       row("skrull", RowStatus::oom)};
  return e;
}

std::string refusal(const json& file) {
  try {
    (void)read_expectation(file, "e.json");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an expectation is the same after writing and reading") {
  const SavedResult again = read_expectation(json::parse(expectation_json(two()).dump()), "e.json");
  CHECK(expectation_json(again) == expectation_json(two()));
  CHECK(again.result.policies[1].metrics.speedup == 1.25);
  CHECK(!again.result.policies[2].metrics.speedup);
  CHECK(again.result.policies[2].status == RowStatus::oom);
}

TEST_CASE("what moved is beyond the tolerance, in either direction") {
  SavedResult found = two();
  const auto moved = [&](double tolerance) { return changes_between(two(), found, 0, tolerance)[1].moved(); };
  CHECK(!moved(0));
  found.result.policies[1].metrics.speedup = 1.25 * 1.004;
  CHECK(!moved(0.005));
  CHECK(moved(0.003));
  found.result.policies[1].metrics.speedup = 1.25 * 0.99;
  CHECK(moved(0.005));
  const SavedResult expected = two();
  const std::vector<PolicyChange> changes = changes_between(expected, found, 0, 0.005);
  CHECK(changes[1].problem == "speedup moved by -1.00 %, beyond 0.50 %");
  CHECK(!changes[0].moved());
  CHECK(!changes[2].moved());  // out of memory before and now
}

TEST_CASE("where only what is worse fails, a move for the better is a gain, by each metric's better side") {
  const SavedResult expected = two();
  SavedResult found = two();
  found.result.policies[1].metrics.speedup = 1.25 * 1.1;
  found.result.policies[1].metrics.step_seconds = 1.6 * 0.9;
  found.result.policies[1].metrics.tokens_per_second_per_gpu = 625.0 * 0.9;
  const auto wlb = [&](std::size_t metric) {
    return changes_between(expected, found, metric, 0.02, true)[1];
  };
  CHECK(!wlb(0).moved());
  CHECK(wlb(0).gain == "speedup moved by 10.00 %, beyond 2.00 %");
  CHECK(!wlb(1).moved());
  CHECK(wlb(1).gain == "step_seconds moved by -10.00 %, beyond 2.00 %");
  CHECK(wlb(2).moved());
  CHECK(wlb(2).gain.empty());
  CHECK(changes_between(expected, found, 0, 0.2, true)[1].gain.empty());
  found.result.policies[2].status = RowStatus::ok;
  CHECK(changes_between(expected, found, 0, 0.02, true)[2].moved());
}

TEST_CASE("another metric may be guarded") {
  SavedResult found = two();
  for (PolicyResult& policy : found.result.policies)
    if (policy.metrics.step_seconds)
      policy.metrics.step_seconds =
          *policy.metrics.step_seconds * 1.1;  // all slower alike: no speed-up moves
  const SavedResult expected = two();
  CHECK(!changes_between(expected, found, 0, 0.005)[0].moved());
  CHECK(changes_between(expected, found, 1, 0.005)[0].moved());
}

TEST_CASE("a change of status, a policy that is gone and a new one always fail") {
  SavedResult found = two();
  found.result.policies[2].status = RowStatus::ok;
  found.result.policies[2].metrics.speedup = 1.1;
  found.result.policies[0].run.label = "plain-4d";
  const SavedResult expected = two();
  const std::vector<PolicyChange> changes = changes_between(expected, found, 0, 1e9);
  REQUIRE(changes.size() == 4);
  CHECK(changes[0].problem == "is not in the study any more");
  CHECK(!changes[1].moved());
  CHECK(changes[2].problem == "status was oom and is ok");
  CHECK(changes[3].label == "plain-4d");
  CHECK(changes[3].problem == "is new: not in the expectation");
}

TEST_CASE("a value that appears or goes has moved") {
  SavedResult found = two();
  found.result.policies[1].metrics.speedup.reset();
  const SavedResult expected = two();
  CHECK(changes_between(expected, found, 0, 1)[1].problem == "speedup has no value any more");
  CHECK(changes_between(found, expected, 0, 1)[1].problem == "speedup is new: it had no value");
  found.result.policies[1].metrics.speedup = 0;
  CHECK(changes_between(found, expected, 0, 1)[1].moved());  // from 0 any change is beyond
  CHECK(!changes_between(found, found, 0, 0)[1].moved());
}

TEST_CASE("other documents are told") {
  SavedResult found = two();
  CHECK(other_changes(two(), found).empty());
  found.result.tokens = 1001;
  CHECK(other_changes(two(), found) == std::vector<std::string>{"tokens: expected 1,000, found 1,001"});
}

TEST_CASE("what is no expectation is refused by file and key") {
  json good = json::parse(expectation_json(two()).dump());
  CHECK(refusal(good).empty());
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  CHECK(with("/schema", "equipoise.expectation/2").find("e.json") == 0);
  CHECK(with("/policies", 3).find("policies") != std::string::npos);
  CHECK(with("/policies/1/status", "fine").find("policies[1]") != std::string::npos);
  CHECK(with("/policies/1/speedup", "fast").find("speedup") != std::string::npos);
  CHECK(with("/policies/1/label", "plain").find("once") != std::string::npos);
  CHECK(with("/policies/1/sped", 1).find("sped") != std::string::npos);
}
