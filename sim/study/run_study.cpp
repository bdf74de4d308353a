#include "sim/study/run_study.h"

#include <algorithm>
#include <limits>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/wlb.h"
#include "policies/policy_keys.h"
#include "policies/skrull/gds.h"
#include "policies/unplaceable.h"
#include "sim/cost/profiled_workload.h"
#include "sim/engine/stage/step_simulator.h"
#include "sim/metrics/speedup.h"
#include "sim/study/derive.h"
#include "sim/study/fit_search.h"
#include "sim/study/group_search.h"
#include "sim/study/hardware.h"
#include "sim/study/json_object.h"
#include "sim/study/load_trace.h"
#include "sim/study/policy_run.h"
#include "sim/study/recompute_choice.h"

namespace equipoise {
namespace {

void end_if_stopped(const RunStudyOptions& options) {
  if (options.stop != nullptr && *options.stop) throw Interrupted();
}

double peak_flops(const Study& study, const DeviceFacts& device) {
  const bool fp8 = study.layout.precision == Precision::fp8 && device.peak_fp8_tflops > 0;
  return (fp8 ? device.peak_fp8_tflops : device.peak_bf16_tflops) * 1e12;
}

// gds, dacp and skrull balance by Skrull's FLOPs formula, everything else by the profile, unless told.
std::unique_ptr<Workload> workload_for(const Study& study, const RunModels& models, const PolicyRun& run) {
  const CostKind kind = cost_kind(run);
  if (kind == CostKind::quadratic) return std::make_unique<QuadraticWorkload>();
  if (kind == CostKind::flops)
    return std::make_unique<FlopsWorkload>(study.model.hidden,
                                           std::int64_t{study.model.kv_heads} * study.model.head_dim);
  return std::make_unique<ProfiledWorkload>(models.costs, study.batch.context_window);
}

ShardRule shard_rule(const PolicyRun& run, std::string_view name, const Workload& workload) {
  ShardRule rule;
  rule.fixed = &sharding_policy(name);
  rule.choice = rule.fixed->choice;
  rule.options = run.sharding;
  rule.options.workload = &workload;
  return rule;
}

bool fits(const StepResult& step, double capacity) {
  return step.work.peak.parts.total() <= capacity && !step.work.bucket_broken;
}

StepOptions step_options(const Study& study, const PolicyRun& run) {
  StepOptions options;
  options.schedule = &schedule_policy(run.schedule.empty() ? study.schedule : run.schedule);
  const ChunkflowOptions& chunkflow = run.pack.of<ChunkflowOptions>();
  options.keep = chunkflow.keep;
  options.strict_keep = chunkflow.strict_keep;
  return options;
}

bool all_fit(const std::vector<StepResult>& steps, double capacity) {
  return std::all_of(steps.begin(), steps.end(), [&](const StepResult& s) { return fits(s, capacity); });
}

struct Simulation {
  const Study& file;
  const RunModels& models;
  const Plan& plan;
  const PolicyRun& run;
  StepOptions options;
  const RunStudyOptions& study;
  bool stop_when_full = false;  // end at the first step that does not fit; the others keep an empty result

  // Steps are independent: each worker has its own simulator.
  [[nodiscard]] std::vector<StepResult> steps(const ShardRule& rule) const {
    std::vector<StepResult> results(plan.steps.size());
    std::vector<std::unique_ptr<StepRunner>> simulators(static_cast<std::size_t>(std::max(1, study.jobs)));
    std::atomic<bool> full = false;
    parallel_for(std::max(1, study.jobs), plan.steps.size(), [&](int worker, std::size_t i) {
      end_if_stopped(study);
      if (stop_when_full && full) return;
      auto& simulator = simulators[static_cast<std::size_t>(worker)];
      if (!simulator) {
        StepOptions own = options;
        own.record_gpus = study.record_gpus;
        simulator = std::make_unique<StepRunner>(file, models, rule, own, study.steps);
      }
      results[i] = simulator->run(plan.steps[i], i);
      if (!fits(results[i], models.memory.capacity_bytes())) full = true;
    });
    return results;
  }
};

double total_seconds(const std::vector<StepResult>& steps) {
  double sum = 0;
  for (const StepResult& s : steps) sum += to_seconds(s.times.makespan);
  return sum;
}

// The largest peak of all steps, and the first step that does not fit.
void judge_memory(PolicyResult& result) {
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const StepWork& step = result.steps[i].work;
    const double need = step.peak.parts.total();
    if (need > result.peak.parts.total()) result.peak = step.peak;
    if (result.status == RowStatus::oom || fits(result.steps[i], result.capacity_bytes)) continue;
    result.status = RowStatus::oom;
    OutOfMemory& fault = result.memory_fault;
    fault.step = static_cast<int>(i);
    fault.lane = step.peak.lane;
    fault.stage = step.peak.stage;
    fault.rank = step.peak.rank;
    fault.micro_batch = step.peak.micro_batch;
    fault.need_bytes = need;
    fault.capacity_bytes = result.capacity_bytes;
    if (step.bucket_broken)
      fault.reason = "a CP rank holds more than its bucket of " +
                     std::to_string(std::as_const(result.run.pack).of<SkrullOptions>().bucket_size) +
                     " tokens";
  }
  result.metrics.peak_memory_bytes = result.peak.parts.total();
  if (result.status == RowStatus::oom) result.reason = out_of_memory_text(result.memory_fault);
}

// Mean over full steps; over all where there are only tails.
void average_gpus(const Plan& plan, PolicyResult& result) {
  const bool any_full =
      std::any_of(result.tail.begin(), result.tail.end(), [](char tail) { return tail == 0; });
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

void drop_times(Metrics& m) {  // a run that does not fit has no step time
  const Metric peak = m.peak_memory_bytes;
  const Metric delays[] = {m.token_delay_mean,
                           m.token_delay_max,
                           m.carried_tokens,
                           m.attention_imbalance,
                           m.abr,
                           m.dbr,
                           m.pr,
                           m.cr,
                           m.ave_t};
  m = Metrics{};
  m.peak_memory_bytes = peak;
  m.token_delay_mean = delays[0];
  m.token_delay_max = delays[1];
  m.carried_tokens = delays[2];
  m.attention_imbalance = delays[3];
  m.abr = delays[4];
  m.dbr = delays[5];
  m.pr = delays[6];
  m.cr = delays[7];
  m.ave_t = delays[8];
}

// `search`: the thresholds whose plan simulates fastest within the bound on token delay.
void search_thresholds(const Study& study, const RunModels& models, const PackingProblem& problem,
                       const Workload& workload, PolicyRun& run, const RunStudyOptions& options,
                       std::vector<std::string>& notes) {
  StepOptions steps;
  steps.schedule = &schedule_policy(run.schedule.empty() ? study.schedule : run.schedule);
  const ShardRule rule =
      shard_rule(run, run.rule().choice == ShardChoice::static_best ? "adaptive" : run.shard, workload);
  const auto seconds = [&](const Plan& plan) {
    return total_seconds(Simulation{study, models, plan, run, steps, options}.steps(rule));
  };
  const ThresholdSearch found =
      search_wlb_thresholds(problem, seconds, run.pack.of<WlbOptions>().delay_bound);
  WlbOptions& wlb = run.pack.of<WlbOptions>();
  wlb.queues = 0;
  wlb.thresholds = found.thresholds;
  std::string list;
  for (const std::int64_t t : found.thresholds)
    list.append(list.empty() ? "" : ", ").append(std::to_string(t));
  notes.push_back(run.label + ": thresholds found by search: " + (list.empty() ? "none" : list) + " (" +
                  std::to_string(found.plans_tried) + " plans tried)");
}

// HBP's groups by the time of whole plans at stage fidelity.
void search_groups(const Study& study, const RunModels& models, const PackingProblem& problem,
                   const Workload& workload, PolicyRun& run, const RunStudyOptions& options,
                   std::vector<std::string>& notes) {
  RunStudyOptions quick;
  quick.jobs = options.jobs;
  quick.stop = options.stop;
  const ShardRule rule =
      shard_rule(run, run.rule().choice == ShardChoice::static_best ? "adaptive" : run.shard, workload);
  const StepOptions steps = step_options(study, run);
  const auto seconds = [&](const Plan& plan) {
    const std::vector<StepResult> ran = Simulation{study, models, plan, run, steps, quick, true}.steps(rule);
    return all_fit(ran, models.memory.capacity_bytes()) ? total_seconds(ran)
                                                        : std::numeric_limits<double>::infinity();
  };
  choose_groups(study, models, problem, seconds, run, notes);
}

// The model's states leave no room: the row says so, with the fullest stage and what it holds already.
PolicyResult without_plan(const RunModels& models, PolicyRun run, PolicyResult result,
                          const std::string& reason) {
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
  result.memory_fault.reason = reason;
  result.memory_fault.before_any_plan = true;
  result.reason = out_of_memory_text(result.memory_fault);
  result.metrics.peak_memory_bytes = result.peak.parts.total();
  result.plan.policy = run.name;
  result.run = std::move(run);
  return result;
}

std::int64_t longest_of(const DocumentSet& documents) {
  std::int64_t longest = 0;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) longest = std::max(longest, slice.tokens());
  return longest;
}

// Packs, and notes in `result` how long that took and what the user should know.
Plan pack(const DocumentSet& documents, const Workload& workload, PolicyRun& run, PolicyResult& result) {
  const auto note = [&](const std::string& text) { result.notes.push_back(run.label + ": " + text); };
  Plan plan = make_plan(packing_policy(run.name), {documents.batches, run.pack, workload});
  for (const Step& step : plan.steps) result.pack_ms += step.pack_ms;
  result.pack_ms /= static_cast<double>(documents.batches.size());
  std::int64_t dropped = 0;
  for (const Slice& s : plan.dropped) dropped += s.tokens();
  if (!plan.dropped.empty())
    note(std::to_string(plan.dropped.size()) + " slices with " + std::to_string(dropped) +
         " tokens dropped (--oversize)");
  for (const std::string& text : plan.notes) note(text);
  if (run.policy().places_documents && !run.says("bucket_size") && run.pack.context > 1 &&
      run.pack.of<SkrullOptions>().bucket_size >= longest_of(documents))
    note(
        "that is room for the longest document on one CP rank, where the others may wait for it; a smaller "
        "bucket_size would distribute it");
  return plan;
}

// A plan, and its steps as they ran.
struct Ran {
  Plan plan;
  std::unique_ptr<Workload> workload;
  std::string shard;  // the rule that ran
  StepOptions options;
  std::vector<StepResult> steps;
};

// The better of the two static rules: one that fits before one that does not, then the faster.
void run_static_best(Ran& ran, const std::function<std::vector<StepResult>(const char*)>& simulated,
                     double capacity) {
  ran.steps = simulated("per-sequence");
  ran.shard = "per-sequence";
  std::vector<StepResult> other = simulated("per-document");
  const bool fits_first = all_fit(ran.steps, capacity), fits_other = all_fit(other, capacity);
  if (fits_first != fits_other ? fits_first : total_seconds(other) >= total_seconds(ran.steps)) return;
  ran.steps = std::move(other);
  ran.shard = "per-document";
}

// Packs and simulates. Throws UnplaceableDocument where the policy cannot place a document, UserError where
// it, the sharding or the schedule refuses what it is given.
Ran run_steps(const Study& study, const RunModels& models, const DocumentSet& documents, PolicyRun& run,
              const RunStudyOptions& options, bool stop_when_full, PolicyResult& result) {
  Ran ran;
  ran.workload = workload_for(study, models, run);
  if (run.pack.of<WlbOptions>().search && uses_key(run.policy(), "search"))
    search_thresholds(study, models, {documents.batches, run.pack, *ran.workload}, *ran.workload, run,
                      options, result.notes);
  if (chooses_groups(run))
    search_groups(study, models, {documents.batches, run.pack, *ran.workload}, *ran.workload, run, options,
                  result.notes);
  ran.plan = pack(documents, *ran.workload, run, result);
  ran.options = step_options(study, run);
  const Simulation simulation{study, models, ran.plan, run, ran.options, options, stop_when_full};
  const auto simulated = [&](std::string_view rule) {
    return simulation.steps(shard_rule(run, rule, *ran.workload));
  };
  if (run.rule().choice == ShardChoice::static_best) {
    run_static_best(ran, simulated, models.memory.capacity_bytes());
    result.notes.push_back(run.label + ": static-best sharding is " + ran.shard);
  } else {
    ran.shard = run.shard;
    ran.steps = simulated(run.shard);
  }
  return ran;
}

PolicyResult not_run(PolicyRun run, RowStatus status, const std::string& reason) {
  PolicyResult result;
  result.status = status;
  result.reason = reason;
  result.plan.policy = run.name;
  result.run = std::move(run);
  return result;
}

// Metrics, memory and notes of what ran.
void describe(const Study& study, const RunModels& models, const DocumentSet& documents, const Ran& ran,
              const RunStudyOptions& options, PolicyResult& result) {
  result.capacity_bytes = models.memory.capacity_bytes();
  result.metrics = measure({study.model, models.layout, peak_flops(study, models.costs.profile().device()),
                            documents.batches, ran.plan, result.steps});
  for (const StepResult& s : result.steps) result.use += s.work.use;
  for (const Step& s : ran.plan.steps) result.tail.push_back(s.tail);
  if (std::any_of(result.steps.begin(), result.steps.end(),
                  [](const StepResult& s) { return s.work.unsynchronized_lanes; }))
    result.notes.push_back(
        result.run.label +
        ": lanes that share experts or gradients order their chunks differently, which no framework can "
        "run: their exchanges do not wait for each other");
  result.layout = models.layout;
  result.gpus_per_node = models.placement.gpus_per_node();
  if (options.record_gpus) average_gpus(ran.plan, result);
  judge_memory(result);
  result.peak_moment =
      find_peak(result, ran.plan, study, models, shard_rule(result.run, ran.shard, *ran.workload),
                ran.options, options.steps);
  if (result.status != RowStatus::oom) return;
  if (options.ignore_memory)
    result.memory_ignored = true;
  else
    drop_times(result.metrics);
}

DocumentSet documents_of(const Study& study, const Trace& trace) {
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  load.repeat = study.trace.repeat;
  return load_documents(trace.lengths, study.batch, load);
}

// How a row ends with another study or other options, without what only a row that is shown needs.
RowStatus try_row(const Study& study, const StudyInputs& inputs, PolicyRun run,
                  const RunStudyOptions& options, bool same_batches) {
  if (recompute_is_automatic(study, run)) {  // if not with all layers, then with none
    run.has_recompute = true;
    run.recompute = Recompute::full;
  }
  const RunModels models(study, layout_of(study, run), inputs.profile);
  PolicyResult unused;
  if (!derive_options(study, models, run, unused.notes).empty()) return RowStatus::oom;
  DocumentSet other;
  if (!same_batches) other = documents_of(study, load_trace(study));
  RunStudyOptions quick;
  quick.jobs = options.jobs;
  quick.stop = options.stop;
  const Ran ran = run_steps(study, models, same_batches ? inputs.documents : other, run, quick, true, unused);
  return all_fit(ran.steps, models.memory.capacity_bytes()) ? RowStatus::ok : RowStatus::oom;
}

void resolve_recompute(const Study& study, const StudyInputs& inputs, PolicyRun& run,
                       const RunStudyOptions& options, std::vector<std::string>& notes) {
  if (!recompute_is_automatic(study, run)) return;
  const RunModels models(study, layout_of(study, run), inputs.profile);
  const auto runs = [&](const PolicyRun& tried) {
    end_if_stopped(options);
    try {
      return try_row(study, inputs, tried, options, true) == RowStatus::ok;
    } catch (const UserError&) {
      return false;  // L_max and BucketSize come from memory, too
    }
  };
  choose_recompute(study, models, run, runs, notes);
}

PolicyResult run_policy(const Study& study, const StudyInputs& inputs, PolicyRun run,
                        const RunStudyOptions& options) {
  PolicyResult result;
  resolve_recompute(study, inputs, run, options, result.notes);
  const RunModels models =
      naming(study.file, [&] { return RunModels(study, layout_of(study, run), inputs.profile); });
  Ran ran;
  try {
    const std::string nothing_fits = derive_options(study, models, run, result.notes);
    if (!nothing_fits.empty() && !options.ignore_memory)
      return without_plan(models, std::move(run), std::move(result), nothing_fits);
    if (!nothing_fits.empty()) derive_without_memory(study, run);
    ran = run_steps(study, models, inputs.documents, run, options, false, result);
  } catch (const UnplaceableDocument& e) {
    return not_run(std::move(run), RowStatus::unplaceable, e.what());
  } catch (const UserError& e) {
    return not_run(std::move(run), RowStatus::refused, e.what());
  }
  write_details(options.details, run.label, ran.plan, study, models,
                shard_rule(run, ran.shard, *ran.workload), ran.options, options.steps);
  result.run = std::move(run);
  result.steps = std::move(ran.steps);
  describe(study, models, inputs.documents, ran, options, result);
  if (options.keep_plans) result.plan = std::move(ran.plan);
  return result;
}

void add_smallest_change(const Study& study, const StudyInputs& inputs, const PolicyRun& run,
                         const RunStudyOptions& options, PolicyResult& result) {
  const auto ends = [&](const Study& changed, const PolicyRun& row) {
    end_if_stopped(options);
    const bool same = changed.batch.sequences_per_step == study.batch.sequences_per_step;
    return try_row(changed, inputs, row, options, same);
  };
  const std::string change = smallest_change({study, run, result.status, longest_of(inputs.documents)}, ends);
  if (!change.empty()) result.reason += "; " + change;
}

}  // namespace

StudyInputs load_inputs(const Study& study) {
  Profile profile =
      naming(study.file + ": cluster.profile", [&] { return Profile::load(study.cluster.profile); });
  (void)naming(study.file, [&] { return RunModels(study, study.layout, profile).layout; });
  Trace trace = naming(study.file, [&] { return load_trace(study); });
  DocumentSet documents = naming(study.file, [&] { return documents_of(study, trace); });
  return {std::move(profile), std::move(trace), std::move(documents)};
}

StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options) {
  check_stragglers(options.steps, study.layout.gpus());
  if (options.steps.op.contention)
    naming(study.file, [&] { return check_links(study, study.layout, inputs.profile); });
  StudyResult result;
  result.profile = inputs.profile.name();
  result.kernels = study.framework.kernels_text_on(inputs.profile);
  result.notes = study.framework.notes_on(inputs.profile);
  result.trace_origin = inputs.trace.origin;
  result.documents = inputs.documents.documents;
  result.tokens = inputs.documents.tokens;
  result.dropped_tokens = inputs.documents.dropped_tokens;

  for (const PolicyRun& run : study.policies) {
    end_if_stopped(options);
    if (options.progress) options.progress(run.label);
    PolicyResult row = run_policy(study, inputs, run, options);
    if (row.status != RowStatus::ok && options.find_fits)
      add_smallest_change(study, inputs, run, options, row);
    result.policies.push_back(std::move(row));
    if (run.label == study.baseline) result.baseline = result.policies.size() - 1;
  }
  const PolicyResult& baseline = result.policies[result.baseline];
  const Metrics reference = baseline.simulated() ? baseline.metrics : Metrics{};
  for (PolicyResult& policy : result.policies)
    if (policy.simulated())
      compare(reference, baseline.steps, inputs.documents.batches.size(), policy.steps, policy.metrics);
  return result;
}

StudyResult run_study(const Study& study, const RunStudyOptions& options) {
  return run_study(study, load_inputs(study), options);
}

StudyResult refused_study(const Study& study, const std::string& reason) {
  StudyResult result;
  result.profile = study.cluster.profile;
  for (const PolicyRun& run : study.policies) {
    result.policies.push_back(not_run(run, RowStatus::refused, reason));
    if (run.label == study.baseline) result.baseline = result.policies.size() - 1;
  }
  return result;
}

}  // namespace equipoise
