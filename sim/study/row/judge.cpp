#include "sim/study/row/judge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/steps.h"
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
    const StepWork& step = result.steps[i].work;
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
void average_gpus(const Plan& plan, PolicyResult& result) {
  const bool any_full = std::ranges::any_of(result.tail, [](char tail) { return tail == 0; });
  double steps = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const std::vector<double>& seconds = result.steps[i].times.gpu_compute;
    if ((plan.steps[i].tail && any_full) || seconds.empty()) continue;
    result.gpu_compute.resize(seconds.size(), 0);
    for (std::size_t g = 0; g < seconds.size(); ++g) result.gpu_compute[g] += seconds[g];
    ++steps;
  }
  for (double& seconds : result.gpu_compute) seconds /= steps;
  const Layout& l = result.layout;
  result.gpu_tensor = static_cast<int>(result.gpu_compute.size()) / (l.pipeline * l.data * l.context);
}

// A run that does not fit has no step time; what follows from the plan alone remains.
Metrics without_times(const Metrics& m) {
  Metrics kept;
  static_cast<PlanMetrics&>(kept) = m;
  kept.peak_memory_bytes = m.peak_memory_bytes;
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
// stage fidelity that step is simulated once more with its ops recorded.
PeakMoment find_peak(const StudyRow& row, const PolicyResult& result, const Plan& plan, const ShardRule& rule,
                     const StepSettings& settings) {
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
  const Step& whole = plan.steps[number];
  const Step step = runs_alone(row.models->layout, whole.lanes[at(peak.lane)])
                        ? only_lane(whole, static_cast<std::size_t>(peak.lane))
                        : whole;
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
std::optional<Note> idle_note(const Plan& plan, const Layout& layout) {
  double steps = 0, full = 0, micro_batches = 0, lanes = 0, idle = 0;
  for (const Step& step : plan.steps) {
    if (step.tail) continue;
    std::size_t filled = 0;
    double ranks = 0, without = 0;
    for (const Lane& lane : step.lanes) {
      const auto is_filled = [](const MicroBatch& m) { return !m.slices.empty(); };
      const auto own = std::ranges::count_if(lane.micro_batches, is_filled);
      filled += static_cast<std::size_t>(own);
      ranks += lane.context;
      if (own == 0) without += lane.context;
    }
    ++full;
    if (filled >= step.lanes.size()) continue;
    ++steps;
    micro_batches += static_cast<double>(filled);
    lanes += static_cast<double>(step.lanes.size());
    idle += without / ranks;
  }
  if (steps == 0) return {};
  return Note{"idle_gpus",
              "",
              {{"steps", std::llround(steps)},
               {"full", std::llround(full)},
               {"micro_batches", micro_batches / steps},
               {"lanes", lanes / steps},
               {"idle", std::llround(idle / steps * static_cast<double>(layout.gpus()))},
               {"gpus", layout.gpus()}}};
}

// Counts steps whose lanes wait for each other in every micro-batch and have different numbers of them. A
// lane without any takes no part.
std::optional<Note> unequal_note(const Plan& plan, const Layout& layout) {
  if (!lanes_synchronize(layout)) return {};
  std::int64_t steps = 0, most = 0, least = 0;
  for (const Step& step : plan.steps) {
    std::map<int, std::pair<std::int64_t, std::int64_t>> counts;  // fewest and most, by barrier group
    for (const Lane& lane : step.lanes) {
      const auto own = static_cast<std::int64_t>(lane.micro_batches.size());
      const auto [group, fresh] = counts.try_emplace(lane.barrier_group, own, own);
      if (!fresh) group->second = {std::min(group->second.first, own), std::max(group->second.second, own)};
    }
    const auto unequal = std::ranges::find_if(
        counts, [](const auto& group) { return group.second.first != group.second.second; });
    if (unequal == counts.end()) continue;
    ++steps;
    const auto [fewest, largest] = unequal->second;
    if (largest - fewest > most - least) most = largest, least = fewest;
  }
  if (steps == 0) return {};
  return Note{"unequal_micro_batches",
              "",
              {{"steps", steps}, {"of", plan.steps.size()}, {"most", most}, {"least", least}}};
}

// The most tokens that the row's policy puts into a micro-batch; 0 if it has no limit.
std::int64_t limit_of(const MicroBatch& micro_batch, const PolicyRun& run) {
  if (micro_batch.pack_length > 0) return micro_batch.pack_length;
  if (const TokenBudget& budget = run.pack.of<TokenBudget>(); budget.tokens_per_micro_batch > 0)
    return budget.linear_cost > 0 || budget.quadratic_cost > 0 ? 0 : budget.tokens_per_micro_batch;
  return run.policy().derives == Derives::max_tokens ? run.pack.max_tokens : 0;
}

// Notes packs that exceed their limit once each document is padded to 2 x CP tokens.
std::optional<Note> padded_packs_note(const Plan& plan, const PolicyRun& run, const ShardRule& rule) {
  if (rule.options.remainder != Remainder::pad) return {};
  std::int64_t packs = 0, longest = 0, length = 0, multiple = 0;
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        const std::int64_t of = 2 * std::int64_t{lane.context}, most = limit_of(m, run);
        std::int64_t tokens = 0;
        for (const Slice& slice : m.slices) tokens += (slice.tokens() + of - 1) / of * of;
        if (lane.context == 1 || most == 0 || tokens <= most) continue;
        ++packs;
        if (tokens > longest) longest = tokens, length = most, multiple = of;
      }
  if (packs == 0) return {};
  return Note{"padded_packs",
              "",
              {{"micro_batches", packs}, {"longest", longest}, {"length", length}, {"multiple", multiple}}};
}

// The share of the time that no plan can save.
Note bound_note(const StudyRow& row, const std::vector<StepResult>& steps) {
  double seconds = 0;
  for (const StepResult& step : steps) seconds += to_seconds(step.times.makespan);
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
std::optional<Note> offload_note(const StudyRow& row, const Plan& plan, const ShardRule& rule) {
  Layout layout = row.models->layout;
  const MicroBatch* largest = nullptr;
  int context = 1;
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches)
        if (largest == nullptr || micro_batch.tokens() > largest->tokens()) {
          largest = &micro_batch;
          context = lane.context;
        }
  if (layout.activation_offload == 0 || largest == nullptr) return {};
  layout.activation_offload = 0;
  const RunModels without(*row.models, layout);
  const auto seconds = [&](const RunModels& models) {
    MicroBatchCoster coster(models.costs, rule);
    MicroBatchCost cost;
    coster.cost(*largest, context, cost);
    return to_seconds(coster.model_times(*largest, cost).both);
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
std::int64_t rank_tokens(const Plan& plan) {
  double tokens = 0, micro_batches = 0;
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        tokens += as_double(m.tokens()) / lane.context;
        ++micro_batches;
      }
  return std::max<std::int64_t>(1, std::llround(tokens / std::max(1.0, micro_batches)));
}

// What memory made of recompute auto, for the row, or for its micro-batches if the policy chose for each.
std::optional<Note> recompute_note(const StudyRow& row, const Plan& plan) {
  const PolicyRun& run = row.run;
  if (!run.recompute_chosen || run.recompute_by_stage || run.policy().derives == Derives::groups) return {};
  const int all = row.models->costs.model().all_layers();
  const auto [least, most] = recomputed_layers(plan, row.models->layout, all);
  if (least == most) return Note{"recompute_auto", "", {{"layers", most}, {"of", all}}};
  return Note{"recompute_auto_range", "", {{"least", least}, {"most", most}, {"of", all}}};
}

}  // namespace

std::pair<int, int> recomputed_layers(const Plan& plan, const Layout& layout, int layers) {
  const int of_layout = checkpointed_layers(layout, layers);
  if (plan.steps.empty()) return {of_layout, of_layout};
  int least = layers, most = 0;
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        if (m.slices.empty()) continue;
        const std::vector<std::int16_t>& by_stage = m.recompute_by_stage;
        const int own = m.recompute_layers != kStudyRecompute ? m.recompute_layers : of_layout;
        const int count = by_stage.empty() ? own : std::accumulate(by_stage.begin(), by_stage.end(), 0);
        least = std::min(least, count);
        most = std::max(most, count);
      }
  return {std::min(least, most), most};
}

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
  const RunModels& models = *row.models;
  const Plan& plan = planned.plan;
  PolicyResult result;
  result.run = row.run;
  result.pack_ms = planned.pack_ms;
  result.notes = row.notes;
  result.notes.insert(result.notes.end(), planned.notes.begin(), planned.notes.end());
  result.steps = std::move(simulated.steps);
  result.capacity_bytes = models.memory.capacity_bytes();
  result.layout = models.layout;
  result.shard = simulated.shard;
  result.gpus_per_node = models.grid.gpus_per_node();
  const MetricInputs inputs{models.costs.model(),
                            models.layout,
                            peak_tflops(models.layout, models.costs.profile().device()) * 1e12,
                            row.documents.batches,
                            plan,
                            result.steps,
                            options.shares_threads ? 1 : options.jobs};
  result.metrics = metrics_of(inputs);
  const PowerDraw watts =
      models.cluster.watts.known() ? models.cluster.watts : power_of(models.costs.profile());
  if (watts.known()) add_energy(inputs, watts, gemm_share(models.costs, rank_tokens(plan)), result.metrics);
  *result.metrics.lost_tokens += static_cast<double>(row.documents.cut_tokens);
  for (const StepResult& s : result.steps) result.use += s.work.use;
  for (const Step& s : plan.steps) result.tail.push_back(s.tail);
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
  add(notes, recompute_note(row, plan));
  if (row.run.policy().packs_for_time) notes.push_back(bound_note(row, result.steps));
  add(notes, offload_note(row, plan, simulated.rule));
  add(notes, idle_note(plan, models.layout));
  add(notes, unequal_note(plan, models.layout));
  add(notes, padded_packs_note(plan, row.run, simulated.rule));
  if (row.run.rule().choice == ShardChoice::static_best)
    notes.push_back({"static_best", "", {{"shard", simulated.shard}}});
  if (std::ranges::any_of(result.steps, [](const StepResult& s) { return s.work.unsynchronized_lanes; }))
    notes.push_back({"lanes_unsynchronized", "", {}});
  add_about(result.notes, row.run.label, notes);
  if (options.record_gpus) average_gpus(plan, result);
  judge_memory(result);
  result.memory_tight =
      result.status == RowStatus::ok && result.peak.parts.total() > models.memory.room_bytes();
  result.peak_moment = find_peak(row, result, plan, simulated.rule, options.steps);
  if (result.status == RowStatus::oom) {
    result.memory_ignored = options.ignore_memory;
    if (!options.ignore_memory) result.metrics = without_times(result.metrics);
  }
  Metrics& m = result.metrics;
  if (const double price = models.cluster.dollars_per_gpu_hour; price > 0 && m.gpu_hours_per_billion_tokens)
    m.dollars_per_billion_tokens = price * *m.gpu_hours_per_billion_tokens;
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
