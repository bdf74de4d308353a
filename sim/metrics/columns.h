// The columns of a study's result: one table, from which come the printed table and report.html's,
// summary.json's metrics, the columns of its CSV, the keys under which a study states a paper's figures, and
// the page for users (sim/report/COLUMNS.md).
//
// To add a column: its row in columns.cpp. What it shows is computed by metrics_of (metrics.h), or is one of
// RowFigures.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policies/plan_metrics.h"
#include "sim/metrics/metrics.h"

namespace equipoise {

// What is known of one row of a study.
struct RowFigures {
  const Metrics& metrics;
  double capacity_bytes = 0;  // of a GPU; 0: nothing was planned
  double peak_bytes = 0;      // of the fullest GPU
  double pack_ms = 0;         // measured

  [[nodiscard]] bool planned() const { return capacity_bytes > 0; }
};

inline constexpr unsigned kWhole = 1;      // an integer in JSON
inline constexpr unsigned kOfPlan = 2;     // known of a plan that nobody simulates
inline constexpr unsigned kFlag = 4;       // true or false in JSON
inline constexpr unsigned kDiffering = 8;  // printed only where rows differ
inline constexpr unsigned kStated = 16;    // printed only where some row has it

struct ResultColumn {
  std::string_view title;  // in printed tables; empty: in none
  std::string_view key;    // in JSON and CSV, in its own unit; "group.axis" stands in an object, in JSON only
  Metric (*value)(const RowFigures&);
  int digits;  // behind the point of the printed number
  std::string_view unit;
  std::string_view help;
  unsigned flags = 0;
  double scale = 1;                                  // of the printed number, which is the value times this
  std::string (*text)(const RowFigures&) = nullptr;  // printed, where that is more than a number

  [[nodiscard]] bool has(unsigned flag) const { return (flags & flag) != 0; }
  [[nodiscard]] bool is_printed() const { return !title.empty(); }
  // Whether it is one number of summary.json's metrics.
  [[nodiscard]] bool is_metric() const {
    return !key.empty() && key.find('.') == std::string_view::npos && !has(kFlag);
  }
  // "-" where there is none.
  [[nodiscard]] std::string printed(const RowFigures& row) const;
};

// In the order of the printed table, which the others end.
std::span<const ResultColumn> result_columns();

// Metrics by their keys; absent ones are null. Only those that need no simulator for the second form.
nlohmann::json metrics_json(const Metrics& metrics);
nlohmann::json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance);

}  // namespace equipoise
