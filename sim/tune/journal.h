// What a search has tried, in a file that survives when the process is killed: one line per candidate, in the
// order of the search. A resumed search reads these results instead of trying again.
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
// Throws UserError, which names the line that no search wrote.
JournalText read_journal(const std::string& path);

// The trials of several searches of one space.
class KnownTrials {
 public:
  void add(std::vector<Tried> tried);
  // The candidate's result under `limit` on so many batches (0: all), if one of its trials shows it.
  [[nodiscard]] std::optional<Trial> find(Point point, int batches, double limit) const;
  // Its recorded trial on so many batches, whatever limit its search had.
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

  // The result of the search's trial number `n` under `limit`, if an earlier run has it. Throws UserError if
  // that number is another candidate's.
  [[nodiscard]] std::optional<Trial> find(std::size_t n, Point point, int batches, double limit) const;
  // Marks the search as ended.
  void close() const;
  // Appends the results of trials `first` and on, as lines that survive the process.
  void add(std::size_t first, std::span<const Point> points, std::span<const Trial> trials);

 private:
  static constexpr const char* kBefore = ".before";
  KnownTrials earlier_;       // from runs with another budget
  std::vector<Tried> tried_;  // from an earlier run of this search
  LineJournal lines_;
};

}  // namespace equipoise
