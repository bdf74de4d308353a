// What comes out of a study: a row a policy, and what all rows share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "sim/step/step_result.h"
#include "sim/memory/memory_model.h"
#include "sim/metrics/metrics.h"
#include "sim/study/length_bins.h"
#include "sim/study/memory_report.h"
#include "sim/study/provenance.h"
#include "sim/study/row_details.h"
#include "sim/study/row_status.h"
#include "sim/study/study.h"

namespace equipoise {

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
  Layout layout;       // the study's, with what the policy changes
  Plan plan;           // with keep_plans
  RowDetails details;  // with options.details

  // Whether there are times and what follows from them.
  [[nodiscard]] bool simulated() const { return status == RowStatus::ok || memory_ignored; }
};

struct StudyResult {
  std::string trace_origin;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t dropped_tokens = 0;
  std::string profile;
  // How much slower the framework runs kernels on the profile's GPU than alone; empty: none priced.
  std::string kernels;
  std::vector<std::string> notes;  // of the framework on the profile's GPU
  Fidelity fidelity = Fidelity::stage;
  std::vector<InputSource> sources;
  std::vector<LengthBin> lengths;
  std::vector<PolicyResult> policies;
  std::size_t baseline = 0;
};

}  // namespace equipoise
