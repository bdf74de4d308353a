#include "sim/report/study_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/plan_metrics.h"
#include "sim/report/html_page.h"
#include "sim/report/standing.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LengthBin, begin, end, documents, tokens, causal_pairs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InputSource, what, value, kind, from)

namespace {

using nlohmann::json;

constexpr std::size_t kMostPoints = 400;     // limit on a row's steps whose figures a page holds
constexpr std::size_t kGpusOfPage = 200000;  // limit on the load maps of all rows together
constexpr double kMicroseconds = 1e6;

std::int64_t microseconds(Picoseconds time) {
  return std::llround(to_seconds(time) * kMicroseconds);
}

json losses_json(const Metrics& metrics, int stages) {
  json list = json::array();
  for (const Loss& loss : losses_of(metrics, stages))
    list.push_back({{"name", loss.name}, {"share", loss.share}});
  return list;
}

// Every n-th step, so that at most kMostPoints remain.
json steps_json(const PolicyResult& row) {
  const std::size_t every = (row.steps.size() + kMostPoints - 1) / kMostPoints;
  json list = json::array();
  for (std::size_t i = 0; i < row.steps.size(); i += std::max<std::size_t>(1, every)) {
    const StepFigures& step = row.steps[i];
    const std::optional<double> imbalance = step.latency_imbalance;
    list.push_back({i, step.plan.tail ? 1 : 0, rounded(to_seconds(step.times.makespan), 6), step.work.tokens,
                    imbalance ? json(rounded(*imbalance, 4)) : json(nullptr),
                    rounded(step.times.cp_imbalance, 4)});
  }
  return {{"columns", {"step", "tail", "seconds", "tokens", "imbalance", "cp_imbalance"}},
          {"every", std::max<std::size_t>(1, every)},
          {"of", row.steps.size()},
          {"rows", std::move(list)}};
}

json lane_json(const DrawnLane& lane) {
  json micro_batches = json::array();
  for (const DrawnMicroBatch& m : lane.micro_batches)
    micro_batches.push_back({m.tokens, m.slices, m.longest, microseconds(m.forward), m.documents});
  json ops = json::array();  // a flat list with six numbers per op
  for (const StageOp& op : lane.ops) {
    const std::int64_t start = microseconds(op.start);
    for (const std::int64_t value :
         {std::int64_t{op.stage}, static_cast<std::int64_t>(op.op.kind), std::int64_t{op.op.micro_batch},
          std::int64_t{op.op.virtual_stage}, start, microseconds(op.end) - start})
      ops.push_back(value);
  }
  return {{"lane", lane.lane},
          {"context", lane.context},
          {"micro_batches", std::move(micro_batches)},
          {"ops", std::move(ops)}};
}

json drawn_json(const RowDetails& details) {
  json list = json::array();
  for (const DrawnStep& step : details.steps) {
    json lanes = json::array();
    for (const DrawnLane& lane : step.lanes) lanes.push_back(lane_json(lane));
    list.push_back({{"step", step.step},
                    {"why", step.why},
                    {"end", microseconds(step.makespan)},
                    {"pipeline", microseconds(step.pipeline)},
                    {"of_lanes", step.lanes_of_step},
                    {"lanes", std::move(lanes)}});
  }
  return list;
}

json stages_json(const RowDetails& details) {
  json list = json::array();
  for (const MemoryPeak& peak : details.stage_peaks) {
    json parts = json::object();
    for (const MemoryPartName& part : kMemoryParts)
      if (peak.parts.*part.bytes > 0) parts[part.key] = std::round(peak.parts.*part.bytes);
    list.push_back({{"parts", std::move(parts)}, {"lane", peak.lane}});
  }
  return {{"step", details.memory_step}, {"stages", std::move(list)}};
}

// Compute seconds of every GPU in the step of median time, over their mean and in thousandths. Ranks of a TP
// group that do the same are one entry. Beyond `most` entries the map itself is omitted.
json load_json(const PolicyResult& row, std::size_t most) {
  if (!row.simulated() || row.details.typical_step < 0) return nullptr;
  const std::vector<double>& seconds = row.steps[at(row.details.typical_step)].gpu_compute;
  if (seconds.empty()) return nullptr;
  const double sum = sum_of(seconds);
  const double mean = sum / static_cast<double>(seconds.size());
  json list = json::array();
  for (const double s : seconds)
    if (seconds.size() <= most) list.push_back(mean > 0 ? std::llround(1000 * s / mean) : 0);
  return {{"step", row.details.typical_step},
          {"mean_seconds", mean},
          {"stages", row.layout.pipeline},
          {"replicas", row.layout.data * row.layout.context},
          {"context", row.layout.context},
          {"tensor", row.gpu_tensor},
          {"same_tensor", row.gpu_tensor == 1 ? row.layout.tensor : 1},
          {"relative", std::move(list)}};
}

// The page shows the first step; critical_path/LABEL.json has all recorded ones.
json critical_path_json(const std::string& text) {
  if (text.empty()) return nullptr;
  json path = json::parse(text);
  if (json& steps = path["steps"]; steps.size() > 1) steps.erase(steps.begin() + 1, steps.end());
  return path;
}

json row_json(const Study& study, const PolicyResult& row) {
  return {{"label", row.run.label},
          {"losses", losses_json(row.metrics, study.layout.pipeline)},
          {"steps", row.simulated() ? steps_json(row) : json(nullptr)},
          {"drawn", drawn_json(row.details)},
          {"memory", stages_json(row.details)},
          {"gpus", load_json(row, kGpusOfPage / study.policies.size())},
          {"tokens_by_delay", row.details.tokens_by_delay},
          {"critical_path", critical_path_json(row.details.critical_path)}};
}

json published_rows(const StudyResult& result) {
  json list = json::array();
  for (const PublishedRow& row : next_to_published(result)) {
    json node = {
        {"label", row.label}, {"metric", row.metric}, {"source", row.source}, {"against", row.against}};
    if (row.metric == "status") {
      node["simulated"] = row.simulated_status;
      node["published"] = row.published_fits ? "ok" : "oom";
    } else {
      node["simulated"] = row.simulated ? json(*row.simulated) : json(nullptr);
      node["published"] = row.published ? json(*row.published) : json(nullptr);
    }
    list.push_back(std::move(node));
  }
  return list;
}

// What the file shows without scripts: the verdict and the table that the program prints.
std::string content_of(const Study& study, const StudyResult& result) {
  std::vector<std::string> lines(1);  // one paragraph of what is fastest and why, then the other lines
  for (const auto& [word, says] : verdict_of(study, result)) {
    const std::string line = text_of(says);
    if (word == "Fastest")
      lines.front() = line;
    else if (word == "Why")
      lines.front() += " " + line;
    else
      lines.push_back(concatenated(word, ": ", line));
  }
  std::string text =
      html_head(study.name, "Fastest: " + text_of(headline_of(result)), lines, {heading_text(study, result)});
  const ComparisonTable comparison = comparison_of(result);
  text += "<section id=\"throughput\">\n<h2>Throughput by policy</h2>\n<div class=\"chart\"></div>\n" +
          html_table("comparison", comparison.header, comparison.rows);
  for (const PolicyResult& row : result.policies)
    if (row.status != RowStatus::ok) text += html_paragraph(reason_line(row), "reason");
  for (const Note& differs : differences_of(result))
    text += html_paragraph("Note: " + text_of(differs) + ".", "note");
  text += html_paragraph(source_line(study, result), "note") + "</section>\n";
  return text;
}

}  // namespace

json report_json(const Study& study, const StudyResult& result) {
  json summary = summary_json(study, result);
  for (json& policy : summary["policies"]) policy.erase("gpu_compute_seconds");
  json rows = json::array();
  for (const PolicyResult& row : result.policies) rows.push_back(row_json(study, row));
  const PolicyResult* first = standing_of(result).first;
  return {{"schema", "equipoise.report/1"},
          {"kind", "study"},
          {"version", EQUIPOISE_VERSION},
          {"summary", std::move(summary)},
          {"winner", first == nullptr ? json(nullptr) : json(first->run.label)},
          {"fidelity", kFidelityNames[at(result.fidelity)]},
          {"gpu_spread", line_of(spread_of(result))},
          {"fullest", line_of(fullest_row(result))},
          {"lengths", result.lengths},
          {"sources", result.sources},
          {"published", published_rows(result)},
          {"rows", std::move(rows)}};
}

std::string lengths_html(const std::string& name, const std::string& headline,
                         std::span<const std::int64_t> lengths) {
  return html_page(
      {name, html_head(name, headline, {}, {})},
      {{"schema", "equipoise.report/1"}, {"kind", "lengths"}, {"lengths", length_bins(lengths)}});
}

std::string report_html(const Study& study, const StudyResult& result) {
  return html_page({study.name, content_of(study, result)}, report_json(study, result));
}

}  // namespace equipoise
