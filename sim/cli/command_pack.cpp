#include "sim/cli/command_pack.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/base/utf8.h"
#include "policies/plan_metrics.h"
#include "policies/policy_keys.h"
#include "sim/report/csv.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/study/json_object.h"
#include "sim/study/key_notes.h"
#include "sim/study/load_trace.h"
#include "sim/study/planned_memory.h"
#include "sim/study/planner.h"
#include "sim/study/policy_run.h"
#include "sim/study/simulate_plan.h"

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

// What the command line says of the cost; a policy's own where it says nothing, as far as there is a model
// and a profile for it.
CostKind cost_for(const PackCommandOptions& options, const Policy& policy) {
  if (!options.cost.empty()) return static_cast<CostKind>(choice_of(options.cost, "--cost", kCostKindNames));
  if (policy.cost == CostKind::flops) return CostKind::flops;
  return !options.model.empty() && !options.profile.empty() ? CostKind::profiled : CostKind::quadratic;
}

Pricing price(const PackCommandOptions& options, const Study& study, const PolicyRun& run) {
  Pricing pricing;
  if (!options.model.empty() && !options.profile.empty()) {
    pricing.profile = std::make_unique<Profile>(Profile::load(options.profile));
    check_layout(study.model, study.layout, "pack");
    pricing.models = std::make_unique<RunModels>(study, study.layout, *pricing.profile);
  }
  if (run.cost == CostKind::flops && options.model.empty())
    throw UserError("--model: " + run.name + " with --cost flops needs a model, found none");
  if (run.cost == CostKind::profiled && !pricing.models)
    throw UserError("--cost profiled: needs --model and --profile");
  if (run.cost == CostKind::quadratic)
    pricing.workload = std::make_unique<QuadraticWorkload>();
  else if (run.cost == CostKind::flops)
    pricing.workload = std::make_unique<FlopsWorkload>(flops_workload(study.model));
  else
    pricing.workload = workload_of(study, *pricing.models, run);
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

PolicyRun run_of(const PackCommandOptions& options, const Study& study, const std::string& name) {
  json entry = options.policy;
  entry["name"] = name;
  PolicyRun run = read_policy_run(entry, "pack", study);
  run.pack.seed = options.policy.contains("seed") ? run.pack.seed : options.seed;
  run.cost = cost_for(options, run.policy());
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

// HBP's groups and BucketSize follow from memory. L_max does not: pack knows no TP or PP to hold the model.
void derive(const Study& study, const RunModels& models, PolicyRun& run, std::vector<std::string>& notes) {
  const Derives derives = run.policy().derives;
  if (derives != Derives::groups && derives != Derives::bucket_size) return;
  if (const std::string none = derive_options(study, models, run, notes); !none.empty())
    throw UserError(run.label + ": " + none);
}

void print_notes(const std::vector<std::string>& notes, const Packed& packed, std::ostream& log) {
  for (const std::string& note : notes) log << "note: " << printable(note) << '\n';
  for (const SolverReport& r : packed.plan.solver)
    log << "note: " << packed.label << ", step " << r.step << ", "
        << (r.over_steps ? "sum over steps of the largest" : "largest") << ": incumbent " << r.incumbent
        << ", bound " << r.bound << ", gap " << fixed(100 * r.gap(), 2) << "%"
        << (r.optimal ? ", optimal" : "") << ", " << fixed(r.seconds, 3) << " s\n";
}

// The study's own planner; thresholds are searched by the work of micro-batches, groups by simulated steps.
Packed pack(const PackCommandOptions& options, const Study& study, const DocumentSet& documents,
            PolicyRun run, std::ostream& log) {
  const Pricing pricing = price(options, study, run);
  std::vector<std::string> notes;
  PlanPrices prices;
  prices.thresholds = [&](const Plan& plan) { return step_work(plan, *pricing.workload); };
  const RunStudyOptions trial;
  std::optional<Run> simulated;
  if (pricing.models) {
    derive(study, *pricing.models, run, notes);
    simulated.emplace(Run{study, *pricing.models, documents, run, *pricing.workload, trial});
    prices.groups = [&](const Plan& plan) { return trial_seconds_that_fit(*simulated, plan); };
  }
  PlannedRow planned = plan_with(study, pricing.models.get(), documents, *pricing.workload, prices, run);
  notes.insert(notes.end(), planned.notes.begin(), planned.notes.end());
  Packed packed;
  packed.label = run.label;
  packed.pack_ms = planned.pack_ms;
  packed.plan = std::move(planned.plan);
  packed.metrics = plan_metrics(documents.batches, packed.plan);
  packed.imbalance = imbalance_degree(packed.plan, micro_batch_workloads(packed.plan, *pricing.workload));
  print_notes(notes, packed, log);
  return packed;
}

json packed_json(const Packed& packed) {
  json metrics = metrics_json(packed.metrics, packed.imbalance);
  json node = plan_json(packed.plan, metrics, nullptr);
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
