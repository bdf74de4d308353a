#include "sim/study/run_study.h"

#include <algorithm>

#include "policies/error.h"
#include "policies/packing/wlb.h"
#include "policies/policy.h"
#include "sim/cost/profiled_workload.h"
#include "sim/engine/stage/step_simulator.h"
#include "sim/study/derive.h"
#include "sim/study/json_object.h"
#include "sim/study/load_trace.h"
#include "sim/study/parallel.h"

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
  CostKind kind = run.cost;
  if (kind == CostKind::standard)
    kind = run.name == "gds" || run.name == "skrull" || run.shard == "dacp" ? CostKind::flops
                                                                            : CostKind::profiled;
  if (kind == CostKind::quadratic) return std::make_unique<QuadraticWorkload>();
  if (kind == CostKind::flops)
    return std::make_unique<FlopsWorkload>(study.model.hidden,
                                           std::int64_t{study.model.kv_heads} * study.model.head_dim);
  return std::make_unique<ProfiledWorkload>(models.costs, study.batch.context_window);
}

ShardRule shard_rule(const PolicyRun& run, std::string_view name, const Workload& workload) {
  ShardRule rule;
  if (name == "adaptive") rule.choice = ShardChoice::adaptive;
  if (name == "optimal") rule.choice = ShardChoice::optimal;
  rule.fixed = &sharding_policy(name);
  rule.options = run.sharding;
  rule.options.workload = &workload;
  return rule;
}

struct Simulation {
  const Study& file;
  const RunModels& models;
  const Plan& plan;
  const PolicyRun& run;
  StepOptions options;
  const RunStudyOptions& study;

  // Steps are independent: each worker has its own simulator.
  [[nodiscard]] std::vector<StepResult> steps(const ShardRule& rule) const {
    std::vector<StepResult> results(plan.steps.size());
    std::vector<std::unique_ptr<StepRunner>> simulators(static_cast<std::size_t>(std::max(1, study.jobs)));
    parallel_for(std::max(1, study.jobs), plan.steps.size(), [&](int worker, std::size_t i) {
      end_if_stopped(study);
      auto& simulator = simulators[static_cast<std::size_t>(worker)];
      if (!simulator) {
        StepOptions own = options;
        own.record_gpus = study.record_gpus;
        simulator = std::make_unique<StepRunner>(file, models, rule, own, study.steps);
      }
      results[i] = simulator->run(plan.steps[i], i);
    });
    return results;
  }
};

double total_seconds(const std::vector<StepResult>& steps) {
  double sum = 0;
  for (const StepResult& s : steps) sum += to_seconds(s.step);
  return sum;
}

// The largest peak of all steps, and the first step that does not fit.
void judge_memory(PolicyResult& result) {
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const StepResult& step = result.steps[i];
    const double need = step.peak.parts.total();
    if (need > result.peak.parts.total()) result.peak = step.peak;
    if (result.out_of_memory || (need <= result.capacity_bytes && !step.bucket_broken)) continue;
    result.out_of_memory = true;
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
                     std::to_string(result.run.pack.bucket_size) + " tokens";
  }
  result.metrics.peak_memory_bytes = result.peak.parts.total();
}

// Mean over full steps; over all where there are only tails.
void average_gpus(const Plan& plan, PolicyResult& result) {
  const bool any_full =
      std::any_of(result.tail.begin(), result.tail.end(), [](char tail) { return tail == 0; });
  double steps = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const std::vector<double>& seconds = result.steps[i].gpu_compute;
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
  const ShardRule rule = shard_rule(run, run.shard == "static-best" ? "adaptive" : run.shard, workload);
  const auto seconds = [&](const Plan& plan) {
    return total_seconds(Simulation{study, models, plan, run, steps, options}.steps(rule));
  };
  const ThresholdSearch found = search_wlb_thresholds(problem, seconds, run.delay_bound);
  run.pack.queues = 0;
  run.pack.thresholds = found.thresholds;
  std::string list;
  for (const std::int64_t t : found.thresholds)
    list.append(list.empty() ? "" : ", ").append(std::to_string(t));
  notes.push_back(run.label + ": thresholds found by search: " + (list.empty() ? "none" : list) + " (" +
                  std::to_string(found.plans_tried) + " plans tried)");
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
  result.out_of_memory = true;
  result.capacity_bytes = models.memory.capacity_bytes();
  result.memory_fault.stage = result.peak.stage;
  result.memory_fault.need_bytes = result.peak.parts.total();
  result.memory_fault.capacity_bytes = result.capacity_bytes;
  result.memory_fault.reason = reason;
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
  if (run.search && run.name != "wlb") note("search has no effect (only wlb)");
  Plan plan = make_plan(packing_policy(run.name), {documents.batches, run.pack, workload});
  for (const Step& step : plan.steps) result.pack_ms += step.pack_ms;
  result.pack_ms /= static_cast<double>(documents.batches.size());
  std::int64_t dropped = 0;
  for (const Slice& s : plan.dropped) dropped += s.tokens();
  if (!plan.dropped.empty())
    note(std::to_string(plan.dropped.size()) + " slices with " + std::to_string(dropped) +
         " tokens dropped (--oversize)");
  for (const std::string& text : plan.notes) note(text);
  const bool places = run.name == "skrull" || run.name == "round-robin";
  if (places && !run.has_bucket_size && run.pack.context > 1 && run.pack.bucket_size >= longest_of(documents))
    note(
        "that is room for the longest document on one CP rank, where the others may wait for it; a smaller "
        "bucket_size would distribute it");
  return plan;
}

PolicyResult run_policy(const Study& study, const Profile& profile, const DocumentSet& documents,
                        PolicyRun run, const RunStudyOptions& options) {
  PolicyResult result;
  const RunModels models =
      naming(study.file, [&] { return RunModels(study, layout_of(study, run), profile); });
  const std::string nothing_fits = derive_options(study, models, run, result.notes);
  if (!nothing_fits.empty()) return without_plan(models, std::move(run), std::move(result), nothing_fits);
  const std::unique_ptr<Workload> workload = workload_for(study, models, run);
  const std::string where = study.file + ": " + run.label;
  if (run.search && run.name == "wlb")
    naming(where, [&] {
      search_thresholds(study, models, {documents.batches, run.pack, *workload}, *workload, run, options,
                        result.notes);
    });
  Plan plan = naming(where, [&] { return pack(documents, *workload, run, result); });

  StepOptions step_options;
  step_options.schedule = &schedule_policy(run.schedule.empty() ? study.schedule : run.schedule);
  step_options.keep = run.pack.keep;
  step_options.strict_keep = run.strict_keep;
  const Simulation simulation{study, models, plan, run, step_options, options};
  std::string shard = run.shard;
  const auto simulated = [&](std::string_view rule) {
    return naming(where, [&] { return simulation.steps(shard_rule(run, rule, *workload)); });
  };
  if (run.shard == "static-best") {
    result.steps = simulated("per-sequence");
    std::vector<StepResult> other = simulated("per-document");
    const bool better = total_seconds(other) < total_seconds(result.steps);
    if (better) result.steps = std::move(other);
    shard = better ? "per-document" : "per-sequence";
    result.notes.push_back(run.label + ": static-best sharding is " +
                           (better ? "per-document" : "per-sequence"));
  } else {
    result.steps = simulated(run.shard);
  }

  write_details(options.details, run.label, plan, study, models, shard_rule(run, shard, *workload),
                step_options, options.steps);

  result.run = std::move(run);
  result.capacity_bytes = models.memory.capacity_bytes();
  result.metrics = measure({study.model, models.layout, peak_flops(study, profile.device()),
                            documents.batches, plan, result.steps});
  for (const StepResult& s : result.steps) result.use += s.use;
  for (const Step& s : plan.steps) result.tail.push_back(s.tail);
  if (std::any_of(result.steps.begin(), result.steps.end(),
                  [](const StepResult& s) { return s.lanes_apart; }))
    result.notes.push_back(
        result.run.label +
        ": lanes that share experts or gradients order their chunks differently, which no framework can "
        "run: their exchanges do not wait for each other");
  result.layout = models.layout;
  if (options.record_gpus) average_gpus(plan, result);
  judge_memory(result);
  result.peak_moment = find_peak(result, plan, study, models, shard_rule(result.run, shard, *workload),
                                 step_options, options.steps);
  if (result.out_of_memory) drop_times(result.metrics);
  if (options.keep_plans) result.plan = std::move(plan);
  return result;
}

}  // namespace

StudyResult run_study(const Study& study, const RunStudyOptions& options) {
  StudyResult result;
  const Profile profile =
      naming(study.file + ": cluster.profile", [&] { return Profile::load(study.cluster.profile); });
  result.profile = profile.name();
  const Trace trace = naming(study.file, [&] { return load_trace(study); });
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  load.repeat = study.trace.repeat;
  const DocumentSet documents =
      naming(study.file, [&] { return load_documents(trace.lengths, study.batch, load); });
  result.trace_origin = trace.origin;
  result.documents = documents.documents;
  result.tokens = documents.tokens;
  result.dropped_tokens = documents.dropped_tokens;

  for (const PolicyRun& run : study.policies) {
    end_if_stopped(options);
    if (options.progress) options.progress(run.label);
    result.policies.push_back(run_policy(study, profile, documents, run, options));
    if (run.label == study.baseline) result.baseline = result.policies.size() - 1;
  }
  const Metrics baseline = result.policies[result.baseline].metrics;
  for (PolicyResult& policy : result.policies)
    if (!policy.out_of_memory) compare(baseline, policy.steps, policy.tail, policy.metrics);
  return result;
}

}  // namespace equipoise
