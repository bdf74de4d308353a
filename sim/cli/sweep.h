// A sweep: its cases run one after the other. A finished case is kept as text in all formats, is written as a
// line of a journal once its folder is whole (so it survives when the process is killed), and is printed at
// the end of the sweep. --resume and `merge` read the journal.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cli/case_run.h"
#include "sim/cli/commands.h"
#include "sim/report/line_journal.h"
#include "sim/report/seed_spread.h"
#include "sim/report/study_table.h"
#include "sim/report/sweep_page.h"
#include "sim/report/sweep_screen.h"
#include "sim/study/share.h"

namespace equipoise {

struct MergeOptions;

// One case in all formats, as it is printed here or when the shards of a sweep are merged.
struct CaseText {
  ShownCase shown;
  SweepCase table;
  nlohmann::json summary;        // with its "case"
  std::string csv_header;        // without line ends
  std::vector<std::string> csv;  // a line a policy
  nlohmann::json page;           // the data that the sweep's report.html has of it
};
CaseText case_text(const std::string& name, ShownCase shown, const Study& study, const StudyResult& result,
                   nlohmann::json page);
nlohmann::json to_json(const CaseText& text);
// Throws nlohmann::json::exception if the node is no such text.
CaseText case_text(const nlohmann::json& node);

// Prints the cases in one format at the end, and writes the files about all of them.
class SweepPrinter {
 public:
  struct How {
    Format format = Format::table;
    bool wide = false;      // all columns of all rows
    bool of_seeds = false;  // cases that differ only in their seed are one
    std::string file;       // the study's, for the commands that are proposed; may be empty
    ScreenContext typed;

    [[nodiscard]] bool prints_table() const { return format == Format::table && wide && !of_seeds; }
  };
  SweepPrinter(How how, std::ostream& out) : how_(std::move(how)), out_(out) {}
  void add(const CaseText& text);
  void finish();
  // What may change a decision, for outputs that have no place for it.
  [[nodiscard]] std::vector<Warning> warnings() const;
  // Writes report.html, sweep.csv as --format csv prints it, and seeds.csv if the cases are seeds.
  void write(const std::string& folder) const;

 private:
  How how_;
  std::ostream& out_;
  std::vector<ShownCase> shown_;
  SeedSpread spread_;
  SweepTable table_;
  std::vector<nlohmann::json> summaries_;
  std::string csv_;
  SweepPage page_;
};

inline constexpr const char* kSweepJournal = "sweep.journal";  // in --out
inline constexpr JournalKind kSweepJournalKind = {"equipoise.sweep-journal/5", "equipoise study --sweep",
                                                  "sweep", "study, cases, options or files"};

struct SweepJournalText {
  nlohmann::json asked;
  std::map<std::size_t, CaseText> finished;  // by the case's number
};

class SweepJournal {
 public:
  // `asked` has everything that decides a result; a journal of another sweep is refused. Without `resume` an
  // older journal is overwritten. Throws UserError.
  SweepJournal(std::string path, const nlohmann::json& asked, bool resume);

  // A case that an earlier run has finished, or null.
  [[nodiscard]] const CaseText* find(std::size_t number) const;
  void add(std::size_t number, const CaseText& text);
  void remove() const;  // for when the sweep is complete

 private:
  std::map<std::size_t, CaseText> finished_;
  LineJournal lines_;
};

// The cases of this process's share. Each is kept in the journal when it finishes and printed at the end.
class Sweep {
 public:
  Sweep(const std::vector<StudyCase>& cases, const StudyOptions& options, const AskedStudy& asked,
        std::ostream& out);

  // Returns the status of the command: 0, 1 if a check of --verify failed, or 130 after an interruption,
  // which also prints the finished cases.
  int run(CaseRunner& runner, std::ostream& log);

 private:
  void finish(std::size_t i, const std::string& place, CaseRunner& runner);
  void print(std::size_t finished, std::ostream& log);

  const std::vector<StudyCase>& cases_;
  const StudyOptions& options_;
  std::ptrdiff_t set_;  // how many assignments of a case are those of --set
  Share share_;
  std::string folder_;
  SweepPrinter printer_;
  std::unique_ptr<SweepJournal> journal_;
};

// Copies the cases of all shards of a sweep into one folder and prints them as one sweep.
int merge_sweep(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out);

}  // namespace equipoise
