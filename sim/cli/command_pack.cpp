#include "sim/cli/command_pack.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "policies/policy_keys.h"
#include "sim/cost/profiled_workload.h"
#include "sim/engine/stage/step_simulator.h"
#include "sim/report/csv.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/study/derive.h"
#include "sim/study/group_search.h"
#include "sim/study/json_object.h"
#include "sim/study/key_notes.h"
#include "sim/study/load_trace.h"
#include "sim/study/planned_memory.h"
#include "sim/study/policy_run.h"

namespace equipoise {

using nlohmann::json;

namespace {

// A study that holds what the command line says; the model may be absent.
Study study_of(const PackCommandOptions& options) {
  Study study;
  study.file = "pack";
  if (std::filesystem::exists(options.trace) || options.trace.find('.') != std::string::npos ||
      options.trace.find('/') != std::string::npos)
    study.trace.file = options.trace;
  else
    study.trace.distribution = options.trace;
  study.trace.column = options.column;
  study.trace.seed = options.seed;
  study.layout.data = options.lanes;
  study.layout.context = options.context;
  study.framework = framework_of(kDefaultFramework);
  JsonObject batch(options.batch, "pack");
  PackOptions& b = study.batch;
  b.context_window = batch.integer("context_window", b.context_window, 1, std::int64_t{1} << 31);
  b.micro_batch_size = batch.integer("micro_batch_size", 1, 1, 1 << 20);
  b.sequences_per_step = batch.integer("sequences_per_step", b.sequences_per_step, 1, 1 << 24);
  b.documents_per_step = batch.integer("documents_per_step", 0, 1, 1 << 30);
  study.steps = batch.integer("steps", 0, 1, 10'000'000);
  study.loader = static_cast<LoaderTail>(batch.choice("loader", 0, kLoaderTailNames));
  batch.finish();
  b.lanes = options.lanes;
  b.context = options.context;
  b.gpus = std::int64_t{options.lanes} * options.context;
  if (options.model.empty()) return study;
  study.model = options.model.find(".json") == std::string::npos ? builtin_model(options.model)
                                                                 : read_hf_config(options.model);
  return study;
}

// Prices, and what derives from them, for as long as the command runs.
struct Pricing {
  std::unique_ptr<Profile> profile;
  std::unique_ptr<RunModels> models;
  std::unique_ptr<Workload> workload;
};

std::string cost_for(const PackCommandOptions& options, const std::string& policy) {
  if (!options.cost.empty()) return options.cost;
  if (packing_policy(policy).cost == CostKind::flops) return "flops";
  return !options.model.empty() && !options.profile.empty() ? "profiled" : "quadratic";
}

Pricing price(const PackCommandOptions& options, const Study& study, const std::string& policy) {
  Pricing pricing;
  const std::string cost = cost_for(options, policy);
  if (!options.model.empty() && !options.profile.empty()) {
    pricing.profile = std::make_unique<Profile>(Profile::load(options.profile));
    check_layout(study.model, study.layout, "pack");
    pricing.models = std::make_unique<RunModels>(study, study.layout, *pricing.profile);
  }
  if (cost == "quadratic") {
    pricing.workload = std::make_unique<QuadraticWorkload>();
  } else if (cost == "flops") {
    if (options.model.empty())
      throw UserError("--model: " + policy + " with --cost flops needs a model, found none");
    pricing.workload = std::make_unique<FlopsWorkload>(
        study.model.hidden, std::int64_t{study.model.kv_heads} * study.model.head_dim);
  } else if (cost == "profiled") {
    if (!pricing.models) throw UserError("--cost profiled: needs --model and --profile");
    pricing.workload = std::make_unique<ProfiledWorkload>(pricing.models->costs, study.batch.context_window);
  } else {
    throw UserError("--cost: expected profiled, quadratic or flops, found " + cost);
  }
  return pricing;
}

struct Packed {
  Plan plan;
  PlanMetrics metrics;
  std::optional<double> imbalance;
  double pack_ms = 0;
  std::string label;
};

// What `--search` minimises here: over steps, the work of the busiest micro-batch (all lanes wait for it).
double step_work(const Plan& plan, const Workload& workload) {
  const std::vector<double> works = micro_batch_workloads(plan, workload);
  double total = 0;
  std::size_t next = 0;
  for (const Step& step : plan.steps) {
    double largest = 0;
    for (const Lane& lane : step.lanes)
      for (std::size_t i = 0; i < lane.micro_batches.size(); ++i) largest = std::max(largest, works[next++]);
    total += largest;
  }
  return total;
}

// What HBP's choice of groups minimises: step times at stage fidelity, as in a study.
std::function<double(const Plan&)> simulated_seconds(const Study& study, const RunModels& models,
                                                     const PolicyRun& run) {
  // The simulator refers to its rule.
  const auto rule = std::make_shared<ShardRule>();
  rule->fixed = &sharding_policy(run.shard);
  rule->options = run.sharding;
  StepOptions steps;
  steps.schedule = &schedule_policy(study.schedule);
  const auto simulator = std::make_shared<StepSimulator>(models.costs, *rule, steps, &models.memory);
  return [rule, simulator, &models](const Plan& plan) {
    double sum = 0;
    for (const Step& step : plan.steps) {
      const StepResult result = simulator->run(step);
      if (result.work.peak.parts.total() > models.memory.capacity_bytes())
        return std::numeric_limits<double>::infinity();
      sum += to_seconds(result.times.makespan);
    }
    return sum;
  };
}

PolicyRun run_of(const PackCommandOptions& options, const Study& study, const std::string& name) {
  json entry = options.policy;
  entry["name"] = name;
  PolicyRun run = read_policy_run(entry, "pack", study);
  run.pack.seed = options.policy.contains("seed") ? run.pack.seed : options.seed;
  const std::string cost = cost_for(options, name);
  run.cost = cost == "quadratic" ? CostKind::quadratic
             : cost == "flops"   ? CostKind::flops
                                 : CostKind::profiled;
  return run;
}

// Keys that none of the policies uses: of several, one may be meant for one.
void note_idle_keys(const PackCommandOptions& options, const Study& study, std::ostream& log) {
  const std::vector<PolicyRun>& runs = study.policies;
  for (const std::string& key : runs.front().idle_keys) {
    const auto idle = [&](const PolicyRun& run) {
      return std::find(run.idle_keys.begin(), run.idle_keys.end(), key) != run.idle_keys.end();
    };
    if (!std::all_of(runs.begin(), runs.end(), idle)) continue;
    for (const PolicyRun& run : runs) log << "note: " << idle_key_note(run, key) << '\n';
  }
  for (const std::string& note : idle_batch_notes(options.batch, study))
    log << "note: " << printable(note) << '\n';
}

Packed pack(const PackCommandOptions& options, const Study& study, const DocumentSet& documents,
            PolicyRun run, std::ostream& log) {
  const Pricing pricing = price(options, study, run.name);
  std::vector<std::string> notes;
  // HBP's groups and BucketSize follow from memory. L_max does not: pack knows no TP or PP to hold the model.
  const Derives derives = run.policy().derives;
  const bool from_memory = derives == Derives::groups || derives == Derives::bucket_size;
  if (pricing.models && from_memory)
    if (const std::string nothing_fits = derive_options(study, *pricing.models, run, notes);
        !nothing_fits.empty())
      throw UserError(run.label + ": " + nothing_fits);
  if (pricing.models && chooses_groups(run))
    choose_groups(study, *pricing.models, {documents.batches, run.pack, *pricing.workload},
                  simulated_seconds(study, *pricing.models, run), run, notes);
  if (run.pack.of<WlbOptions>().search && uses_key(run.policy(), "search")) {
    const PackingProblem problem{documents.batches, run.pack, *pricing.workload};
    const auto work = [&](const Plan& plan) { return step_work(plan, *pricing.workload); };
    const ThresholdSearch found = search_wlb_thresholds(problem, work, run.pack.of<WlbOptions>().delay_bound);
    run.pack.of<WlbOptions>().queues = 0;
    run.pack.of<WlbOptions>().thresholds = found.thresholds;
    std::string list;
    for (const std::int64_t t : found.thresholds)
      list.append(list.empty() ? "" : ", ").append(std::to_string(t));
    notes.push_back("thresholds found by search: " + (list.empty() ? std::string("none") : list));
  }
  Packed packed;
  packed.label = run.label;
  packed.plan = make_plan(packing_policy(run.name), {documents.batches, run.pack, *pricing.workload});
  for (const std::string& note : packed.plan.notes) notes.push_back(note);
  for (const std::string& note : notes) log << "note: " << printable(note) << '\n';
  packed.metrics = plan_metrics(documents.batches, packed.plan);
  packed.imbalance = imbalance_degree(packed.plan, micro_batch_workloads(packed.plan, *pricing.workload));
  for (const Step& step : packed.plan.steps) packed.pack_ms += step.pack_ms;
  packed.pack_ms /= static_cast<double>(std::max<std::size_t>(1, documents.batches.size()));
  for (const SolverReport& r : packed.plan.solver)
    log << "note: " << run.label << ", step " << r.step << ", "
        << (r.over_steps ? "sum over steps of the largest" : "largest") << ": incumbent " << r.incumbent
        << ", bound " << r.bound << ", gap " << fixed(100 * r.gap(), 2) << "%"
        << (r.optimal ? ", optimal" : "") << ", " << fixed(r.seconds, 3) << " s\n";
  std::int64_t dropped = 0;
  for (const Slice& slice : packed.plan.dropped) dropped += slice.tokens();
  if (dropped > 0)
    log << "note: " << run.label << ": " << packed.plan.dropped.size() << " slices with " << dropped
        << " tokens dropped (--oversize)\n";
  return packed;
}

json packed_json(const Packed& packed) {
  json metrics = metrics_json(packed.metrics, packed.imbalance);
  json node = plan_json(packed.plan, metrics);
  node["measured"] = {{"pack_ms", packed.pack_ms}};
  return node;
}

void print_table(const std::vector<Packed>& all, const DocumentSet& documents, std::ostream& out) {
  std::vector<std::string> header = {"metric"};
  for (const Packed& p : all) header.push_back(p.label);
  TextTable table(header);
  const auto row = [&](const char* name, auto&& value) {
    std::vector<std::string> cells = {name};
    for (const Packed& p : all) cells.push_back(value(p));
    table.add(std::move(cells));
  };
  row("steps", [](const Packed& p) { return std::to_string(p.plan.steps.size()); });
  row("micro-batches", [](const Packed& p) {
    std::int64_t count = 0;
    for (const Step& s : p.plan.steps)
      for (const Lane& l : s.lanes) count += static_cast<std::int64_t>(l.micro_batches.size());
    return grouped(count);
  });
  const json first = metrics_json(all.front().metrics, all.front().imbalance);
  for (const auto& [key, value] : first.items()) {
    const std::string name = key;
    row(name.c_str(), [&name](const Packed& p) {
      const json v = metrics_json(p.metrics, p.imbalance)[name];
      return v.is_null() ? std::string("-") : fixed(v.get<double>(), 3);
    });
  }
  row("pack ms (measured)", [](const Packed& p) { return fixed(p.pack_ms, 3); });
  out << grouped(documents.tokens) << " tokens in " << documents.batches.size() << " global batches\n"
      << table.text();
}

// The plans of all policies are held as JSON, and once more as text.
void check_json(const Study& study, const DocumentTotals& totals, const MemoryLimit& limit) {
  double bytes = documents_bytes(totals);
  for (const PolicyRun& run : study.policies) {
    const PlanSize size = plan_size(run, totals);
    bytes += plan_bytes(size, run.pack) + plan_json_memory(size);
  }
  require_memory("--format json", bytes, limit, "--format table or csv");
}

}  // namespace

void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log) {
  Study study = study_of(options);
  for (const std::string& name : options.policies) study.policies.push_back(run_of(options, study, name));
  if (!study.trace.distribution.empty() && study.steps == 0) study.steps = 100;
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  RunStudyOptions planned;
  planned.keep_plans = true;
  if (study.steps > 0) check_planned_memory(study, foreseen_documents(study), planned, limit);
  const Trace trace = load_trace(study);
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  const DocumentSet documents = load_documents(trace.lengths, study.batch, load);
  check_planned_memory(study, totals_of(documents), planned, limit);
  if (options.format == Format::json) check_json(study, totals_of(documents), limit);
  note_idle_keys(options, study, log);
  std::vector<Packed> all;
  for (const PolicyRun& run : study.policies) all.push_back(pack(options, study, documents, run, log));
  if (options.format == Format::json) {
    if (!options.compare) {
      out << packed_json(all.front()).dump() << '\n';
      return;
    }
    json plans = json::array();
    for (const Packed& p : all) plans.push_back(packed_json(p));
    out << json{{"schema", "equipoise.plans/1"}, {"plans", std::move(plans)}}.dump() << '\n';
  } else if (options.format == Format::csv) {
    bool header = false;
    for (const Packed& p : all) {
      const json metrics = metrics_json(p.metrics, p.imbalance);
      if (!header) {
        out << "policy";
        for (const auto& [key, value] : metrics.items()) out << ',' << key;
        out << '\n';
        header = true;
      }
      out << csv_cell(p.label);
      for (const auto& [key, value] : metrics.items()) out << ',' << (value.is_null() ? "" : value.dump());
      out << '\n';
    }
  } else {
    print_table(all, documents, out);
  }
}

}  // namespace equipoise
