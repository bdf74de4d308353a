// Runs a study: every policy plans the same documents, every step of every plan is simulated, and the results
// become metrics (specs of the names: sim/metrics).
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "profiler/profile/profile.h"
#include "sim/engine/stage/step_result.h"
#include "sim/memory/memory_model.h"
#include "sim/metrics/metrics.h"
#include "sim/study/memory_report.h"
#include "sim/study/row_status.h"
#include "sim/study/step_runner.h"
#include "sim/study/study.h"
#include "traces/trace.h"

namespace equipoise {

struct RunStudyOptions {
  int jobs = 1;              // threads; results do not depend on it
  bool record_gpus = false;  // keep the compute seconds of every GPU
  bool keep_plans = false;
  StepSettings steps;          // fidelity
  DetailOptions details;       // timelines and critical paths
  bool ignore_memory = false;  // what does not fit is simulated all the same; its status stays oom
  bool find_fits = true;       // search what would make a row run that does not (fit_search.h)
  std::function<void(const std::string& label)> progress;  // called before each policy
  const std::atomic<bool>* stop = nullptr;                 // set: the run ends with Interrupted
};

// The user stopped the run; what was not finished is gone.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

// Out of memory is a result: which GPU, when, how much it needed.
struct OutOfMemory {
  int step = 0;
  int lane = 0;
  int stage = 0;
  int rank = 0;  // CP
  int micro_batch = 0;
  double need_bytes = 0;
  double capacity_bytes = 0;
  std::string reason;            // where it is not the modelled peak (a broken bucket)
  bool before_any_plan = false;  // what the stage holds anyway leaves no room: `reason` says for what
};

struct PolicyResult {
  PolicyRun run;  // with everything that was derived filled in
  RowStatus status = RowStatus::ok;
  std::string reason;           // one line: why it did not run, and what would make it; empty where ok
  bool memory_ignored = false;  // oom, and yet simulated
  OutOfMemory memory_fault;     // where oom
  Metrics metrics;
  MemoryPeak peak;
  PeakMoment peak_moment;
  double capacity_bytes = 0;
  double pack_ms = 0;  // measured, mean per global batch
  RangeUse use;
  std::vector<std::string> notes;
  std::vector<StepResult> steps;
  std::vector<char> tail;  // by step
  // With record_gpus: compute seconds of each GPU, mean over full steps: [(stage * replicas + replica) *
  // tensor + TP rank], replica = place among the data x context ranks of the stage; tensor: 1 if TP ranks do
  // the same.
  std::vector<double> gpu_compute;
  int gpu_tensor = 1;
  int gpus_per_node = 1;
  Layout layout;  // the study's, with what the policy changes
  Plan plan;      // with keep_plans

  // Whether there are times and what follows from them.
  [[nodiscard]] bool simulated() const { return status == RowStatus::ok || memory_ignored; }
};

struct StudyResult {
  std::string trace_origin;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t dropped_tokens = 0;
  std::string profile;
  std::string
      kernels;  // how much slower the framework runs them on the profile's GPU than alone; empty: none priced
  std::vector<std::string> notes;  // of the framework on the profile's GPU
  std::vector<PolicyResult> policies;
  std::size_t baseline = 0;
};

// What all policies of a study share. Loading it finds what is wrong with the study as a whole.
struct StudyInputs {
  Profile profile;
  Trace trace;
  DocumentSet documents;
};
// Throws UserError: an unknown profile, a trace that is too short, a layout that the profile cannot price.
StudyInputs load_inputs(const Study& study);

// A policy that cannot run is a row with its reason. Throws Interrupted, and UserError where files of
// options.details cannot be written.
StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options);
StudyResult run_study(const Study& study, const RunStudyOptions& options);

// Every row refused for the same reason: a case of a sweep that cannot run at all.
StudyResult refused_study(const Study& study, const std::string& reason);

}  // namespace equipoise
