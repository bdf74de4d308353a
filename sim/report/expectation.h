// What a study is expected to show (equipoise.expectation/1), and what has moved since: policy speed-ups as a
// regression test. The documents of a study are the same every time, so a speed-up that moves tells of a
// change of code, profile or study, never of sampling error; the interval is shown and not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/saved_result.h"

namespace equipoise {

// The metrics that are kept and can be guarded, and how far each may move unless it is said: a speed-up by
// less than times, which a better model of one kernel moves for all policies alike.
inline constexpr std::string_view kGuardedMetrics[] = {"speedup", "step_seconds",
                                                       "tokens_per_second_per_gpu"};
inline constexpr bool kMoreIsBetter[] = {true, false, true};
inline constexpr double kGuardedTolerances[] = {0.005, 0.02, 0.02};
inline constexpr std::size_t kGuarded = std::size(kGuardedMetrics);

// What the study shows now, as far as an expectation has it.
SavedResult expectation_of(const Study& study, StudyResult result);

nlohmann::ordered_json expectation_json(const SavedResult& expectation);
// Throws UserError naming file and key.
SavedResult read_expectation(const nlohmann::json& file, const std::string& path);

// One policy, expected and found.
struct PolicyChange {
  std::string label;
  const PolicyResult* expected = nullptr;  // null: not expected
  const PolicyResult* found = nullptr;     // null: not in the study any more
  std::size_t metric = 0;                  // of kGuardedMetrics
  std::optional<double> expected_value, found_value;
  std::optional<double> change;  // found / expected - 1, where both are there
  std::string problem;           // one line; empty: as expected
  std::string gain;              // the same of a move that was allowed, as it is for the better

  [[nodiscard]] bool moved() const { return !problem.empty(); }
};

// By policy, expected ones first, then new ones. Moved are: a metric by more than `tolerance` of what was
// expected, in either direction (`only_worse`: in that one); any change of status; a policy that is gone or
// new. Keeps pointers into both.
std::vector<PolicyChange> changes_between(const SavedResult& expected, const SavedResult& found,
                                          std::size_t metric, double tolerance, bool only_worse = false);

// What else is not the same: the study's name, its baseline, its documents. One line each.
std::vector<std::string> other_changes(const SavedResult& expected, const SavedResult& found);

// Test results as CI systems read them: a JUnit XML file of one suite.
struct JunitCase {
  std::string name;
  std::string failure;  // empty: passed
};

// Names are escaped; control characters, which XML cannot hold, are shown as printable text.
std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases);

}  // namespace equipoise
