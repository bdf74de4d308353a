// The way of every row: prepare -> plan -> simulate -> judge.
//
// A study runs each of its rows so (run_row). `recompute: auto` and the search for what would make a row run
// send trials the same way and ask only whether they fit. `tune` ends its candidates early and shares their
// plans, and ranks that really run a row take its plan, so they go from stage to stage on their own:
//   prepare   ready_row                     its plan's file, the models of its layout   (pipeline.cpp)
//   plan      derive_sizes, pack_row        what memory decides, then the policy        (plan_row.cpp)
//   simulate  simulate_plan                 all steps, under the row's sharding rule    (simulate.cpp)
//   judge     describe_row                  metrics, memory, and why it did not run     (judge.cpp)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/workload.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/step_result.h"
#include "sim/step/step_simulator.h"
#include "sim/study/models.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

// --- Prepare
//
// A row from its entry to its result: what planning, simulating and judging it are given. The study is looked
// at once, where the row is made: what the stages after that need of it is the row's own.

struct StudyRow {
  // `entry` as the study has it, with the plan of its file. Throws UserError naming the study's file where
  // the profile cannot price the row's layout.
  StudyRow(const Study& study, const StudyInputs& inputs, const PolicyRun& entry);
  // Of other documents than the study's own. `profile`: null where nothing is known of times and memory
  // (`pack` without a model); then it has no models.
  StudyRow(const Study& study, const DocumentSet& documents, const Profile* profile, PolicyRun entry);

  const DocumentSet& documents;
  std::int64_t context_window;
  std::vector<std::string> notes;  // for the user, with the row's label
  PolicyRun run;                   // as it runs: recompute resolved, sizes derived once it is planned
  const SchedulePolicy& schedule;
  std::shared_ptr<const RunModels> models;   // of its layout
  std::shared_ptr<const Workload> workload;  // prices documents for packing and placement; null: not yet
  std::string no_room;  // why nothing fits into memory, so that there is no plan; else empty

  // So many layers of the model are checkpointed.
  void recompute_layers(int layers);
  // Its micro-batches under a sharding rule. Refers to the workload.
  [[nodiscard]] ShardRule rule(std::string_view shard) const;
  // Its own rule, where its plan is only tried: static-best decides a micro-batch at a time.
  [[nodiscard]] ShardRule trial_rule() const;
  [[nodiscard]] StepOptions step_options() const;
  void note(const std::string& text) { notes.push_back(run.label + ": " + text); }
};

// What prices its documents: gds, dacp and skrull balance by Skrull's FLOPs formula, everything else by the
// profile, unless the study says so.
std::shared_ptr<const Workload> workload_of(const StudyRow& row);

// The FLOPs of a document on a model (Skrull Eq. 13).
FlopsWorkload flops_workload(const ModelShape& model);

// `recompute: auto` becomes the fewest checkpointed layers with which the row runs: bisection, so some log2
// of the layers runs. What runs with no number of layers is left with all. hbp's groups take their own
// (Algorithm 4).
void resolve_recompute(StudyRow& row, const RunStudyOptions& options);

// The row of an entry, all of that resolved. `schedule: auto` is the fastest that fits of the study's,
// seq1f1b and state-aware-1f1b, the first of equals; where none fits, what the row has without the key.
StudyRow ready_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                   const RunStudyOptions& options);

// --- Plan
//
// From documents and memory to a row's plan: what the study leaves to memory is derived, what a policy leaves
// to a search is searched, then the policy packs. One planner for studies, searches and `pack`.
//
// Sizes that a policy needs and the user need not type (L_max, BucketSize, HBP's groups and what they
// recompute) follow from the memory of the row's own schedule (sim/memory/derived_sizes.h).

// Fills row.run.pack: max_tokens, bucket_size; row.no_room where nothing fits into memory. With
// `ignore_memory`, sizes are then those that policies take without a memory model.
void derive_sizes(StudyRow& row, bool ignore_memory);

// Layers of the model that packs of `length` tokens on `degree` ranks must checkpoint (HBP Algorithm 4); -1
// if they do not fit.
int layers_of_group(const StudyRow& row, std::int64_t length, int degree);

// The same for a search of groups (PlanPrices::layers); -1 for a degree that the layout has no groups of, too.
// Holds on to the row. Empty where neither the policy's search nor the choice of what is recomputed asks memory.
std::function<int(std::int64_t length, int degree)> layers_of_groups(const StudyRow& row);

// CP degrees that lanes of the row may have (PlanPrices::degrees): that of the layout times and by powers of
// two.
std::vector<int> degrees_of_lanes(const StudyRow& row);

struct PlannedRow {
  Plan plan;
  double pack_ms = 0;              // measured, mean per global batch
  std::vector<std::string> notes;  // for the user, with the row's label
};

// Packs; puts what was searched into row.run. Throws UnplaceableDocument where the policy cannot place a
// document, UserError where it refuses its options. A search that needs a memory model is left out where
// `prices` has none.
PlannedRow pack_row(StudyRow& row, const PlanPrices& prices);

// The same by the row's own workload, with simulated steps as prices.
PlannedRow pack_row(StudyRow& row, const RunStudyOptions& options);

// Tokens of the longest slice.
std::int64_t longest_of(const DocumentSet& documents);

// --- Simulate
//
// The steps of a row's plan, simulated at the fidelity asked for: one by one, or all of them on all threads.

// Simulates steps. One per thread. Keeps a reference to `rule`.
class StepRunner {
 public:
  // `threads`: of one step at op fidelity. `progress`: of a step with contention.
  StepRunner(const StudyRow& row, const ShardRule& rule, const StepOptions& options,
             const StepSettings& settings, int threads = 1, std::function<void(double)> progress = {});
  StepResult simulate(const Step& step, std::size_t number);
  [[nodiscard]] const OpStepSimulator* op() const { return op_.get(); }  // null at stage fidelity

 private:
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<StepSimulator> stage_;
  std::unique_ptr<OpStepSimulator> op_;
};

// A trial ends at the first step that does not fit into memory; the steps after it keep an empty result.
enum class Until { all_steps, first_that_does_not_fit };

// The row's steps by its own sharding rule, and the rule that ran: static-best is the better of its two, one
// that fits before one that does not, then the faster.
struct SimulatedPlan {
  std::string shard;
  std::vector<StepResult> steps;
};
SimulatedPlan simulate_plan(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                            Until until);

bool fits(const StepWork& step, double capacity_bytes);
bool all_fit(const std::vector<StepResult>& steps, double capacity_bytes);

// What a search of a plan's options minimises: the seconds of all its steps, by the row's trial rule.
double trial_seconds(const StudyRow& row, const Plan& plan, const RunStudyOptions& options);
// The same; infinite where a step does not fit.
double trial_seconds_that_fit(const StudyRow& row, const Plan& plan, const RunStudyOptions& options);
// The seconds of each step, infinite where it does not fit.
std::vector<double> trial_steps_that_fit(const StudyRow& row, const Plan& plan,
                                         const RunStudyOptions& options);

// Threads that are left for each step, at op fidelity, where there are more of them than steps.
int threads_of_step(int jobs, std::size_t steps);

// --- Judge
//
// What a row came to: its metrics and its memory, or why it did not run.

// Metrics, memory and notes of what ran; result.run is the row as it ran.
PolicyResult describe_row(const StudyRow& row, PlannedRow planned, SimulatedPlan simulated,
                          const RunStudyOptions& options);

// The model's states leave no room for any plan: the row says so, with the fullest stage and what it holds.
PolicyResult without_room(StudyRow row);

// What could not be planned or simulated.
PolicyResult not_run(PolicyRun row, RowStatus status, const std::string& reason);

// The peak that MFU is a share of, at the study's precision: of FP8 where GEMMs are in FP8, though attention
// is not. "989 TFLOP/s in bf16".
double peak_tflops(const Layout& layout, const DeviceFacts& device);
std::string peak_text(const Layout& layout, const DeviceFacts& device);

// One line: where memory ends, and by how much.
std::string out_of_memory_text(const OutOfMemory& fault);

// --- Look closer (details.cpp)
//
// What can be looked at of a row: files of its first steps (timelines and, at op fidelity, critical paths and
// Chakra traces), and for report.html a closer look at a few steps op by op, at what every stage holds and at
// how long tokens wait.
//
// The steps looked at are those that say most about a row: the one of median time, the slowest, the fastest,
// the one that holds the most memory. What is kept is bounded, so that a page of many rows stays small: lanes
// of a step are taken from both ends (the last to end, the first to end) while there is room.

// Simulates the first steps once more, writes what options.details asks for, and looks closer at the chosen
// steps. `result` has its steps, its peak and its plan; `rule` is the one that ran. Under contention, where a
// step is dear, only the steps written are looked at. Throws UserError where a file cannot be written.
void add_details(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                 PolicyResult& result);

// Simulates the slowest step once more, op by op and without contention, for options.check_step.
void show_slowest_step(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                       const PolicyResult& result);

// The label of a row, or the name of a case, as the name of a file or folder.
std::string file_name(const std::string& label);

// --- Advise (fit.cpp)
//
// What would make a row run that does not: the smallest change of the study, found by trying changes on the
// models and not from a list of advice.
//
// Changes are tried in an order in which each asks more of the user than the ones before: first what costs
// time only (checkpointed layers, the fewest that do), then the policy's own sizes (the closest that do),
// then how states are sharded, then CP ranks instead of replicas, then the optimizer's states to the host,
// all of them on the GPUs there are; then more GPUs for context parallelism, at last what changes the data. A
// change counts only if the whole row runs with it: same documents, new plan, every step within memory. What
// it costs in time is said beside it. Cost: some tens of runs of the row at stage fidelity at most, and of a
// row that runs none.

// How the row ends with these changes made.
struct RowEnd {
  RowStatus status = RowStatus::ok;
  double seconds_per_token = 0;  // 0: unknown
};
using TryRow = std::function<RowEnd(const Study& study, const PolicyRun& run)>;

struct FailedRow {
  const Study& study;
  const PolicyRun& run;  // as the study states it, nothing derived
  RowStatus status = RowStatus::oom;
  std::int64_t longest_document = 0;  // tokens of the longest slice of the study
  // Where memory is what it lacks: seconds per token if there were enough; 0: unknown.
  std::function<double()> with_enough_memory = {};
};

// "fits with recompute {\"layers\": 12}, 1.08x the time that enough memory would take"; what was tried in
// vain where nothing helps.
std::string smallest_change(const FailedRow& row, const TryRow& try_row);

// --- The whole way

// Plans and simulates: both are empty where nothing fits (row.no_room). Throws UnplaceableDocument where the
// policy cannot place a document, UserError where it refuses its options.
struct SimulatedRow {
  PlannedRow planned;
  SimulatedPlan ran;
};
SimulatedRow simulate_row(StudyRow& row, const RunStudyOptions& options, Until until);

// All of it. What the row's own options do not allow is its reason, with options.find_fits followed by what
// would make it run; a file that cannot be written is an error of the whole study.
PolicyResult run_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                     const RunStudyOptions& options);

}  // namespace equipoise
