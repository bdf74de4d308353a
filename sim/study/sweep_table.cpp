#include "sim/study/sweep_table.h"

#include <algorithm>

#include "sim/report/text_table.h"
#include "sim/study/recompute_choice.h"
#include "sim/study/study_report.h"

namespace equipoise {

SweepCase sweep_case(const std::string& name, const Study& study, const StudyResult& result) {
  SweepCase one{name, {}, "", ""};
  for (const PolicyResult& row : result.policies) {
    std::vector<std::string> line = comparison_cells(row, true);
    line.insert(line.begin(), name);
    one.lines.push_back(std::move(line));
    if (row.status != RowStatus::ok) one.reasons += name + ": " + reason_line(row) + '\n';
  }
  if (const std::string differs = recompute_difference(study, result); !differs.empty())
    one.reasons += name + ": note: " + differs + '\n';
  if (!result.kernels.empty()) one.source = source_line(study, result);
  return one;
}

void SweepTable::add(const SweepCase& one) {
  lines_.insert(lines_.end(), one.lines.begin(), one.lines.end());
  reasons_ += one.reasons;
  if (one.source.empty()) return;
  const auto same = std::find_if(sources_.begin(), sources_.end(),
                                 [&](const auto& known) { return known.line == one.source; });
  if (same == sources_.end())
    sources_.push_back({one.source, one.name});
  else
    same->cases += ", " + one.name;
}

std::string SweepTable::text() const {
  std::vector<std::string> header = comparison_header(true);
  header.insert(header.begin(), "case");
  TextTable table(std::move(header));
  for (const std::size_t left : {1U, 2U}) table.align_left(left);
  for (const std::vector<std::string>& line : lines_) table.add(line);
  std::string below = reasons_;
  // One source needs no list of its cases.
  for (const auto& [line, cases] : sources_) below += (sources_.size() > 1 ? cases + ": " : "") + line + '\n';
  return table.text() + below;
}

}  // namespace equipoise
