// One candidate tried: planned, then simulated step by step until it is known to be too slow.
//
// After its plan is made every step has a lower bound (bound.h). Steps run in order; once the simulated
// seconds of those that ran and the bounds of the others say more seconds per token than the limit, the
// candidate is proven slower than it and ends. That changes no result: who ends early could not have won.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/line_journal.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/tune/space.h"

namespace equipoise {

class PlanCache;

enum class Outcome { ok, slower, oom, unplaceable, refused, late };
inline constexpr std::string_view kOutcomeNames[] = {"ok", "slower", "oom", "unplaceable", "refused", "late"};

struct Trial {
  Outcome outcome = Outcome::refused;
  // ok: seconds of all steps over all tokens. slower: what it takes at least. Else 0.
  double seconds_per_token = 0;
  double expected = 0;  // slower: if the other steps exceed their bounds as those that ran did
  int steps = 0;        // simulated
  int planned = 0;      // steps of its plan
  std::string reason;   // why it did not run; empty for ok and slower
  // ok: iterations that a token waits on the mean, as metrics have it, and the most that a GPU holds.
  std::optional<double> token_delay;
  double peak_bytes = 0;
  // What it was held against, and seconds per token that were known to be needed before each step: of a
  // candidate that ended early, the last is above the limit. Empty where two sharding rules were tried.
  double limit = std::numeric_limits<double>::infinity();
  std::vector<double> least;
  friend bool operator==(const Trial&, const Trial&) = default;
};

struct Tried {
  Point point;
  Trial trial;
};

struct TrialLimits {
  double seconds_per_token = std::numeric_limits<double>::infinity();  // no slower candidate is wanted
  double token_delay = std::numeric_limits<double>::infinity();        // most token_delay_mean
  double longest_delay = std::numeric_limits<double>::infinity();  // of any token, those held at the end too
};

// What the candidate would have come to under another limit, without running it again; nothing where that
// cannot be told from what is known.
std::optional<Trial> under_limit(const Trial& known, double limit);

// Where a candidate may find its plan: `alike` is what makes prices of documents equal (plan_key).
struct SharedPlans {
  PlanCache* cache = nullptr;  // null: it is planned on its own
  std::string alike = {};
};

// `study` has one row. Throws Interrupted once options.stop is set.
Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options, const SharedPlans& plans = {});

// A plan, and what priced the documents for it.
struct PackedRow {
  std::shared_ptr<const RunModels> models;
  std::shared_ptr<const Workload> workload;
  Plan plan;
};

// Plans that several candidates share. What a policy packs follows from the documents, its options with the
// sizes derived from memory, and the prices of documents; not from how many stages, model chunks or
// recomputed layers a layout has. So candidates that differ in those alone are planned once, as long as the
// plan is kept: the ones that were asked for least recently go first.
class PlanCache {
 public:
  // The plan of the first candidate with this key; `plan` makes it where there is none. Its models and its
  // workload are of another layout, but price documents alike. Threads that ask for the same key wait for
  // one of them. What `plan` throws is not kept.
  std::shared_ptr<const PackedRow> find(const std::string& key,
                                        const std::function<std::shared_ptr<const PackedRow>()>& plan);

 private:
  struct Slot {
    std::mutex planning;
    std::shared_ptr<const PackedRow> row;  // guarded by `planning`
    std::int64_t slices = 0;               // guarded by the cache's mutex, as all below
    std::list<std::string>::iterator turn;
  };
  void make_room();

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;
  std::list<std::string> turns_;  // least recently asked for first
  std::int64_t slices_ = 0;
};

// What two candidates must have in common to share a plan: `alike`, the keys of the layout that price
// documents, and the row as it was derived. Empty where a plan is the candidate's own: one from a file, or
// one that follows from simulated steps.
std::string plan_key(const std::string& alike, const RunModels& models, const PolicyRun& row);

// What a search has tried, in a file that survives being killed: a line a candidate, in the order of the
// search. A search that is resumed reads its results instead of trying again, and comes to the same end.
inline constexpr const char* kTuneJournal = "tune.journal";  // in --out
inline constexpr JournalKind kTuneJournalKind = {"equipoise.tune-journal/3", "equipoise tune", "search",
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
  // is overwritten. One that differs in `budget` alone tells what it knows, and stands beside the new one
  // until that is whole (kBefore). Throws UserError.
  Journal(const std::string& path, const nlohmann::json& asked, bool resume);

  // What the search's candidate number `n` comes to under `limit`, if an earlier run tells. Throws UserError
  // where that number is another candidate's.
  [[nodiscard]] std::optional<Trial> find(std::size_t n, Point point, double limit) const;
  // The search has come to its end.
  void close() const;
  // Appends the results of candidates `first` and on, as lines that survive the process.
  void add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials);

 private:
  static constexpr const char* kBefore = ".before";
  KnownTrials earlier_;       // by runs with another budget
  std::vector<Tried> tried_;  // by an earlier run of this one
  LineJournal lines_;
};

}  // namespace equipoise
