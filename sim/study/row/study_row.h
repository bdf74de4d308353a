// A row from its entry to its result: what planning, simulating and judging need of the study. The study is
// read once, where the row is made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/loader.h"
#include "policies/workload.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/step_simulator.h"
#include "sim/study/models.h"
#include "sim/study/read/study.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct StudyRow {
  // `entry` as the study has it, with the plan of its file. Throws UserError naming the study's file where
  // the profile cannot price the row's layout.
  StudyRow(const Study& study, const StudyInputs& inputs, const PolicyRun& entry);
  // The row has other documents than the study's own. `profile`: null where nothing is known of times and
  // memory (`pack` without a model); then it has no models.
  StudyRow(const Study& study, const DocumentSet& documents, const Profile* profile, PolicyRun entry);

  const DocumentSet& documents;
  std::int64_t context_window;
  Notes notes;    // for the user, with the row's label
  PolicyRun run;  // as it runs: recompute resolved, and sizes derived once it is planned
  const SchedulePolicy& schedule;
  std::shared_ptr<const RunModels> models;   // for its layout
  std::shared_ptr<const Workload> workload;  // prices documents for packing and placement; null at first
  std::optional<Note> no_room;  // why nothing fits into memory, so that there is no plan; else empty

  // Checkpoints so many layers of the model.
  void recompute_layers(int layers);
  // Its micro-batches under a sharding rule, which refers to the workload.
  [[nodiscard]] ShardRule rule(std::string_view shard) const;
  // Its own rule for trials of its plan: static-best then decides for each micro-batch.
  [[nodiscard]] ShardRule trial_rule() const;
  [[nodiscard]] StepOptions step_options() const;
  void note(Note what) { notes.push_back(about(run.label, std::move(what))); }
};

}  // namespace equipoise
