#include "sim/study/row/pipeline.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "policies/base/error.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/row/details.h"
#include "sim/study/row/fit.h"
#include "sim/study/row/judge.h"
#include "sim/study/row/runs_in.h"

namespace equipoise {
namespace {

double seconds_per_token_of(const std::vector<StepFigures>& steps) {
  double seconds = 0, tokens = 0;
  for (const StepFigures& step : steps) {
    seconds += to_seconds(step.times.makespan);
    tokens += static_cast<double>(step.work.tokens);
  }
  return tokens > 0 ? seconds / tokens : 0;
}

// How a row ends, without the parts that only a shown row needs. `trial` comes from trial_options.
RowEnd try_row(StudyRow row, const RunStudyOptions& trial, Until until = Until::first_that_does_not_fit) {
  const std::vector<StepFigures> steps = simulate_row(row, trial, until).ran.steps;
  const bool runs = !row.no_room && all_fit(steps, row.models->memory.room_bytes());
  return {runs ? RowStatus::ok : RowStatus::oom, seconds_per_token_of(steps)};
}

// As if a GPU had enough memory; 0 if the row cannot be planned even then.
double seconds_with_enough_memory(StudyRow row, RunStudyOptions trial) {
  trial.ignore_memory = true;
  try {
    return seconds_per_token_of(simulate_row(row, trial, Until::all_steps).ran.steps);
  } catch (const UserError&) {
    return 0;
  }
}

bool runs_with(const StudyRow& row, int layers, const RunStudyOptions& trial) {
  try {
    StudyRow tried = row;
    tried.recompute_layers(layers);
    return try_row(std::move(tried), trial).status == RowStatus::ok;
  } catch (const UserError&) {
    return false;  // memory derives L_max and BucketSize, too
  }
}

// What would make a row run that ended as `status`; empty where nothing is known.
std::optional<Note> what_would_run(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                                   RowStatus status, const RunStudyOptions& trial) {
  const auto ends = [&](const Study& changed, PolicyRun tried) {
    if ((tried.has_recompute ? tried.recompute : changed.layout.recompute) == Recompute::automatic) {
      tried.has_recompute = true;  // if not with all layers, then with none
      tried.recompute = Recompute::full;
    }
    if (changed.batch.sequences_per_step == study.batch.sequences_per_step)
      return try_row({changed, inputs.documents, &inputs.profile, std::move(tried)}, trial);
    const DocumentSet documents = documents_of(changed, load_trace(changed));
    return try_row({changed, documents, &inputs.profile, std::move(tried)}, trial);
  };
  Notes told;  // the row's own notes
  const PolicyRun run = with_plan(entry, inputs.plans, told);
  const auto with_enough_memory = [&] {
    Study unbounded = study;
    PolicyRun ran = run;
    for (Recompute* mode : {&unbounded.layout.recompute, &ran.recompute})
      if (*mode == Recompute::automatic) *mode = Recompute::none;
    return seconds_with_enough_memory({unbounded, inputs.documents, &inputs.profile, ran}, trial);
  };
  return smallest_change({study, run, status, longest_of(inputs.documents),
                          status == RowStatus::oom ? with_enough_memory : std::function<double()>()},
                         ends);
}

PolicyResult run_prepared(StudyRow row, const RunStudyOptions& options) {
  SimulatedRow simulated;
  try {
    simulated = simulate_row(row, options, Until::all_steps);
  } catch (const UnplaceableDocument& e) {
    return not_run(std::move(row.run), RowStatus::unplaceable, fault_note(e.what()));
  } catch (const UserError& e) {
    return not_run(std::move(row.run), RowStatus::refused, fault_note(e.what()));
  }
  if (row.no_room) return without_room(std::move(row));
  const ShardRule rule = simulated.ran.rule;
  PolicyResult result = describe_row(row, std::move(simulated.planned), std::move(simulated.ran), options);
  if (!options.details.directory.empty()) add_details(row, rule, options, result);
  if (options.check_step && result.simulated()) show_slowest_step(row, rule, options, result);
  return result;
}

}  // namespace

void resolve_recompute(StudyRow& row, const RunStudyOptions& trial) {
  if (row.models->layout.recompute != Recompute::automatic) return;
  const int all = row.models->costs.model().all_layers();
  row.run.recompute_chosen = true;
  if (row.run.recompute_by_stage) {  // the layers follow once there is a plan
    row.recompute_layers(0);
    return;
  }
  if (row.run.policy().derives == Derives::groups) {
    for (Group& group : row.run.pack.groups) {
      const int layers = layers_of_group(row, group.length, group.context);
      group.recompute_layers = layers < 0 ? all : layers;
    }
    row.recompute_layers(all);  // only if no group fits, since every micro-batch has its group's number
    return;
  }
  int least = 0, most = runs_with(row, 0, trial) ? 0 : all;
  while (most - least > 1) {
    const int middle = least + (most - least) / 2;
    (runs_with(row, middle, trial) ? most : least) = middle;
  }
  row.recompute_layers(most);
}

namespace {

// The entry with each value of the first key that it leaves open; no values if it leaves none open.
struct OpenKey {
  std::vector<PolicyRun> tried;
  bool first_that_fits = false;  // it is the fastest
};

OpenKey open_schedule(const Study& study, PolicyRun entry) {
  OpenKey open;
  entry.schedule_auto = false;
  entry.schedule_chosen = true;
  PolicyRun own = entry;
  own.schedule.clear();
  const std::string_view of_study = schedule_policy_of(study, own).name;
  for (const std::string_view name :
       {of_study, std::string_view("seq1f1b"), std::string_view("state-aware-1f1b")}) {
    if (!open.tried.empty() && name == of_study) continue;
    open.tried.push_back(entry);
    open.tried.back().schedule = name;
  }
  return open;
}

OpenKey open_virtual_pipeline(const Study& study, PolicyRun entry) {
  OpenKey open;
  entry.virtual_pipeline_auto = false;
  entry.virtual_pipeline_chosen = true;
  const bool only_own = !study.layout.stage_layers.empty();  // since they are stated for the layout's chunks
  for (const int chunks : {study.layout.virtual_pipeline, 1}) {
    if (!open.tried.empty() && (only_own || chunks == study.layout.virtual_pipeline)) continue;
    open.tried.push_back(entry);
    set_virtual_pipeline(study, chunks, open.tried.back());
  }
  return open;
}

OpenKey open_size(const Study& study, const DocumentSet& documents, PolicyRun entry) {
  OpenKey open;
  const TriedSize& size = *entry.open_sizes.front();
  entry.open_sizes.erase(entry.open_sizes.begin());
  entry.chosen_sizes.push_back(size.key);
  // More recomputed layers make room for larger values.
  open.first_that_fits = size.most_is_fastest && layout_of(study, entry).recompute != Recompute::automatic;
  for (const std::int64_t value : size.values(entry.pack, longest_of(documents))) {
    open.tried.push_back(entry);
    pack_parameter(size.key)->set(open.tried.back().pack, value);
  }
  if (open.first_that_fits) std::ranges::reverse(open.tried);
  return open;
}

OpenKey open_key(const Study& study, const StudyInputs& inputs, const PolicyRun& entry) {
  if (entry.schedule_auto) return open_schedule(study, entry);
  if (entry.virtual_pipeline_auto) return open_virtual_pipeline(study, entry);
  if (!entry.open_sizes.empty()) return open_size(study, inputs.documents, entry);
  return {};
}

}  // namespace

StudyRow ready_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                   const RunStudyOptions& trial) {
  const OpenKey open = open_key(study, inputs, entry);
  std::optional<StudyRow> best;
  double least = 0;
  for (const PolicyRun& tried : open.tried) {
    if (best && open.first_that_fits) break;
    try {
      const StudyRow row = ready_row(study, inputs, tried, trial);
      const RowEnd end =
          try_row(row, trial, open.first_that_fits ? Until::first_that_does_not_fit : Until::all_steps);
      if (end.status != RowStatus::ok || (best && end.seconds_per_token >= least)) continue;
      least = end.seconds_per_token;
      best.emplace(row);
    } catch (const UserError&) {  // it refuses the row's micro-batches, or the layout's model chunks
    }
  }
  if (best) return *std::move(best);
  StudyRow row(study, inputs, entry);
  resolve_recompute(row, trial);
  return row;
}

SimulatedRow simulate_row(StudyRow& row, const RunStudyOptions& options, Until until) {
  SimulatedRow result;
  // The largest bucket shows whether a row fits, so no time is spent on a search for the best.
  if (until == Until::first_that_does_not_fit) row.run.pack.best_bucket = false;
  derive_sizes(row, options.ignore_memory);
  if (row.no_room) return result;
  // A policy that searches by simulation packs by its own clock here.
  const bool by_clock = until == Until::first_that_does_not_fit && row.run.policy().packs_for_time;
  if (by_clock) row.workload = workload_of(row);
  // The search before the plan may change the row, so the simulator is made with the first steps.
  std::optional<PlanSimulator> simulator;
  std::vector<Step> kept;
  const StepSink sink{steps_of_block(options), [&](std::vector<Step>& steps) {
                        if (!simulator) simulator.emplace(row, options, until);
                        simulator->simulate(steps);
                        if (options.keeps_steps()) std::ranges::move(steps, std::back_inserter(kept));
                      }};
  result.planned = by_clock ? pack_row(row, PlanPrices(), &sink) : pack_row(row, options, &sink);
  result.ran = simulator->finish();
  result.planned.plan.steps = std::move(kept);
  return result;
}

// A row that is refused with the layout's model chunks, and does not ask for them itself, runs without;
// nothing where that is refused, too.
static std::optional<PolicyResult> run_without_chunks(const Study& study, const StudyInputs& inputs,
                                                      PolicyRun entry, const PolicyResult& refused,
                                                      const RunStudyOptions& options) {
  const int chunks = study.layout.virtual_pipeline;
  if (refused.status != RowStatus::refused || chunks == 1 || entry.virtual_pipeline ||
      entry.virtual_pipeline_auto ||
      !study.layout.stage_layers.empty())  // since they are stated for the layout's chunks
    return {};
  set_virtual_pipeline(study, 1, entry);
  entry.virtual_pipeline_chosen = true;
  PolicyResult result = run_prepared(ready_row(study, inputs, entry, trial_options(options)), options);
  if (result.status == RowStatus::refused) return {};
  return result;
}

PolicyResult run_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                     const RunStudyOptions& options) {
  const RunStudyOptions trial = trial_options(options);
  PolicyResult result = run_prepared(ready_row(study, inputs, entry, trial), options);
  if (std::optional<PolicyResult> plain = run_without_chunks(study, inputs, entry, result, options))
    result = *std::move(plain);
  say_what_runs(study, study.layout.context_comm, result);
  if (!options.keep_plans) result.plan = {};
  if (result.status == RowStatus::ok || !options.find_fits) return result;
  add(result.reasons, what_would_run(study, inputs, entry, result.status, trial));
  return result;
}

}  // namespace equipoise
