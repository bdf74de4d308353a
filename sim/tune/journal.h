// What a search has tried, in a file that survives being killed: a line a candidate, in the order of the
// search. A search that is resumed reads its results instead of trying again, and comes to the same end.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/report/line_journal.h"
#include "sim/tune/candidate.h"
#include "sim/tune/trial.h"

namespace equipoise {

inline constexpr const char* kTuneJournal = "tune.journal";  // in --out
inline constexpr JournalKind kTuneJournalKind = {"equipoise.tune-journal/2", "equipoise tune", "search",
                                                 "study, space or options"};

struct JournalText {
  nlohmann::json asked;
  std::vector<Tried> tried;  // in the order of the search
};
// Throws UserError naming the line that no search wrote.
JournalText read_journal(const std::string& path);

// What several searches of one space have tried.
class KnownTrials {
 public:
  void add(std::vector<Tried> tried);
  // What the candidate comes to under `limit`, where one of its trials tells.
  [[nodiscard]] std::optional<Trial> find(Point point, double limit) const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Trial>> of_point_;
};

class Journal {
 public:
  // `asked`: all that decides a result; a journal of another search is refused. Without `resume` an older one
  // is overwritten. Throws UserError.
  Journal(std::string path, const nlohmann::json& asked, bool resume);

  // The result of the search's candidate number `n`, if an earlier run has it. Throws UserError where it is
  // that of another candidate.
  [[nodiscard]] const Trial* find(std::size_t n, Point point) const;
  // Appends the results of candidates `first` and on, as lines that survive the process.
  void add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials);

 private:
  std::vector<Tried> tried_;  // by an earlier run
  LineJournal lines_;
};

}  // namespace equipoise
