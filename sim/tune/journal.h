// What a search has tried, in a file that survives when the process is killed: one line per trial. A resumed
// search reads these results instead of trying again. Trials in the order of the search have their number;
// a search whose time decided what it tried next has others, without a number.
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
inline constexpr JournalKind kTuneJournalKind = {"equipoise.tune-journal/7", "equipoise tune", "search",
                                                 "study, space, options or files"};

struct JournalText {
  nlohmann::json asked;
  std::vector<Tried> tried;  // those in the order of the search come first
};
// Throws UserError, which names the line that no search wrote.
JournalText read_journal(const std::string& path);

// The trials of several searches of one space.
class KnownTrials {
 public:
  void add(std::vector<Tried> tried);
  // The candidate's result under the limits on their number of batches, if one of its trials shows it.
  [[nodiscard]] std::optional<Trial> find(Point point, const TrialLimits& limits) const;
  // Its recorded trial on so many batches, whatever limit its search had.
  [[nodiscard]] std::optional<Trial> told(Point point, int batches) const;
  // The number of candidates of which it knows a trial.
  [[nodiscard]] std::size_t size() const { return of_point_.size(); }
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

  // The result of the search's trial number `n` under the limits, if an earlier run has it. Throws UserError
  // if that number is another candidate's.
  [[nodiscard]] std::optional<Trial> find_in_order(std::size_t n, Point point,
                                                   const TrialLimits& limits) const;
  // The result of a trial outside the search's order, if an earlier run shows it.
  [[nodiscard]] std::optional<Trial> find_out_of_order(Point point, const TrialLimits& limits) const;
  // Marks the search as ended.
  void close() const;
  // Appends the results of trials `first` and on, as lines that survive the process.
  void add(std::size_t first, std::span<const Point> points, std::span<const Trial> trials);
  // Appends the result of a trial outside the search's order.
  void add(Point point, const Trial& trial);

 private:
  static constexpr const char* kBefore = ".before";
  KnownTrials earlier_;        // from runs with another budget, then also `others_`
  std::vector<Tried> tried_;   // from an earlier run of this search, in its order
  std::vector<Tried> others_;  // from that run, outside its order
  LineJournal lines_;
};

}  // namespace equipoise
