// Prints saved results (saved_result.h) again, and compares two of them.
//
// The ratio of a row is the speed of the second run over the first's, as ratio_of has it. Its sampling
// interval is over the steps of both steps.csv, if both runs trained the same documents. The interval of the
// prediction is that of their kind of step, if both are of one kind.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/saved_result.h"
#include "sim/report/standing.h"

namespace equipoise {

// All columns and notes (study_screen.h has the first output).
std::string saved_table(const SavedResult& saved);
std::string saved_csv(const SavedResult& saved);
// The page of a saved result, with this program's scripts. Throws UserError without report.html, the only
// file with its ops.
std::string saved_page(const SavedResult& saved);

struct RowChange {
  std::string label;
  const PolicyResult *before = nullptr, *after = nullptr;  // null if the run has no such row
  RowRatio ratio;                                          // the second run over the first
  // significantly faster or slower, tied, the same, ok -> oom, only in the first ...
  std::string verdict;
};

// A setting in which the two differ, by its key in a study or its name in summary.json.
struct Difference {
  std::string key, before, after;  // "-" if one of them has none
};

struct SavedComparison {
  std::vector<RowChange> rows;
  std::vector<Difference> differences;
  bool same_documents = false;
  std::string verdict;  // one sentence
};

SavedComparison compare_saved(const SavedResult& before, const SavedResult& after);

// In at most `width` columns, unless labels are longer.
std::string comparison_text(const SavedResult& before, const SavedResult& after, const SavedComparison& found,
                            std::size_t width);
nlohmann::ordered_json comparison_json(const SavedResult& before, const SavedResult& after,
                                       const SavedComparison& found);
std::string comparison_csv(const SavedComparison& found);
std::string comparison_page(const SavedResult& before, const SavedResult& after,
                            const SavedComparison& found);

}  // namespace equipoise
