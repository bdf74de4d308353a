// The results of a sweep's cases, printed in one format at its end.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/report/study_table.h"

namespace equipoise {

// One case in all formats: what is printed of it here, or where the shards of a sweep are merged.
struct CaseText {
  SweepCase table;
  nlohmann::json summary;        // with its "case"
  std::string csv_header;        // without line ends
  std::vector<std::string> csv;  // a line a policy
  nlohmann::json page;           // what the sweep's report.html shows of it
};
CaseText case_text(const std::string& name, const Study& study, const StudyResult& result,
                   nlohmann::json page);
nlohmann::json to_json(const CaseText& text);
// Throws nlohmann::json::exception where it is no such text.
CaseText case_text(const nlohmann::json& node);

class SweepPrinter {
 public:
  SweepPrinter(Format format, std::ostream& out) : format_(format), out_(out) {}
  void add(const CaseText& text);
  void finish();

 private:
  Format format_;
  std::ostream& out_;
  SweepTable table_;
  std::vector<nlohmann::json> summaries_;
  std::string csv_;
};

}  // namespace equipoise
