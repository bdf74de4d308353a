#include "sim/study/row/plan_row.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/make_plan.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/lane_workload.h"
#include "sim/memory/derived_sizes.h"
#include "sim/step/lockstep.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/row/padding.h"
#include "sim/study/row/simulate.h"

namespace equipoise {
namespace {

bool chooses_checkpoints(const StudyRow& row) {
  return row.run.recompute_by_stage && row.run.recompute_chosen;
}

Schedule schedule_of_lane(const StudyRow& row, std::int64_t micro_batches) {
  return lane_schedule(row.schedule, row.models->layout, micro_batches,
                       row.models->costs.basis.pairs_micro_batches());
}

// The models whose memory decides L_max and BucketSize: with as little kept as the row allows.
std::shared_ptr<const RunModels> models_of_sizes(const StudyRow& row) {
  if (!chooses_checkpoints(row)) return row.models;
  Layout layout = row.models->layout;
  layout.recompute = Recompute::full;
  return std::make_shared<const RunModels>(*row.models, layout);
}

std::optional<Note> derive_max_tokens(StudyRow& row) {
  const PackOptions& pack = row.run.pack;
  std::int64_t& most = row.run.pack.max_tokens;
  most = 0;
  const std::int64_t wanted = 2 * micro_batch_capacity(pack);  // if memory has room for all
  const std::int64_t of_lane = (micro_batches_of_step(pack) + pack.lanes - 1) / pack.lanes;
  most = largest_micro_batch(models_of_sizes(row)->memory, schedule_of_lane(row, of_lane),
                             row.models->layout.context, wanted);
  if (most < 1) return Note{"no_token_fits", "", {}};
  if (most < wanted) row.note({"max_tokens_from_memory", "", {{"tokens", most}}});
  return {};
}

// Skrull's buckets decide the number of micro-batches, which must be enough to fill the pipeline.
std::optional<Note> derive_bucket(StudyRow& row) {
  const Layout& layout = row.models->layout;
  std::int64_t& bucket = row.run.pack.bucket_size;
  bucket = largest_bucket(models_of_sizes(row)->memory,
                          schedule_of_lane(row, std::int64_t{2} * layout.pipeline), layout.context);
  if (bucket < 1) return Note{"no_bucket_fits", "", {}};
  if (row.run.policy().derives != Derives::bucket_size || !row.run.pack.best_bucket)
    row.note({"bucket_from_memory", "", {{"tokens", bucket}}});
  return {};
}

// Whether the DP x CP ranks form groups of this degree.
bool has_degree(const RunModels& models, int degree) {
  const Layout& layout = models.layout;
  if (layout.data * layout.context % degree != 0) return false;
  return heads_suit(models.costs.model(), layout, degree);
}

// Why no plan can be made because nothing fits into memory; else nothing.
std::optional<Note> derive_from_memory(StudyRow& row) {
  const PolicyRun& run = row.run;
  const Derives derives = run.policy().derives;
  if (derives == Derives::max_tokens && !run.says("max_tokens"))
    if (std::optional<Note> none = derive_max_tokens(row)) return none;
  const bool buckets = derives == Derives::bucket_size || run.rule().places_documents;
  if (buckets && !run.says("bucket_size"))
    if (std::optional<Note> none = derive_bucket(row)) return none;
  const OptionSearch& search = run.policy().search;
  if (search.hopeless == nullptr || !search.is_open_in(run.pack)) return {};
  PlanPrices prices;
  prices.layers = layers_of_groups(row);
  return search.hopeless(run.pack, prices);
}

// The sizes for when nothing fits and the user still asks for times.
void derive_without_memory(StudyRow& row) {
  PackOptions& pack = row.run.pack;
  if (!row.run.says("max_tokens")) pack.max_tokens = 2 * row.context_window;
  if (!row.run.says("bucket_size"))
    pack.bucket_size = (row.context_window + pack.context - 1) / pack.context + 1;
}

// Searches the options that the policy leaves open, under the row's options.
void search_options(const PackingProblem& problem, const PlanPrices& prices, PolicyRun& run, Notes& notes) {
  const OptionSearch& search = run.policy().search;
  if (!search.is_open_in(run.pack) || (search.by_memory && !prices.layers)) return;
  add_about(notes, run.label, search.find(problem, prices, run.pack));
}

// Chooses layers to recompute on each stage, if the row leaves that to memory.
class Checkpoints {
 public:
  explicit Checkpoints(const StudyRow& row) : row_(row), options_(row.step_options()) {
    options_.pairs = row.models->costs.basis.pairs_micro_batches();
  }

  void choose(std::vector<Step>& steps) {
    for (Step& step : steps)
      for (Lane& lane : step.lanes)
        if (!lane.micro_batches.empty()) choose(lane);
  }

  // The recomputed share of all layers of all micro-batches.
  [[nodiscard]] double share() const { return recomputed_ / std::max(1.0, all_); }

 private:
  void choose(Lane& lane) {
    const RunModels& models = *row_.models;
    row_.schedule.make_into(schedule_input(lane.micro_batches, models.layout, options_, sizes_), schedule_);
    tokens_.clear();
    for (const MicroBatch& m : lane.micro_batches)
      tokens_.push_back(tokens_of_rank(m.tokens(), lane.context));
    checkpoint_by_stage(models.memory, schedule_, tokens_, lane.context, lane.micro_batches);
    for (const MicroBatch& m : lane.micro_batches)
      for (const int layers : m.recompute_by_stage) recomputed_ += layers;
    all_ += as_double(lane.micro_batches.size()) * models.costs.model().all_layers();
  }

  const StudyRow& row_;
  StepOptions options_;
  double recomputed_ = 0, all_ = 0;
  std::vector<std::int32_t> sizes_;
  std::vector<std::int64_t> tokens_;
  Schedule schedule_;
};

// The policy's plan, or one that was made elsewhere, if it fits the study.
Plan plan_of(const StudyRow& row, const PackingProblem& problem, Notes& notes) {
  const PolicyRun& run = row.run;
  if (!run.has_plan_file()) return make_plan(run.policy(), problem);
  Notes odd;
  Layout ranks;  // which is all that `pack` knows without a model
  ranks.data = run.pack.lanes;
  ranks.context = run.pack.context;
  const RunModels* const models = row.models.get();
  check_plan(models != nullptr ? models->costs.model() : ModelShape{},
             models != nullptr ? models->layout : ranks, row.documents, run, odd);
  add_about(notes, run.label, odd);
  Plan plan = *run.plan;
  order_micro_batches(plan.steps, run.pack.order, problem.workload);
  if (problem.sink == nullptr) return plan;
  problem.sink->take(plan.steps);
  plan.steps.clear();
  return plan;
}

void note_plan(const DocumentSet& documents, const PolicyRun& run, const PlannedRow& planned, Notes& notes) {
  const Plan& plan = planned.plan;
  const std::int64_t dropped = sum_of(plan.dropped, &Slice::tokens);
  if (!plan.dropped.empty())
    notes.push_back({"slices_dropped", run.label, {{"slices", plan.dropped.size()}, {"tokens", dropped}}});
  add_about(notes, run.label, plan.notes);
  if (planned.facts.pads && planned.facts.all_alone) notes.push_back({"nothing_padded", run.label, {}});
  if (run.policy().places_documents && !run.says("bucket_size") && run.pack.context > 1 &&
      run.pack.bucket_size >= longest_of(documents))
    notes.push_back({"bucket_holds_longest", run.label, {}});
}

}  // namespace

std::shared_ptr<const Workload> workload_of(const StudyRow& row) {
  switch (row.run.cost_kind()) {
    case CostKind::quadratic:
      return std::make_shared<const QuadraticWorkload>();
    case CostKind::flops:
      return std::make_shared<const FlopsWorkload>(flops_workload(row.models->costs.model()));
    case CostKind::profiled:
      break;
  }
  return std::make_shared<const LaneWorkload>(row.models->costs, row.context_window, row.trial_rule());
}

FlopsWorkload flops_workload(const ModelShape& model) {
  return {model.hidden, std::int64_t{model.kv_heads} * model.head_dim};
}

int layers_of_group(const StudyRow& row, std::int64_t length, int degree) {
  const std::int64_t lanes = std::max<std::int64_t>(1, grid_gpus(row.run.pack) / degree);
  const std::int64_t packs = packs_of_iteration(row.run.pack, length, lanes, static_cast<double>(length));
  const int fewest =
      layers_to_checkpoint(row.models->memory, schedule_of_lane(row, (packs + lanes - 1) / lanes),
                           tokens_of_rank(length, degree), degree);
  // A number of layers that the study states binds groups as it binds every other policy.
  if (fewest < 0 || row.run.recompute_chosen) return fewest;
  return std::max(fewest, checkpointed_layers(row.models->layout, row.models->memory.model_layers()));
}

std::function<int(std::int64_t length, int degree)> layers_of_groups(const StudyRow& row) {
  const bool by_micro_batch = row.run.recompute_chosen && !row.run.recompute_by_stage;
  const Policy& policy = row.run.policy();
  if (policy.derives != Derives::groups && !policy.search.by_memory && !by_micro_batch) return {};
  return [&row](std::int64_t length, int degree) {
    return has_degree(*row.models, degree) ? layers_of_group(row, length, degree) : -1;
  };
}

std::vector<int> degrees_of_lanes(const StudyRow& row) {
  const Layout& layout = row.models->layout;
  std::vector<int> degrees;
  int least = layout.context;
  while (least % 2 == 0) least /= 2;
  for (int degree = least; degree <= layout.data * layout.context; degree *= 2)
    if (has_degree(*row.models, degree)) degrees.push_back(degree);
  return degrees;
}

void derive_sizes(StudyRow& row, bool ignore_memory) {
  row.no_room = derive_from_memory(row);
  if (!row.no_room || !ignore_memory) return;
  derive_without_memory(row);
  row.no_room.reset();
}

PlannedRow pack_row(StudyRow& row, const PlanPrices& prices, const StepSink* sink) {
  PlannedRow planned;
  const DocumentPadding padding(row);
  const Batches padded = padding.batches();
  const bool searches = row.run.policy().search.is_open_in(row.run.pack);
  const auto begin = std::chrono::steady_clock::now();
  search_options({padded, row.run.pack, *row.workload}, padding.prices(prices), row.run, planned.notes);
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  // Groups choose how many layers to recompute by their memory, as HBP does. Full recompute leaves no choice.
  if (searches && row.run.policy().derives == Derives::groups && row.models != nullptr &&
      row.models->layout.recompute != Recompute::full)
    row.run.recompute_chosen = true;
  const double searched = searches ? spent.count() : 0;
  const auto batches = static_cast<double>(std::max<std::size_t>(1, row.documents.batches.size()));
  std::optional<Checkpoints> checkpoints;
  if (row.models != nullptr && chooses_checkpoints(row)) checkpoints.emplace(row);
  const auto take = [&](std::vector<Step>& steps) {
    padding.take_off(steps);
    if (checkpoints) checkpoints->choose(steps);
    for (Step& step : steps) {
      planned.pack_ms += step.pack_ms;
      if (as_double(planned.facts.steps) < batches)  // a step without a batch of its own follows the data
        step.pack_ms += searched / batches;          // a policy costs its search, too
      planned.facts.add(step, row.run);
    }
    if (sink != nullptr) sink->take(steps);
  };
  const StepSink own{sink != nullptr ? sink->block : 0, take};
  planned.plan =
      plan_of(row, {padded, row.run.pack, *row.workload, sink != nullptr ? &own : nullptr}, planned.notes);
  if (sink == nullptr) take(planned.plan.steps);
  padding.take_off(planned.plan.dropped);
  if (checkpoints) row.note({"recompute_by_stage", "", {{"share", checkpoints->share()}}});
  planned.pack_ms = (planned.pack_ms + searched) / batches;
  note_plan(row.documents, row.run, planned, planned.notes);
  return planned;
}

PlannedRow pack_row(StudyRow& row, const RunStudyOptions& options, const StepSink* sink) {
  row.workload = workload_of(row);
  // Stage fidelity chooses groups.
  const RunStudyOptions quick = trial_options(options);
  // Prices a trial as the row would run it.
  const auto price = [&](auto trial, const RunStudyOptions& by) {
    return [&row, trial, &by](const Plan& plan) {
      if (!chooses_checkpoints(row)) return trial(row, plan, by);
      Plan checkpointed = plan;
      Checkpoints(row).choose(checkpointed.steps);
      return trial(row, checkpointed, by);
    };
  };
  return pack_row(row,
                  {price(trial_seconds, options), price(trial_seconds_that_fit, quick),
                   price(trial_steps_that_fit, quick), layers_of_groups(row), degrees_of_lanes(row)},
                  sink);
}

std::int64_t longest_of(const DocumentSet& documents) {
  std::int64_t longest = 0;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) longest = std::max(longest, slice.tokens());
  return longest;
}

}  // namespace equipoise
