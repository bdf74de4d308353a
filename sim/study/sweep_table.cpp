#include "sim/study/sweep_table.h"

#include "sim/report/text_table.h"
#include "sim/study/recompute_choice.h"
#include "sim/study/study_report.h"

namespace equipoise {

void SweepTable::add(const std::string& name, const Study& study, const StudyResult& result) {
  for (const PolicyResult& row : result.policies) {
    std::vector<std::string> line = comparison_cells(row, true);
    line.insert(line.begin(), name);
    lines_.push_back(std::move(line));
    if (row.status != RowStatus::ok) reasons_ += name + ": " + reason_line(row) + '\n';
  }
  if (const std::string differs = recompute_difference(study, result); !differs.empty())
    reasons_ += name + ": note: " + differs + '\n';
}

std::string SweepTable::text() const {
  std::vector<std::string> header = comparison_header(true);
  header.insert(header.begin(), "case");
  TextTable table(std::move(header));
  for (const std::size_t left : {1U, 2U}) table.align_left(left);
  for (const std::vector<std::string>& line : lines_) table.add(line);
  return table.text() + reasons_;
}

}  // namespace equipoise
