#include "sim/report/study_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

namespace {

std::optional<double> seconds_per_token(const Metrics& m) {
  if (m.seconds <= 0 || m.tokens <= 0) return {};
  return m.seconds / m.tokens;
}

std::optional<double> simulated_value(const PolicyResult& row, const PolicyResult& against,
                                      const std::string& metric) {
  if (metric == "bucket_size") {
    if (row.run.pack.bucket_size < 1) return {};
    return static_cast<double>(row.run.pack.bucket_size);
  }
  if (metric == "speedup") {
    const std::optional<double> base = seconds_per_token(against.metrics);
    const std::optional<double> own = seconds_per_token(row.metrics);
    if (!base || !own) return {};
    return *base / *own;
  }
  const json metrics = metrics_json(row.metrics);
  const auto it = metrics.find(metric);
  if (it == metrics.end() || !it->is_number()) return {};
  return it->get<double>();
}

// Four significant digits, but no decimals for large numbers.
std::string figure(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return grouped(static_cast<std::int64_t>(std::llround(value)));
  return fixed(value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

std::string published_cell(const PublishedRow& row, const std::optional<double>& value) {
  if (!value) return "-";
  return row.metric == "peak_memory_bytes" ? fixed(*value / kGiB, 1) : figure(*value);
}

std::string difference_cell(const std::optional<double>& difference) {
  if (!difference) return "-";
  std::string text = *difference > 0 ? "+" : "";
  return text.append(fixed(*difference, 1));
}

std::string published_metric(const PublishedRow& row) {
  if (row.metric == "peak_memory_bytes") return "peak memory GiB";
  if (!row.against.empty()) return row.metric + " over " + row.against;
  return row.metric;
}

// Without a pipeline there is no bubble. What the losses do not name is then recompute.
std::string bubble_cell(const ResultColumn& column, const PolicyResult& p) {
  const Metric& recompute = p.metrics.recompute_ratio;
  if (p.layout.pipeline > 1) return column.printed(figures_of(p));
  return recompute && *recompute > 0 ? fixed(100 * *recompute, 1) + " recompute" : "-";
}

TextTable text_table(const ComparisonTable& comparison) {
  TextTable table(comparison.header);
  for (const std::vector<std::string>& row : comparison.rows) table.add(row);
  return table;
}

}  // namespace

std::string reason_line(const PolicyResult& row) {
  constexpr const char* kHow[] = {"runs", "is out of memory", "cannot place a document", "is refused"};
  return row.run.label + ' ' + kHow[at(row.status)] + ": " + reason_text(row.reasons) +
         (row.memory_ignored ? "; its times are those of a run that would not fit (--ignore-memory)" : "");
}

RowFigures figures_of(const PolicyResult& row) {
  constexpr std::string_view kRunsInWords[] = {"yes", "own loader", "no"};
  return {row.metrics, row.capacity_bytes, row.peak.parts.total(),
          row.pack_ms, row.memory_tight,   row.runs_in ? kRunsInWords[at(*row.runs_in)] : "-"};
}

std::string cell_of(const PolicyResult& row, std::string_view title, bool alone) {
  const auto columns = result_columns();
  ResultColumn column =
      *std::ranges::find_if(columns, [&](const auto& c) { return c.title.starts_with(title); });
  if (alone) column.text = nullptr;
  return column.printed(figures_of(row));
}

const PolicyResult* row_with_label(const StudyResult& result, const std::string& label) {
  for (const PolicyResult& p : result.policies)
    if (p.run.label == label) return &p;
  return nullptr;
}

bool all_ok(const StudyResult& result) {
  return std::all_of(result.policies.begin(), result.policies.end(),
                     [](const PolicyResult& p) { return p.status == RowStatus::ok; });
}

std::vector<std::string> comparison_header(bool with_status) {
  std::vector<std::string> header = {"policy"};
  if (with_status) header.emplace_back("status");
  for (const ResultColumn& column : result_columns())
    if (column.is_printed()) header.emplace_back(column.title);
  return header;
}

std::vector<std::string> comparison_cells(const PolicyResult& p, bool with_status) {
  std::vector<std::string> cells = {p.run.label};
  if (with_status) cells.emplace_back(p.memory_ignored ? "oom, ignored" : name_of(p.status));
  for (const ResultColumn& column : result_columns())
    if (column.is_printed())
      cells.push_back(column.key == "bubble_ratio" ? bubble_cell(column, p) : column.printed(figures_of(p)));
  return cells;
}

void drop_equal_columns(ComparisonTable& comparison) {
  for (const ResultColumn& column : result_columns()) {
    if (!column.has(kDiffering | kStated | kUnlessYes)) continue;
    const auto found = std::find(comparison.header.begin(), comparison.header.end(), column.title);
    const auto place = found - comparison.header.begin();
    std::vector<std::string> values;
    for (const std::vector<std::string>& row : comparison.rows)
      if (const std::string& cell = row[at(place)]; cell != "-" && !(column.has(kUnlessYes) && cell == "yes"))
        values.push_back(cell);
    if (column.has(kStated | kUnlessYes) && !values.empty()) continue;
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) continue;
    comparison.header.erase(found);
    for (std::vector<std::string>& row : comparison.rows) row.erase(row.begin() + place);
  }
}

ComparisonTable comparison_of(const StudyResult& result) {
  const bool with_status = !all_ok(result);
  ComparisonTable comparison{comparison_header(with_status), {}};
  for (const PolicyResult& row : result.policies)
    comparison.rows.push_back(comparison_cells(row, with_status));
  drop_equal_columns(comparison);
  return comparison;
}

std::string source_line(const Study& study, const StudyResult& result) {
  return "(All is simulated. Kernels and collectives are of profile " + result.profile + ". Framework " +
         study.framework.preset.name + ": " + joined_texts(result.kernels, "; ") +
         (result.mfu_peak ? ". MFU is of " + text_of(*result.mfu_peak) : "") +
         ". Pack ms is measured on this machine.)";
}

std::string heading_text(const Study& study, const StudyResult& result) {
  const Layout& l = study.layout;
  return concatenated(study.model.name, " on ", counted(l.gpus(), "GPU"), " (TP ", l.tensor, ", CP ",
                      l.context, ", PP ", l.pipeline, ", DP ", l.data,
                      l.expert > 1 ? concatenated(", EP ", l.expert) : "", "), ", grouped(result.tokens),
                      " tokens of ", counted(result.documents, "document"), " from ", result.trace_origin,
                      ", framework ", study.framework.preset.name);
}

std::string study_table(const Study& study, const StudyResult& result) {
  std::ostringstream out;
  out << study.name << ": " << heading_text(study, result) << '\n';
  TextTable table = text_table(comparison_of(result));
  if (!all_ok(result)) table.align_left(1);
  out << table.text();
  for (const PolicyResult& p : result.policies)
    if (p.status != RowStatus::ok) out << reason_line(p) << '\n';
  for (const Note& differs : differences_of(result)) out << "Note: " << text_of(differs) << ".\n";
  for (const auto& [word, says] : verdict_of(study, result)) out << word << ": " << text_of(says) << '\n';
  out << line_of(spread_of(result)) << line_of(fullest_row(result));
  out << source_line(study, result) << '\n' << published_table(next_to_published(result));
  return out.str();
}

std::optional<double> PublishedRow::difference_percent() const {
  if (!simulated || !published || *published == 0) return {};
  return 100 * (*simulated / *published - 1);
}

std::vector<PublishedRow> next_to_published(const StudyResult& result) {
  std::vector<PublishedRow> rows;
  for (const PolicyResult& p : result.policies)
    for (const Published& published : p.run.published) {
      if (published.out_of_memory) {
        PublishedRow row;
        row.label = p.run.label;
        row.metric = "status";
        row.simulated_status = name_of(p.status);
        row.published_fits = !*published.out_of_memory;
        row.source = published.source;
        rows.push_back(std::move(row));
      }
      const PolicyResult* against = row_with_label(result, published.against);
      const PolicyResult& base = against != nullptr ? *against : result.policies[result.baseline];
      for (const Published::Figure& f : published.figures) {
        PublishedRow row;
        row.label = p.run.label;
        row.metric = f.metric;
        row.simulated = simulated_value(p, base, f.metric);
        row.published = f.value;
        if (f.metric == "speedup") row.against = base.run.label;
        row.source = published.source;
        rows.push_back(std::move(row));
      }
    }
  return rows;
}

std::string published_table(const std::vector<PublishedRow>& rows) {
  if (rows.empty()) return "";
  TextTable table({"policy", "metric", "ours (simulated)", "published", "difference %", "source"});
  for (const std::size_t column : {1U, 5U}) table.align_left(column);
  for (const PublishedRow& row : rows) {
    if (row.metric == "status") {
      table.add(
          {row.label, "status", row.simulated_status, row.published_fits ? "ok" : "oom", "-", row.source});
      continue;
    }
    table.add({row.label, published_metric(row), published_cell(row, row.simulated),
               published_cell(row, row.published), difference_cell(row.difference_percent()), row.source});
  }
  return "Next to the published figures\n" + table.text();
}

SweepCase sweep_case(const std::string& name, const Study& study, const StudyResult& result) {
  SweepCase one{name, {}, "", ""};
  for (const PolicyResult& row : result.policies) {
    std::vector<std::string> line = comparison_cells(row, true);
    line.insert(line.begin(), name);
    one.lines.push_back(std::move(line));
    if (row.status != RowStatus::ok) one.reasons += name + ": " + reason_line(row) + '\n';
  }
  for (const Note& differs : differences_of(result))
    one.reasons += name + ": note: " + text_of(differs) + '\n';
  if (!result.kernels.empty()) one.source = source_line(study, result);
  return one;
}

void SweepTable::add(const SweepCase& one) {
  lines_.insert(lines_.end(), one.lines.begin(), one.lines.end());
  reasons_ += one.reasons;
  if (one.source.empty()) return;
  const auto same = std::ranges::find(sources_, one.source, &Source::line);
  if (same == sources_.end())
    sources_.push_back({one.source, one.name});
  else
    same->cases += ", " + one.name;
}

std::string SweepTable::text() const {
  ComparisonTable all{comparison_header(true), lines_};
  all.header.insert(all.header.begin(), "case");
  drop_equal_columns(all);
  TextTable table = text_table(all);
  for (const std::size_t left : {1U, 2U}) table.align_left(left);
  std::string below = reasons_;
  // A single source needs no list of its cases.
  for (const auto& [line, cases] : sources_) below += (sources_.size() > 1 ? cases + ": " : "") + line + '\n';
  return table.text() + below;
}

}  // namespace equipoise
