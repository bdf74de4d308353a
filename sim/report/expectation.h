// What a study is expected to show (equipoise.expectation/1), and what has moved since: policy speed-ups as a
// regression test.
//
// The documents of a study are the same every time, so a speed-up that moves shows a change of code, profile
// or study, never sampling error. The interval is shown and not used.
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

// The metrics that can be guarded, and how far each may move by default. A speed-up may move less than times,
// which a better model of one kernel moves for all policies alike.
inline constexpr std::string_view kGuardedMetrics[] = {"speedup", "step_seconds",
                                                       "tokens_per_second_per_gpu"};
inline constexpr bool kMoreIsBetter[] = {true, false, true};
inline constexpr double kGuardedTolerances[] = {0.005, 0.02, 0.02};
inline constexpr std::size_t kGuarded = std::size(kGuardedMetrics);

// The current results of a study, as far as an expectation has them.
SavedResult expectation_of(const Study& study, StudyResult result);

nlohmann::ordered_json expectation_json(const SavedResult& expectation);
// Throws UserError with file and key.
SavedResult read_expectation(const nlohmann::json& file, const std::string& path);

// One policy, as expected and as found.
struct PolicyChange {
  std::string label;
  const PolicyResult* expected = nullptr;  // null if not expected
  const PolicyResult* found = nullptr;     // null if the study no longer has it
  std::size_t metric = 0;                  // of kGuardedMetrics
  std::optional<double> expected_value, found_value;
  std::optional<double> change;  // found / expected - 1, if both are there
  std::string problem;           // one line; empty if as expected
  std::string gain;              // the same for a move that is allowed because it is an improvement

  [[nodiscard]] bool moved() const { return !problem.empty(); }
};

// The changes by policy, expected ones first, then new ones. A move is a metric that differs from the
// expected value by more than `tolerance` (with `only_worse` only for the worse), any change of status, or a
// policy that is gone or new. Keeps pointers into both.
std::vector<PolicyChange> changes_between(const SavedResult& expected, const SavedResult& found,
                                          std::size_t metric, double tolerance, bool only_worse = false);

// Further changes, one line each: the study's name, its baseline, its documents.
std::vector<std::string> other_changes(const SavedResult& expected, const SavedResult& found);

// A test result for CI systems, which read a JUnit XML file of one suite.
struct JunitCase {
  std::string name;
  std::string failure;  // empty: passed
};

// Names are escaped. Control characters, which XML cannot hold, become printable text.
std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases);

}  // namespace equipoise
