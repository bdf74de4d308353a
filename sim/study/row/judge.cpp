#include "sim/study/row/judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/step/lockstep.h"
#include "sim/study/row/bound.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {
namespace {

bool peak_is_fp8(const Layout& layout, const DeviceFacts& device) {
  return layout.precision == Precision::fp8 && device.peak_fp8_tflops > 0;
}

// Where memory ends, and by how much. `why` names a limit other than the modelled peak.
Note memory_note(const OutOfMemory& fault, std::optional<Note> why) {
  const auto GiB = [](double bytes) { return bytes / kGiB; };
  Note note{"needs_memory",
            "",
            {{"stage", fault.stage},
             {"lane", fault.lane},
             {"rank", fault.rank},
             {"step", fault.step},
             {"micro_batch", fault.micro_batch}}};
  if (why) {
    note.kind = "breaks_memory";
    note.numbers.emplace("why", Notes{*std::move(why)});
    return note;
  }
  note.numbers.emplace("GiB", GiB(fault.need_bytes));
  note.numbers.emplace("capacity_GiB", GiB(fault.capacity_bytes));
  return note;
}

// The largest peak of all steps, and the first step that does not fit.
void judge_memory(PolicyResult& result) {
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const WorkSums& step = result.steps[i].work;
    const double need = step.peak.parts.total();
    if (need > result.peak.parts.total()) result.peak = step.peak;
    if (result.status == RowStatus::oom || fits(step, result.capacity_bytes)) continue;
    result.status = RowStatus::oom;
    OutOfMemory& fault = result.memory_fault;
    fault.step = static_cast<int>(i);
    fault.lane = step.peak.lane;
    fault.stage = step.peak.stage;
    fault.rank = step.peak.rank;
    fault.micro_batch = step.peak.micro_batch;
    fault.need_bytes = need;
    fault.capacity_bytes = result.capacity_bytes;
    std::optional<Note> why;
    if (step.bucket_broken) why = Note{"rank_above_bucket", "", {{"tokens", result.run.pack.bucket_size}}};
    result.reasons = {memory_note(fault, std::move(why))};
  }
  result.metrics.peak_memory_bytes = result.peak.parts.total();
}

// Means over full steps, or over all if there are only tails.
void average_gpus(PolicyResult& result) {
  const CountsInMeans counts(result.steps);
  double steps = 0;
  for (const StepFigures& step : result.steps) {
    const std::vector<double>& seconds = step.gpu_compute;
    if (!counts(step) || seconds.empty()) continue;
    result.gpu_compute.resize(seconds.size(), 0);
    for (std::size_t g = 0; g < seconds.size(); ++g) result.gpu_compute[g] += seconds[g];
    ++steps;
  }
  for (double& seconds : result.gpu_compute) seconds /= steps;
  const Layout& l = result.layout;
  result.gpu_tensor = static_cast<int>(result.gpu_compute.size()) / (l.pipeline * l.data * l.context);
}

// A run that does not fit has no step time and executes no token, so that none has a delay; what else follows
// from the plan alone remains.
Metrics without_times(const Metrics& m) {
  Metrics kept;
  static_cast<PlanMetrics&>(kept) = m;
  kept.peak_memory_bytes = m.peak_memory_bytes;
  for (Metric* const delay :
       {&kept.token_delay_mean, &kept.token_delay_max, &kept.token_delay_held, &kept.token_delay_steady})
    delay->reset();
  return kept;
}

// Whether no other lane affects when a lane's ops run.
bool runs_alone(const Layout& layout, const Lane& lane) {
  return !lanes_synchronize(layout) && lane.barrier_group == 0;
}

Step only_lane(const Step& step, std::size_t number) {
  Step alone;
  for (const Lane& lane : step.lanes) alone.lanes.push_back({lane.context, {}, lane.barrier_group});
  alone.lanes[number].micro_batches = step.lanes[number].micro_batches;
  return alone;
}

// The step of the largest peak, and when the op ran that sets it: at op fidelity its times are there, at
// stage fidelity that step (`fullest`) is simulated once more with its ops recorded.
PeakMoment find_peak(const StudyRow& row, const PolicyResult& result, const Step& fullest,
                     const ShardRule& rule, const StepSettings& settings) {
  PeakMoment moment;
  const MemoryPeak& peak = result.peak;
  for (std::size_t i = 0; i < result.steps.size() && moment.step < 0; ++i)
    if (result.steps[i].work.peak.parts.total() == peak.parts.total()) moment.step = static_cast<int>(i);
  if (moment.step < 0 || peak.op_index < 0) return moment;
  const auto number = static_cast<std::size_t>(moment.step);
  if (settings.fidelity == Fidelity::op) {
    moment.op = result.steps[number].times.peak_op;
    return moment;
  }
  StepOptions recorded = row.step_options();
  recorded.record_ops = true;
  const Step step = runs_alone(row.models->layout, fullest.lanes[at(peak.lane)])
                        ? only_lane(fullest, static_cast<std::size_t>(peak.lane))
                        : fullest;
  const StepTimes again = StepRunner(row, rule, recorded, settings).simulate(step, number).times;
  const ScheduleOp op{peak.op, peak.micro_batch, peak.virtual_stage};
  const auto found = std::find_if(again.ops.begin(), again.ops.end(), [&](const StageOp& o) {
    return o.lane == peak.lane && o.stage == peak.stage && same_work(o.op, op);
  });
  if (found == again.ops.end()) return moment;
  moment.op = TimeSpan{found->start, found->end};
  return moment;
}

// Notes full steps that have fewer micro-batches than lanes, and the GPUs that are idle in them.
std::optional<Note> idle_note(const PlanFacts::Idle& idle, const Layout& layout) {
  if (idle.steps == 0) return {};
  return Note{"idle_gpus",
              "",
              {{"steps", std::llround(idle.steps)},
               {"full", std::llround(idle.full)},
               {"micro_batches", idle.micro_batches / idle.steps},
               {"lanes", idle.lanes / idle.steps},
               {"idle", std::llround(idle.share / idle.steps * static_cast<double>(layout.gpus()))},
               {"gpus", layout.gpus()}}};
}

// Counts steps whose lanes wait for each other in every micro-batch and have different numbers of them. A
// lane without any takes no part.
std::optional<Note> unequal_note(const PlanFacts& facts, const Layout& layout) {
  const PlanFacts::Unequal& unequal = facts.unequal;
  if (!lanes_synchronize(layout) || unequal.steps == 0) return {};
  return Note{
      "unequal_micro_batches",
      "",
      {{"steps", unequal.steps}, {"of", facts.steps}, {"most", unequal.most}, {"least", unequal.least}}};
}

// Notes packs that exceed their limit once each document is padded to 2 x CP tokens.
std::optional<Note> padded_packs_note(const PlanFacts::PaddedPacks& packs) {
  if (packs.count == 0) return {};
  return Note{"padded_packs",
              "",
              {{"micro_batches", packs.count},
               {"longest", packs.longest},
               {"length", packs.length},
               {"multiple", packs.multiple}}};
}

// The share of the time that no plan can save.
Note bound_note(const StudyRow& row, const std::vector<StepFigures>& steps) {
  double seconds = 0;
  for (const StepFigures& step : steps) seconds += to_seconds(step.times.makespan);
  const StepBound bound(*row.models, row.run, row.schedule.name.starts_with("zb"), 0.98);
  const double least = bound.run_seconds(row.documents);
  const auto batches = static_cast<double>(std::max<std::size_t>(1, row.documents.batches.size()));
  return {"time_bound",
          "",
          {{"least", least / batches},
           {"seconds", seconds / batches},
           {"above", seconds > 0 ? 1 - least / seconds : 0}}};
}

// How much of the largest micro-batch's time its passes wait for copies to the host's memory and back. Empty
// where nothing is copied.
std::optional<Note> offload_note(const StudyRow& row, const PlanFacts& facts, const ShardRule& rule) {
  Layout layout = row.models->layout;
  if (layout.activation_offload == 0 || facts.micro_batches == 0) return {};
  layout.activation_offload = 0;
  const RunModels without(*row.models, layout);
  const auto seconds = [&](const RunModels& models) {
    MicroBatchCoster coster(models.costs, rule);
    MicroBatchCost cost;
    coster.cost(facts.largest, facts.largest_context, cost);
    return to_seconds(coster.model_times(facts.largest, cost).both);
  };
  constexpr double kWorthNaming = 0.001;
  const double waits = 1 - seconds(without) / std::max(seconds(*row.models), 1e-12);
  if (waits < kWorthNaming) return Note{"copies_hidden", "", {}};
  return Note{"copies_wait", "", {{"share", waits}}};
}

// The share of matrix products in a rank's compute besides attention: in a forward and a backward of all
// layers and the head, with so many tokens.
double gemm_share(const LayerCosts& costs, std::int64_t tokens) {
  RangeUse unused;
  OpList before, after;
  double gemm = 0, all = 0;
  const auto add = [&](const OpList& list, int times) {
    for (const Op& op : list.ops()) {
      if (op.stream != Stream::compute) continue;
      all += times * to_seconds(op.duration);
      if (op.flops > 0) gemm += times * to_seconds(op.duration);
    }
  };
  for (int k = 0; k < kLayerKinds; ++k) {
    if (costs.layer_counts()[at(k)] == 0) continue;
    for (const bool backward : {false, true}) {
      const int layers = (backward ? costs.backward_counts() : costs.layer_counts())[at(k)];
      const auto kind = static_cast<LayerKind>(k);
      if (backward)
        costs.layers.backward(kind, tokens, before, after, unused);
      else
        costs.layers.forward(kind, tokens, before, after, unused);
      add(before, layers);
      add(after, layers);
    }
  }
  costs.ends.head_forward(tokens, before, unused);
  costs.ends.head_backward(tokens, after, unused);
  add(before, 1);
  add(after, 1);
  return all > 0 ? gemm / all : 0;
}

// Mean tokens of a rank over micro-batches.
std::int64_t rank_tokens(const PlanFacts& facts) {
  return std::max<std::int64_t>(1, std::llround(facts.rank_tokens / std::max(1.0, facts.micro_batches)));
}

// What memory made of recompute auto, for the row, or for its micro-batches if the policy chose for each.
std::optional<Note> recompute_note(const StudyRow& row, const PlanFacts& facts) {
  const PolicyRun& run = row.run;
  if (!run.recompute_chosen || run.recompute_by_stage || run.policy().derives == Derives::groups) return {};
  const int all = row.models->costs.model().all_layers();
  const auto [least, most] = facts.recomputed_layers(row.models->layout, all);
  if (least == most) return Note{"recompute_auto", "", {{"layers", most}, {"of", all}}};
  return Note{"recompute_auto_range", "", {{"least", least}, {"most", most}, {"of", all}}};
}

// What is noted of a row once it has run.
Notes notes_of(const StudyRow& row, const PlanFacts& facts, const SimulatedPlan& simulated) {
  const Layout& layout = row.models->layout;
  Notes notes;
  if (row.run.schedule_chosen) notes.push_back({"schedule_auto", "", {{"schedule", row.run.schedule}}});
  if (row.run.virtual_pipeline_chosen)
    notes.push_back({"virtual_pipeline_chosen",
                     "",
                     {{"chunks", *row.run.virtual_pipeline}, {"schedule", std::string(row.schedule.name)}}});
  for (const std::string_view key : row.run.chosen_sizes)
    notes.push_back(
        {"size_auto",
         "",
         {{"key", key}, {"value", std::get<std::int64_t>(pack_parameter(key)->get(row.run.pack))}}});
  add(notes, recompute_note(row, facts));
  if (row.run.policy().packs_for_time) notes.push_back(bound_note(row, simulated.steps));
  add(notes, offload_note(row, facts, simulated.rule));
  add(notes, idle_note(facts.idle, layout));
  add(notes, unequal_note(facts, layout));
  add(notes, padded_packs_note(facts.padded_packs));
  if (row.run.rule().choice == ShardChoice::static_best)
    notes.push_back({"static_best", "", {{"shard", simulated.shard}}});
  if (std::ranges::any_of(simulated.steps, [](const StepFigures& s) { return s.work.unsynchronized_lanes; }))
    notes.push_back({"lanes_unsynchronized", "", {}});
  return notes;
}

Metrics metrics_of_row(const StudyRow& row, const PlannedRow& planned,
                       const std::vector<StepFigures>& steps) {
  const RunModels& models = *row.models;
  const MetricInputs inputs{models.costs.model(), models.layout,
                            peak_tflops(models.layout, models.costs.profile().device()) * 1e12, planned.plan,
                            steps};
  Metrics metrics = metrics_of(inputs);
  const PowerDraw watts =
      models.cluster.watts.known() ? models.cluster.watts : power_of(models.costs.profile());
  if (watts.known()) add_energy(inputs, watts, gemm_share(models.costs, rank_tokens(planned.facts)), metrics);
  *metrics.lost_tokens += static_cast<double>(row.documents.cut_tokens);
  if (const double price = models.cluster.dollars_per_gpu_hour;
      price > 0 && metrics.gpu_hours_per_billion_tokens)
    metrics.dollars_per_billion_tokens = price * *metrics.gpu_hours_per_billion_tokens;
  return metrics;
}

}  // namespace

double peak_tflops(const Layout& layout, const DeviceFacts& device) {
  return peak_is_fp8(layout, device) ? device.peak_fp8_tflops : device.peak_bf16_tflops;
}

Note peak_note(const Layout& layout, const DeviceFacts& device) {
  const char* const dense = device.element_bytes == 4 ? "fp32" : "bf16";
  return {
      "peak_of_mfu",
      "",
      {{"tflops", peak_tflops(layout, device)}, {"precision", peak_is_fp8(layout, device) ? "FP8" : dense}}};
}

PolicyResult describe_row(const StudyRow& row, PlannedRow planned, SimulatedPlan simulated,
                          const RunStudyOptions& options) {
  const MemoryModel& memory = row.models->memory;
  PolicyResult result;
  result.run = row.run;
  result.pack_ms = planned.pack_ms;
  result.notes = row.notes;
  result.notes.insert(result.notes.end(), planned.notes.begin(), planned.notes.end());
  add_about(result.notes, row.run.label, notes_of(row, planned.facts, simulated));
  result.metrics = metrics_of_row(row, planned, simulated.steps);
  result.steps = std::move(simulated.steps);
  for (const StepFigures& s : result.steps) result.use += s.work.use;
  result.capacity_bytes = memory.capacity_bytes();
  result.layout = row.models->layout;
  result.shard = simulated.shard;
  result.gpus_per_node = row.models->grid.gpus_per_node();
  if (options.record_gpus) average_gpus(result);
  judge_memory(result);
  result.memory_tight = result.status == RowStatus::ok && result.peak.parts.total() > memory.room_bytes();
  result.peak_moment = find_peak(row, result, simulated.fullest, simulated.rule, options.steps);
  if (result.status == RowStatus::oom) {
    result.memory_ignored = options.ignore_memory;
    if (!options.ignore_memory) result.metrics = without_times(result.metrics);
  }
  result.facts = std::move(planned.facts);
  result.plan = std::move(planned.plan);
  if (row.run.schedule_chosen) result.plan.schedule = row.run.schedule;
  return result;
}

PolicyResult without_room(StudyRow row) {
  const RunModels& models = *row.models;
  PolicyResult result;
  for (int s = 0; s < models.layout.pipeline; ++s) {
    const MemoryParts held = models.memory.fixed(s);
    if (s > 0 && held.total() <= result.peak.parts.total()) continue;
    result.peak.parts = held;
    result.peak.stage = s;
  }
  result.status = RowStatus::oom;
  result.capacity_bytes = models.memory.capacity_bytes();
  result.memory_fault.stage = result.peak.stage;
  result.memory_fault.need_bytes = result.peak.parts.total();
  result.memory_fault.capacity_bytes = result.capacity_bytes;
  Notes why = {*std::move(row.no_room)};
  if (const double share = models.cluster.memory_headroom; share > 0)
    why.push_back({"headroom_stays_free", "", {{"share", share}}});
  result.reasons = {{"holds_before_any_plan",
                     "",
                     {{"stage", result.peak.stage},
                      {"GiB", result.peak.parts.total() / kGiB},
                      {"capacity_GiB", result.capacity_bytes / kGiB},
                      {"why", std::move(why)}}}};
  result.metrics.peak_memory_bytes = result.peak.parts.total();
  result.plan.policy = row.run.name;
  if (std::optional<Note> layers = recompute_note(row, {})) row.note(*std::move(layers));
  result.run = std::move(row.run);
  result.notes = std::move(row.notes);
  return result;
}

Note fault_note(const std::string& error) {
  return {"fault", "", {{"error", printable(error)}}};
}

PolicyResult not_run(PolicyRun row, RowStatus status, Note reason) {
  PolicyResult result;
  result.status = status;
  result.reasons = {std::move(reason)};
  result.plan.policy = row.name;
  result.run = std::move(row);
  return result;
}

}  // namespace equipoise
