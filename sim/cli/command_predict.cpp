#include "sim/cli/command_predict.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/fit/fitted_table.h"
#include "profiler/fit/predict.h"
#include "profiler/profile/profile.h"
#include "sim/report/text_table.h"

namespace equipoise {

namespace {

// "12, 14, 15, ... (7 in all)"
std::string lines_text(const std::vector<std::size_t>& lines) {
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, lines.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(lines[i]);
  return lines.size() > kShown ? text + ", ... (" + std::to_string(lines.size()) + " in all)" : text;
}

void print_predictions_of_rows(const Predictions& outcome, const CsvTable& table, std::ostream& out) {
  for (const std::string& name : table.header()) out << csv_cell(name) << ',';
  out << "predicted_ms,error\n";
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const RowPrediction& made = outcome.rows[row];
    for (const std::string& cell : table.row(row)) out << csv_cell(cell) << ',';
    if (made.unable.empty()) out << formatted("%.6g", made.seconds * 1e3);
    out << ',';
    if (made.unable.empty() && made.measured > 0) out << formatted("%.4f", made.error());
    out << '\n';
  }
}

nlohmann::json outcome_json(const Predictions& outcome, const CsvTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const RowPrediction& made = outcome.rows[row];
    nlohmann::json one = nlohmann::json::object();
    for (std::size_t i = 0; i < table.header().size(); ++i) one[table.header()[i]] = table.row(row)[i];
    if (made.unable.empty()) one["predicted_ms"] = made.seconds * 1e3;
    if (made.unable.empty() && made.measured > 0) one["error"] = made.error();
    if (!made.unable.empty()) one["not_predicted"] = made.unable;
    rows.push_back(std::move(one));
  }
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& [group, list] : outcome.errors) {
    groups.push_back(to_json(summarize(list)));
    groups.back()["group"] = group;
  }
  nlohmann::json unable = nlohmann::json::object();
  for (const auto& [reason, lines] : outcome.unable) unable[reason] = lines.size();
  return {{"rows", rows}, {"groups", groups}, {"not_predicted", unable}};
}

std::string groups_table(const Predictions& outcome) {
  TextTable text({"group", "rows", "median |error| %", "90th percentile %", "median error %"});
  for (const auto& [group, list] : outcome.errors) {
    const ErrorSummary summary = summarize(list);
    text.add({group, std::to_string(summary.count), fixed(100 * summary.median, 1),
              fixed(100 * summary.p90, 1), formatted("%+.1f", 100 * summary.bias)});
  }
  return text.text();
}

}  // namespace

void predict_command(const PredictOptions& options, std::ostream& out, std::ostream& notes) {
  if (options.nic_GBps < 0)
    throw UserError("--nic-GBps: expected a number >= 0, found " + formatted("%g", options.nic_GBps));
  const Profile profile = Profile::load(options.profile);
  const CsvTable table = CsvTable::read(options.rows);
  PredictChoices choices{options.kernel, options.network, options.nic_GBps, {}};
  if (!options.document_histogram.empty())
    choices.histogram = read_document_histogram(options.document_histogram);
  const Predictions outcome = predict_rows(profile, table, choices);  // all of them before the first is
                                                                      // printed
  switch (options.format) {
    case Format::csv:
      print_predictions_of_rows(outcome, table, out);
      if (!outcome.errors.empty()) notes << groups_table(outcome);
      break;
    case Format::json:
      out << outcome_json(outcome, table).dump(1) << '\n';
      break;
    case Format::table:
      out << groups_table(outcome);
      break;
  }
  if (options.format == Format::json) return;
  for (const auto& [reason, lines] : outcome.unable)
    notes << "not predicted, " << (lines.size() == 1 ? "line " : "lines ") << lines_text(lines) << " of "
          << printable(options.rows) << ": " << printable(reason) << '\n';
}

}  // namespace equipoise
