// The one table at the end of a sweep: a line per case and policy.
#pragma once

#include <string>
#include <vector>

#include "sim/study/run_study.h"

namespace equipoise {

// What the table shows of one case: text only, so a sweep of many holds no results of those that are
// finished.
struct SweepCase {
  std::string name;
  std::vector<std::vector<std::string>> lines;  // cells, a line a policy
  std::string reasons;                          // of rows that did not run, and what differs between rows
  std::string source;                           // what the times come from; empty: nothing ran
};
SweepCase sweep_case(const std::string& name, const Study& study, const StudyResult& result);

class SweepTable {
 public:
  void add(const SweepCase& one);
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  // The table, and below it the reasons of the rows that did not run what differs between rows, and what the
  // times come from.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> lines_;
  std::string reasons_;
  struct Source {
    std::string line;
    std::string cases;
  };
  std::vector<Source> sources_;
};

}  // namespace equipoise
