// The commands that take a study: study, check, tune, merge, export, report, execute and validate. Each is a function over a
// struct of options, which knows no parser, so tests call it. It returns the program's exit status and throws
// UserError for wrong input.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/line_journal.h"
#include "sim/study/run_study.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct Exporter;
class ExportedRow;

// What the commands take that simulate on all cores.
struct SimulationOptions {
  int jobs = 0;              // threads; 0: all cores
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
  bool quiet = false;
};

// `equipoise study`: every policy of a study on the same documents.
struct StudyOptions : SimulationOptions {
  std::string file;
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // key.path=a,b,c: the product of all is run
  std::string out;                 // directory; empty: nothing is written
  std::string shard;    // "i/n": these cases of a sweep, into out/shard-i-of-n; empty: by rank, or all
  bool resume = false;  // of a sweep: cases that `out` has are not run again
  std::string fidelity = "stage";
  bool no_fold_tp = false;  // op fidelity: every GPU its own tasks
  bool contention = false;  // op fidelity: flows share links
  double jitter = 0;        // op fidelity: relative standard deviation
  std::uint64_t jitter_seed = 0;
  std::string stragglers;      // op fidelity: GPU:SPEED,...
  int timeline_steps = 1;      // with out: of every policy
  bool timeline_gzip = false;  // compressed
  // Numbers, comma-separated, or all. Where nothing is said: all, but at op fidelity, where every kernel is
  // drawn, the first lane and the first stage.
  std::string timeline_lanes, timeline_stages, timeline_ranks;
  std::string timeline_counters = "memory,tokens";  // or none
  bool chakra = false;         // with out, op fidelity: Chakra execution traces of every policy's first step
  bool ignore_memory = false;  // times of rows that do not fit, marked
  bool verify = false;         // plans, times and sums are looked at once more
  std::string version;         // of the program, for the receipt
  std::int64_t max_cases = kDefaultCases;   // of a sweep
  double max_output_GB = kDefaultOutputGB;  // of a case, in out
};

// Prints the comparison (of a sweep: one table, a line per case and policy) and writes the results. All cases
// of a sweep are read and checked before any runs; what only running one finds (a trace that is too short)
// makes its rows refused, and the others run. A study that would take more cases, memory or disk than allowed
// is refused before any case runs. Once `stop` is set the command ends as soon as it can: cases that are
// finished are printed and written, and the status is 130 instead of 0.
int run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

void print_checks(const std::vector<Check>& checks, Format format, std::ostream& out);

// `equipoise verify`: a saved summary held against its receipt, its inputs as they are now, and a new run.
struct VerifyOptions : SimulationOptions {
  std::string file;  // summary.json
  std::string version;
};
// 0 where all holds, 1 where something differs. Throws UserError where there is no receipt, or an input is
// gone.
int run_verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

// The study of a command that runs it. Throws UserError where its layout is impossible.
Study possible_study(const std::string& file, const std::vector<std::string>& set);
// The study run on the threads and within the memory of the options (command_check.cpp).
StudyResult run_within(const SimulationOptions& options, const Study& study, const std::atomic<bool>& stop,
                       bool keep_plans = false);
// What a framework's flags come to of a row without what none of them says (command_export.cpp): packed and
// sharded as they say, on the same layout. Nothing where they say the row itself.
struct FlagsAlone {
  std::optional<PolicyResult> row;
  std::string what;  // "plain, per-document", or why no row is known
};
std::optional<FlagsAlone> flags_alone(const SimulationOptions& options, const Exporter& to,
                                      const ExportedRow& row, const std::atomic<bool>& stop);

// `equipoise check`: a study held against what it is expected to show.
struct CheckOptions : SimulationOptions {
  std::string file;
  std::vector<std::string> set;  // key.path=value
  std::string expect;            // equipoise.expectation/1
  std::vector<std::string> metrics = {"speedup", "step_seconds"};
  // Of the expected value, "0.5%" or 0.005: one for each metric, or one for all; empty: each metric's own.
  std::vector<std::string> tolerances;
  bool only_worse = false;  // a metric that is better than expected does not fail
  bool update = false;      // write what was found into `expect`
  std::string junit;    // file for CI systems; empty: none
};

// Runs the study and prints each policy's expected and found value. Returns 0 where nothing moved and where
// the file was updated, 1 where something did, 130 once `stop` is set. A file that is there and is no
// expectation is refused, --update or not.
int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

// `equipoise tune`: the fastest policy, options and layout for a study's documents, model and cluster.
struct TuneOptions : SimulationOptions {
  std::string file;
  std::vector<std::string> set;   // key.path=value
  std::string space;              // SPACE.json; empty: the default space
  std::int64_t budget = 2'000;    // most candidates tried
  double minutes = 0;             // the search ends then, whatever it has tried; 0: never
  std::vector<double> max_delay;  // most mean and most largest delay, or one number for both; empty: any
  std::int64_t gpus = 0;          // exactly so many; 0: the study's
  std::string target;             // layouts that this framework has flags for; empty: all
  std::string out;                // folder for tune.json, best.json and the journal; empty: nothing
  bool resume = false;            // go on with the journal in `out`
  std::string shard;  // "i/n": one share of the search, into out/shard-i-of-n; empty: by rank, or all
};

// Prints the ranking and writes out/tune.json and out/best.json. 0 even if no candidate runs or the time is
// over; 130 once `stop` is set: what was tried is in the journal then, and the best of it is printed. A shard
// only writes its journal.
int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop);

// `equipoise merge`: the results of a search or a sweep that several machines shared.
struct MergeOptions : SimulationOptions {
  std::string out;                   // folder of the whole
  std::vector<std::string> folders;  // shards, or folders that hold some
  double minutes = 0;                // most of trying what the shards of a search did not; 0: any
};

// Prints and writes what one machine would have. A shard that is missing or of another run is an error.
int run_merge_command(const MergeOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

// The shards that were found, which must be all of one run, each once.
class PartsFound {
 public:
  explicit PartsFound(const JournalKind& kind) : kind_(kind) {}

  // `asked`: as the shard's journal at `path` has it.
  void add(nlohmann::json asked, const std::string& path);
  // What the whole run was asked for. Throws UserError where a shard is missing.
  [[nodiscard]] const nlohmann::json& whole() const;

 private:
  JournalKind kind_;
  nlohmann::json asked_;  // without the share
  int count_ = 0;
  std::map<int, std::string> path_of_;
};

// Copies the cases of all shards of a sweep into one folder and prints them as one sweep.
int merge_sweep(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out);

// Ranks what all shards of a search found, from their journals, as if one machine had searched.
int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop);

// `equipoise export`: a row of a study as what a training framework is told.
struct ExportOptions : SimulationOptions {
  std::string file;
  std::string target;              // megatron, nemo, deepspeed, torchtitan, verl or slurm
  std::string row;                 // label; empty: the fastest
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // slurm: key.path=a,b,c; empty: a search
  int tasks = 8;                   // slurm
};

// Runs the study, for what a run derives (recompute auto, L_max), and prints flags or config; what cannot be
// expressed stands in it as comments, and on `log`.
int run_export_command(const ExportOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

// `equipoise report`: the page of a saved result, or of two side by side.
struct ReportOptions {
  std::string first, second;  // folders of --out, or their summary.json; empty: only one
  std::string out;            // page; empty: none
  Format format = Format::table;
};

// Prints the table of the one, or what changed from the first to the second.
int run_report_command(const ReportOptions& options, std::ostream& out, std::ostream& log);

// What the commands take that run plans for real, on ranks of this machine.
struct RankOptions {
  std::string file;              // the study
  std::vector<std::string> set;  // key.path=value
  std::string policy;            // label; empty: all
  int steps = 1;                 // of each plan
  int repetitions = 1;           // how often they are timed
  std::string device = "cpu";
  bool replay = false;  // one rank after the other on one device
  std::uint64_t seed = 7;
  double max_memory_GB = 0;        // of all ranks on this machine; 0: default_memory_limit()
  double op_timeout_seconds = 20;  // a rank that computes one op for so long, while others wait, hangs
  std::string out;                 // folder for execution.json, or validation.json, .txt, .svg and timelines
  Format format = Format::table;
  bool quiet = false;
};

// `equipoise execute`: the plans of a study, run for real and held against every slice alone.
struct ExecuteOptions : RankOptions {
  std::string normalizer = "token";
  std::string dump;  // folder; empty: none
};

// Starts the ranks where no launcher has. Prints, on rank 0, the comparison and the measured steps. Returns
// 0, or 1 where a plan is not equivalent. `arguments`: those of the program, for the ranks.
int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log);

// `equipoise validate`: a study run for real and simulated, compared op by op; or a log of somebody's run.
struct ValidateOptions : RankOptions {
  ValidateOptions() { steps = 20, repetitions = 3; }
  double minutes = 3;         // of profiling at most; 0: the study's profile as it is
  int calibration_steps = 4;  // of each plan on other documents, for how long ops take inside a step
  std::string measured;       // a log instead of a run
};

// Returns 0, or 1 where a stated limit is broken. `arguments`: those of the program, for the ranks.
int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log);

}  // namespace equipoise
