#include "sim/validation/execution_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/report/text_table.h"
#include "sim/validation/figures.h"

namespace equipoise {

using nlohmann::ordered_json;

namespace {

std::vector<double> seconds_of(const RealResult& result) {
  return each_of(result.timed, &TimedStep::seconds);
}

// Numbers that are none are written as null.
ordered_json row_json(const ExecutionRow& row) {
  const RealResult& result = row.result;
  ordered_json out = {{"label", result.label}};
  out["reason"] = result.reason.empty() ? ordered_json(nullptr) : ordered_json(result.reason);
  out["equivalent"] = nullptr;
  if (result.equivalence) {
    const execution::Equivalence& e = *result.equivalence;
    out["equivalent"] = e.holds();
    out["loss"] = e.loss;
    out["reference_loss"] = e.reference_loss;
    out["loss_error"] = e.loss_error;
    out["worst_error"] = e.worst_error;
    out["worst_tensor"] = e.worst_tensor;
    out["limit"] = e.limit;
    out["tokens"] = e.tokens;
  }
  out["measured"] = {{"step_seconds", seconds_of(result)}};
  ordered_json normalizers = ordered_json::array();
  for (const execution::LossBias& bias : row.biases)
    normalizers.push_back({{"normalizer", bias.normalizer}, {"loss", bias.loss}, {"bias", bias.bias}});
  out["loss_normalizers"] = std::move(normalizers);
  return out;
}

}  // namespace

bool ExecutionReport::all_equivalent() const {
  return std::ranges::all_of(rows, [](const ExecutionRow& row) {
    return !row.result.equivalence || row.result.equivalence->holds();
  });
}

ordered_json execution_json(const ExecutionReport& report) {
  ordered_json out = {{"schema", "equipoise.execution/1"},
                      {"study", report.study},
                      {"device", report.device},
                      {"ranks", report.ranks},
                      {"loss_normalizer", report.normalizer},
                      {"composed", report.replay}};
  out["policies"] = ordered_json::array();
  for (const ExecutionRow& row : report.rows) out["policies"].push_back(row_json(row));
  return out;
}

std::string execution_text(const ExecutionReport& report) {
  std::string text = report.study + ", executed on " + report.ranks + ", device " + report.device + "\n\n";
  TextTable table({"policy", "equal", "loss", "reference", "worst error", "of", "limit", "tokens",
                   report.replay ? "composed step s" : "measured step s", "steps"});
  table.align_left(5);
  TextTable biases({"policy", "token mean", "sample", "sum", "stable", "micro-batch"});
  for (const ExecutionRow& row : report.rows) {
    const RealResult& result = row.result;
    if (!result.reason.empty()) continue;
    std::vector<std::string> cells = {result.label};
    if (result.equivalence) {
      const execution::Equivalence& e = *result.equivalence;
      for (std::string cell :
           {std::string(e.holds() ? "yes" : "NO"), fixed(e.loss, 6), fixed(e.reference_loss, 6),
            formatted("%.1e", e.worst_error), e.worst_tensor, formatted("%.1e", e.limit), grouped(e.tokens)})
        cells.push_back(std::move(cell));
    } else {
      cells.insert(cells.end(), 7, "-");
    }
    const std::vector<double> seconds = seconds_of(result);
    cells.push_back(seconds.empty() ? "-" : fixed(median(seconds), 4));
    cells.push_back(std::to_string(seconds.size()));
    table.add(cells);
    if (row.biases.empty()) continue;
    cells = {result.label, fixed(row.biases.front().loss, 6)};
    for (std::size_t i = 1; i < row.biases.size(); ++i)
      cells.push_back(formatted("%+.2f %%", 100 * row.biases[i].bias));
    biases.add(cells);
  }
  text += table.text();
  for (const ExecutionRow& row : report.rows)
    if (!row.result.reason.empty()) text += row.result.label + ": not run: " + row.result.reason + "\n";
  text +=
      "\nLoss by normaliser, against the true token mean of the first step (sum: per token of a full "
      "step):\n" +
      biases.text();
  return text;
}

}  // namespace equipoise
