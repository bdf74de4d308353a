// A row with everything that running it takes: models of its layout, its derived sizes, its plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/study/planner.h"
#include "sim/study/run.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct ReadyRow {
  PolicyRun row;  // as it runs: recompute resolved, sizes derived
  std::unique_ptr<RunModels> models;
  std::unique_ptr<Workload> workload;
  PlannedRow planned;
  std::vector<std::string> notes;  // with the row's label
  std::string no_room;             // why nothing fits into memory: then there is no plan; else empty

  // Refers to this row, the study and its inputs.
  [[nodiscard]] Run run(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) const {
    return {study, *models, inputs.documents, row, *workload, options};
  }
};

// `row` as the study has it, with its models; no plan yet. Throws UserError naming the study's file.
ReadyRow row_with_models(const Study& study, const StudyInputs& inputs, PolicyRun row,
                         const RunStudyOptions& options);
// Derives its sizes and packs: both of the next. Throws UnplaceableDocument where the policy cannot place a
// document, UserError where it refuses its options.
void plan_ready_row(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                    ReadyRow& ready);
void derive_sizes(const Study& study, const RunStudyOptions& options, ReadyRow& ready);
void pack_ready_row(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                    ReadyRow& ready);

}  // namespace equipoise
