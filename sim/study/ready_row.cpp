#include "sim/study/ready_row.h"

#include <utility>

#include "sim/study/read/json_object.h"
#include "sim/study/row_trial.h"

namespace equipoise {

ReadyRow row_with_models(const Study& study, const StudyInputs& inputs, PolicyRun row,
                         const RunStudyOptions& options) {
  ReadyRow ready;
  row = with_plan(std::move(row), inputs.plans, ready.notes);
  resolve_recompute(study, inputs, row, options, ready.notes);
  ready.models = naming(
      study.file, [&] { return std::make_unique<RunModels>(study, layout_of(study, row), inputs.profile); });
  ready.row = std::move(row);
  return ready;
}

void derive_sizes(const Study& study, const RunStudyOptions& options, ReadyRow& ready) {
  ready.no_room = derive_options(study, *ready.models, ready.row, ready.notes);
  if (ready.no_room.empty() || !options.ignore_memory) return;
  derive_without_memory(study, ready.row);
  ready.no_room.clear();
}

void pack_ready_row(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                    ReadyRow& ready) {
  ready.workload = workload_of(study, *ready.models, ready.row);
  ready.planned = plan_row(ready.run(study, inputs, options), ready.row);
}

void plan_ready_row(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                    ReadyRow& ready) {
  derive_sizes(study, options, ready);
  if (ready.no_room.empty()) pack_ready_row(study, inputs, options, ready);
}

}  // namespace equipoise
