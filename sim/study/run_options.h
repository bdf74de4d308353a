// The options of a study's run: fidelity, threads, what is kept and what is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/plan.h"
#include "sim/memory/memory_model.h"
#include "sim/step/op_run.h"
#include "sim/step/step_result.h"
#include "sim/study/cores.h"
#include "sim/timeline/timeline.h"
#include "sim/verify/check_step.h"

namespace equipoise {

struct PolicyResult;

enum class Fidelity { stage, op };
inline constexpr std::string_view kFidelityNames[] = {"stage", "op"};
Fidelity parse_fidelity(const std::string& text);  // throws UserError

// Options of `op` fidelity; the defaults make it agree with `stage`.
struct OpFidelity {
  bool fold_tp = true;
  bool contention = false;  // whether flows share the links of the study's network
  double jitter = 0;        // relative standard deviation of every op
  std::uint64_t seed = 0;
  std::vector<std::pair<int, double>> stragglers;  // GPU number, speed (0.8: 20% slower than nominal)

  [[nodiscard]] bool is_plain() const { return !contention && jitter == 0 && stragglers.empty(); }
};

// "12:0.8,77:0.5". Throws UserError.
std::vector<std::pair<int, double>> parse_stragglers(const std::string& text);

struct StepSettings {
  Fidelity fidelity = Fidelity::stage;
  OpFidelity op;
};

// Throws UserError for stragglers that are no GPU of the run.
void check_stragglers(const StepSettings& settings, std::int64_t gpus);

// Limit of ops in the timelines of one report.html, over all rows.
inline constexpr std::size_t kOpsOfPage = 40000;

// What is written about the first steps of every policy.
struct DetailOptions {
  std::string directory;  // for timeline/LABEL.pftrace and critical_path/LABEL.json; may be empty
  int steps = 1;
  bool gzip = false;  // writes timeline/LABEL.pftrace.gz
  TimelineSelection selection;
  bool chakra = false;  // op fidelity: writes chakra/LABEL/step.GPU.et for the first step
  std::size_t most_ops =
      kOpsOfPage;  // ops of a row's steps that report.html draws; a micro-batch counts as a few
};

struct RunStudyOptions {
  int jobs = 1;               // threads; results do not depend on it
  Cores::Row* row = nullptr;  // the row that owns the threads, if rows share them
  bool record_gpus = false;   // keeps the compute seconds of every GPU
  bool keep_plans = false;    // all steps of them; else a row has only its figures
  bool verify = false;        // checks plans, steps and table (run_checked)
  bool rows_in_turn = false;    // memory holds only one row at a time
  std::size_t steps_of_block = 0;  // planned and simulated at a time; 0: by the threads. Results are the same
  StepSettings steps;           // fidelity
  DetailOptions details;        // timelines and critical paths
  bool ignore_memory = false;   // also simulates what does not fit; its status stays oom
  std::optional<double> max_delay;  // instead of the study's
  double tokens_of_job = 0;     // tokens of the job whose time and price are printed; none if 0
  bool find_fits = true;        // searches what would make a failed row run (row/fit.cpp)
  std::function<void(const std::string& label)> progress;  // called before each policy, one call at a time
  std::function<void(const PolicyResult&)> row_done;       // called after each policy, one call at a time
  std::function<void(double share)> progress_of_row;       // under contention, gets the share of a row's
                                                           // steps
  // Called with the slowest step of every row, at op fidelity and without contention; by several rows at
  // once.
  std::function<void(const std::string& label, const StepToCheck&)> check_step;
  const std::atomic<bool>* stop = nullptr;  // once set, the run ends with Interrupted
  bool keep_finished =
      false;  // if a row has finished by then, the study ends with it instead (StudyResult::incomplete)

  // Whether a row's steps are needed after they are simulated.
  [[nodiscard]] bool keeps_steps() const { return keep_plans || verify || !details.directory.empty(); }
};

// The options for a run that only needs times: stage fidelity, nothing kept or written.
RunStudyOptions trial_options(const RunStudyOptions& options);

// The user stopped the run, and unfinished work is lost.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

// Throws Interrupted once options.stop is set, or another row's error has ended the study.
void end_if_stopped(const RunStudyOptions& options);

}  // namespace equipoise
