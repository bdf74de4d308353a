// The finished cases of a sweep, a line each, in a file that survives being killed: what --resume and `merge`
// read. A case's folder is whole before its line is written.
#pragma once

#include <map>
#include <string>

#include "sim/cli/sweep_printer.h"
#include "sim/report/line_journal.h"

namespace equipoise {

inline constexpr const char* kSweepJournal = "sweep.journal";  // in --out
inline constexpr JournalKind kSweepJournalKind = {"equipoise.sweep-journal/1", "equipoise study --sweep",
                                                  "sweep", "study, cases or options"};

struct SweepJournalText {
  nlohmann::json asked;
  std::map<std::size_t, CaseText> finished;  // by number of the case
};
SweepJournalText read_sweep_journal(const std::string& path);

class SweepJournal {
 public:
  // `asked`: all that decides a result; a journal of another sweep is refused. Without `resume` an older one
  // is overwritten. Throws UserError.
  SweepJournal(std::string path, const nlohmann::json& asked, bool resume);

  // A case that an earlier run has finished, else null.
  [[nodiscard]] const CaseText* find(std::size_t number) const;
  void add(std::size_t number, const CaseText& text);
  void remove() const;  // of a sweep that is whole

 private:
  std::map<std::size_t, CaseText> finished_;
  LineJournal lines_;
};

}  // namespace equipoise
