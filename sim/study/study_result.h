// The result of a study: a row for each policy, and what all rows share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/note.h"
#include "policies/plan.h"
#include "sim/framework/framework_runs.h"
#include "sim/memory/memory_model.h"
#include "sim/metrics/metrics.h"
#include "sim/step/step_result.h"
#include "sim/study/plan_facts.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// How a policy of a study ended. One that cannot run is a row with its reason and does not end the study.
enum class RowStatus : std::uint8_t {
  ok,
  oom,          // the plan, or what a GPU holds under any plan, does not fit into memory
  unplaceable,  // the policy cannot place a document
  refused,      // the policy, the sharding or the schedule refuses its input
};

inline constexpr std::string_view kRowStatusNames[] = {"ok", "oom", "unplaceable", "refused"};
constexpr const char* name_of(RowStatus status) {
  return kRowStatusNames[at(status)].data();
}

// When, in its step, the op ran that sets the peak.
struct PeakMoment {
  int step = -1;  // -1 if no step ran
  std::optional<TimeSpan> op;
};

// A closer look at a row, for report.html.
struct DrawnMicroBatch {
  std::int64_t tokens = 0;
  std::int64_t slices = 0;
  std::int64_t longest = 0;  // tokens of its longest slice
  std::string documents;     // the first of its documents' ids
  Picoseconds forward = 0;   // time through all stages, alone
};

struct DrawnLane {
  int lane = 0;
  int context = 1;
  std::vector<DrawnMicroBatch> micro_batches;
  std::vector<StageOp> ops;  // by stage, in order of time
};

struct DrawnStep {
  int step = 0;
  std::string why;  // "median time", "slowest, most memory", ...
  Picoseconds makespan = 0, pipeline = 0;
  int lanes_of_step = 0;
  std::vector<DrawnLane> lanes;  // last to end first; fewer than lanes_of_step if there is no room
};

struct RowDetails {
  int typical_step = -1;  // the median step in time among full steps; -1 if no step ran
  std::vector<DrawnStep> steps;
  int memory_step = -1;
  std::vector<MemoryPeak> stage_peaks;        // by stage, in memory_step
  std::vector<std::int64_t> tokens_by_delay;  // plan_metrics.h
  std::string critical_path;                  // the JSON of critical_path/LABEL.json; empty at stage fidelity
};

// Out of memory is a result: it says which GPU, when, and how much it needed.
struct OutOfMemory {
  int step = 0;
  int lane = 0;
  int stage = 0;
  int rank = 0;  // CP
  int micro_batch = 0;
  double need_bytes = 0;
  double capacity_bytes = 0;
};

struct PolicyResult {
  PolicyRun run;  // with all derived values filled in
  RowStatus status = RowStatus::ok;
  Notes reasons;                  // why it did not run, then what would make it run; empty if ok
  std::optional<RunsIn> runs_in;  // in the study's framework; none if that is unknown
  Notes needs;                    // what it needs that the framework lacks
  bool memory_ignored = false;    // oom, but simulated
  OutOfMemory memory_fault;     // where oom
  Metrics metrics;
  MemoryPeak peak;
  PeakMoment peak_moment;
  double capacity_bytes = 0;
  bool memory_tight = false;  // ok, but less memory is free than cluster.memory_headroom asks for
  double pack_ms = 0;  // measured, mean per global batch
  RangeUse use;
  Notes notes;
  std::vector<StepFigures> steps;
  // With record_gpus: compute seconds of each GPU, mean over full steps: [(stage * replicas + replica) *
  // tensor + TP rank], replica = place among the data x context ranks of the stage; tensor: 1 if TP ranks do
  // the same.
  std::vector<double> gpu_compute;
  int gpu_tensor = 1;
  int gpus_per_node = 1;
  Layout layout;       // the study's, with the policy's changes
  std::string shard;   // the rule that ran: for static-best the better of its two; empty if nothing ran
  PlanFacts facts;     // of its plan
  Plan plan;           // with keep_plans
  RowDetails details;  // with options.details

  // Whether there are times, and metrics that depend on them.
  [[nodiscard]] bool simulated() const { return status == RowStatus::ok || memory_ignored; }
};

// The origin of one of a study's inputs.
struct InputSource {
  std::string what;   // "documents", "GEMM times"
  std::string value;  // its name in this study
  std::string kind;   // measured, published, derived, simulated, stated (by the study), assumed; or several
  std::string from;   // sources as plain text; may be empty
};

// Document lengths of a study and their work. Attention is quadratic, so a few long ones make most of it.
struct LengthBin {
  std::int64_t begin = 1, end = 2;  // tokens: begin <= length < end, powers of two
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  double causal_pairs = 0;
};

struct StudyResult {
  std::string trace_origin;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t dropped_tokens = 0;
  std::size_t batches = 0;   // global batches that the loader made
  double max_delay = 1;      // iterations: the largest mean delay of a row that may be called fastest
  double tokens_of_job = 0;  // tokens of the job whose time and price are printed; none if 0
  std::string profile;
  // How much slower than alone the framework runs kernels on the profile's GPU; empty if no kernel is priced.
  Notes kernels;
  SlowdownRule slowdowns = SlowdownRule::alone;
  StepFamily family;                            // of the study's steps
  std::optional<ExpectedError> expected_error;  // none: unknown
  Notes kernel_errors;                          // what the profile's fits state if that is unknown
  std::optional<Note> mfu_peak;                 // what MFU is a share of; empty if the profile does not say
  Notes notes;                                  // on the framework with the profile's GPU
  std::optional<Note> network_note;  // if the network is another cluster's; printed after the study
  Fidelity fidelity = Fidelity::stage;
  std::vector<InputSource> sources;
  std::vector<LengthBin> lengths;
  std::vector<PolicyResult> policies;
  std::size_t baseline = 0;
  bool incomplete = false;  // whether the user ended it before all rows were done
};

}  // namespace equipoise
