// What a study would allocate and write, from its file and options alone: estimates that are held against
// --max-memory-GB and --max-output-GB before anything is drawn, packed or simulated.
//
// A plan is as large as its pieces are many: the loader's windows and documents, cut by the sizes that a
// policy was given (chunk_size, max_tokens, pack_length). A micro-batch that holds at most `capacity` tokens
// needs tokens / capacity of them; where the bins of a step hold less than what arrives, the rest is carried
// from step to step, and every step lists it. Simulating takes, for every thread, the costs and the schedule
// of one lane (stage fidelity) or of one step (op fidelity), with contention the times of a step twice. The
// numbers of ops of a layer are those of the cost model.
//
// Within a factor of two of what is allocated, tests/sim/study/test_planned_memory.cpp.
#pragma once

#include "sim/limits/memory_limit.h"
#include "sim/study/models.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

// The documents of all global batches of a study, counted.
struct DocumentTotals {
  double documents = 0;  // a file's are not known before it is read: then one a window
  double tokens = 0;
  double batches = 0;
  double lengths = 0;  // of the trace that is held
};
DocumentTotals foreseen_documents(const Study& study);
DocumentTotals totals_of(const DocumentSet& documents);

// How many pieces a policy's plan has.
struct PlanSize {
  double steps = 0;
  double micro_batches = 0;
  double slices = 0;   // in micro-batches
  double carried = 0;  // in the steps' lists of what they hold back
};
PlanSize plan_size(const PolicyRun& run, const DocumentTotals& totals);

// Bytes of the trace, its slices and one policy's plan.
double documents_bytes(const DocumentTotals& totals);
double plan_bytes(const PlanSize& size, const PackOptions& pack);

// Bytes of simulating a plan: results of all steps, and what every thread works in.
double simulation_bytes(const RunModels& models, const PolicyRun& run, const PlanSize& size,
                        const RunStudyOptions& options);

// Bytes of what `details` writes of one policy: timelines and Chakra traces.
double details_bytes(const RunModels& models, const PolicyRun& run, const PlanSize& size,
                     const RunStudyOptions& options);
double plan_json_memory(const PlanSize& size);

// Throws UserError where a policy's plan would not fit into the limit. Needs neither trace nor profile.
void check_planned_memory(const Study& study, const DocumentTotals& totals, const RunStudyOptions& options,
                          const MemoryLimit& limit);

// The same for simulating it, and for the files that options.details and keep_plans ask for. Sets
// options.rows_in_turn where two rows at a time would not fit.
void check_planned_run(const Study& study, const StudyInputs& inputs, RunStudyOptions& options,
                       const MemoryLimit& limit, double max_output_GB);

}  // namespace equipoise
