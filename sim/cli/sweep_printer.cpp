#include "sim/cli/sweep_printer.h"

#include <ostream>
#include <sstream>

#include "policies/base/csv.h"
#include "sim/study/study_report.h"

namespace equipoise {

using nlohmann::json;

CaseText case_text(const std::string& name, const Study& study, const StudyResult& result, json page) {
  CaseText text{sweep_case(name, study, result), summary_json(study, result), "", {}, std::move(page)};
  text.summary["case"] = name;
  std::istringstream lines(summary_csv(study, result));
  std::getline(lines, text.csv_header);
  text.csv_header.insert(0, "case,");
  for (std::string line; std::getline(lines, line);) text.csv.push_back(csv_cell(name) + "," + line);
  return text;
}

json to_json(const CaseText& text) {
  return {{"case", text.table.name},
          {"lines", text.table.lines},
          {"reasons", text.table.reasons},
          {"source", text.table.source},
          {"summary", text.summary},
          {"csv_header", text.csv_header},
          {"csv", text.csv},
          {"page", text.page}};
}

CaseText case_text(const json& node) {
  return {{node.at("case").get<std::string>(), node.at("lines").get<std::vector<std::vector<std::string>>>(),
           node.at("reasons").get<std::string>(), node.at("source").get<std::string>()},
          node.at("summary"),
          node.at("csv_header").get<std::string>(),
          node.at("csv").get<std::vector<std::string>>(),
          node.at("page")};
}

void SweepPrinter::add(const CaseText& text) {
  if (format_ == Format::table) {
    table_.add(text.table);
  } else if (format_ == Format::json) {
    summaries_.push_back(text.summary);
  } else {
    if (csv_.empty()) csv_ = text.csv_header + "\n";
    for (const std::string& line : text.csv) csv_ += line + "\n";
  }
}

void SweepPrinter::finish() {
  if (format_ == Format::json) out_ << json(summaries_).dump(2) << '\n';
  if (!table_.empty()) out_ << table_.text();
  out_ << csv_;
}

}  // namespace equipoise
