// What a search has tried, in a file that survives being killed: a line a candidate, in the order of the
// search. A search that is resumed reads its results instead of trying again, and comes to the same end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/report/line_journal.h"
#include "sim/tune/trial.h"

namespace equipoise {

inline constexpr const char* kTuneJournal = "tune.journal";  // in --out
inline constexpr JournalKind kTuneJournalKind = {"equipoise.tune-journal/4", "equipoise tune", "search",
                                                 "study, space, options or files"};

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
  // What the candidate comes to under `limit` on so many batches (0: all), where one of its trials tells.
  [[nodiscard]] std::optional<Trial> find(Point point, int batches, double limit) const;
  // Its trial on so many batches as it was told, whatever the limit of its search was.
  [[nodiscard]] std::optional<Trial> told(Point point, int batches) const;
  // Candidates with a trial on all batches.
  [[nodiscard]] std::vector<Point> in_full() const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Trial>> of_point_;
};

class Journal {
 public:
  // `asked`: all that decides a result; a journal of another search is refused. Without `resume` an older one
  // is overwritten. One that differs in `budget` alone tells what it knows, and stays next to the new one
  // until that is whole (kBefore). Throws UserError.
  Journal(const std::string& path, const nlohmann::json& asked, bool resume);

  // What the search's trial number `n` comes to under `limit`, if an earlier run tells. Throws UserError
  // where that number is another's.
  [[nodiscard]] std::optional<Trial> find(std::size_t n, Point point, int batches, double limit) const;
  // The search has come to its end.
  void close() const;
  // Appends the results of trials `first` and on, as lines that survive the process.
  void add(std::size_t first, std::span<const Point> points, std::span<const Trial> trials);

 private:
  static constexpr const char* kBefore = ".before";
  KnownTrials earlier_;       // by runs with another budget
  std::vector<Tried> tried_;  // by an earlier run of this one
  LineJournal lines_;
};

}  // namespace equipoise
