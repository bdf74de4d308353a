#include "sim/study/pack_request.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <variant>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "sim/report/words/words.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/row/pipeline.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

// The cost that the command line names, else the policy's own, if there are a model and a profile for it.
std::optional<CostKind> cost_for(const PackRequest& request, const Policy& policy) {
  if (!request.cost.empty()) return static_cast<CostKind>(choice_of(request.cost, "--cost", kCostKindNames));
  if (policy.cost == CostKind::flops) return CostKind::flops;
  if (!request.job.is_null()) return std::nullopt;  // the study's
  return !request.model.empty() && !request.profile.empty() ? CostKind::profiled : CostKind::quadratic;
}

// What `--search` minimises: the sum over steps of the busiest micro-batch, for which all lanes wait.
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

// HBP's groups and BucketSize follow from memory. L_max does not: pack knows no TP or PP to hold the model.
void derive_for_pack(StudyRow& row) {
  const Derives derives = row.run.policy().derives;
  if (derives != Derives::groups && derives != Derives::bucket_size) return;
  derive_sizes(row, false);
  if (row.no_room) throw UserError(text_of(about(row.run.label, *row.no_room)));
}

// The request as the file of a study. Keys that a plan alone does not need have arbitrary values, which
// change nothing in a row without models.
json study_file(const PackRequest& request) {
  json file = request.job;
  if (file.is_null()) {
    file = {{"model", request.model.empty() ? "llama2-7b" : request.model},
            {"framework", request.framework},
            {"batch", {{"sequences_per_step", PackOptions().sequences_per_step}}},
            {"policies", {"plain"}}};
    if (request.model.ends_with(".json")) file["model"] = {{"hf_config", request.model}};
    if (!request.profile.empty()) file["cluster"]["profile"] = request.profile;
    file["trace"] = request.trace;
  }
  if (!file.is_object()) throw UserError("pack: job: expected a study, found " + printable(file.dump()));
  for (const char* part : {"batch", "parallel"})
    if (file.contains(part) && !file[part].is_object())
      throw UserError("pack: job: " + std::string(part) + ": expected an object, found " +
                      printable(file[part].dump()));
  file["batch"].update(request.batch);
  file["parallel"]["data"] = request.lanes;
  file["parallel"]["context"] = request.context;
  if (file.contains("cluster") && file["cluster"].is_object())
    file["cluster"].erase("gpus");  // the GPUs of this layout
  return file;
}

// Plans the row as a study does.
PlannedRow plan_for_job(StudyRow& row) {
  const RunStudyOptions options;
  resolve_recompute(row, options);
  derive_sizes(row, false);
  if (row.no_room) throw UserError(text_of(about(row.run.label, *row.no_room)));
  return pack_row(row, options);
}

// Plans the row with what the request knows of the job.
PlannedRow plan_alone(StudyRow& row) {
  if (row.models != nullptr) derive_for_pack(row);
  PlanPrices prices;
  prices.seconds = [&](const Plan& plan) { return step_work(plan, *row.workload); };
  if (row.models != nullptr) {
    prices.seconds_that_fit = [&](const Plan& plan) { return trial_seconds_that_fit(row, plan, {}); };
    prices.steps_that_fit = [&](const Plan& plan) { return trial_steps_that_fit(row, plan, {}); };
    prices.layers = layers_of_groups(row);
    prices.degrees = degrees_of_lanes(row);
  }
  return pack_row(row, prices);
}

Note solver_note(const std::string& label, const SolverReport& r) {
  Notes proven;
  if (r.optimal) proven.push_back({"optimal", "", {}});
  return {r.over_steps ? "solver_sum" : "solver_largest",
          label,
          {{"step", r.step},
           {"incumbent", r.incumbent},
           {"bound", r.bound},
           {"gap", r.gap()},
           {"seconds", r.seconds},
           {"proven", proven}}};
}

std::vector<PackKey> pack_batch_keys() {
  constexpr auto kSize = ParameterKind::integer;
  return {
      {"--context-window", "context_window", kSize, true, true, "Tokens of a window (128K)"},
      {"--sequences-per-step", "sequences_per_step", kSize, true, true, "Global batch in windows (4)"},
      {"--documents-per-step", "documents_per_step", kSize, true, true, "Global batch in whole documents"},
      {"--max-length", "max_length", kSize, true, true, "Documents are truncated to so many tokens first"},
      {"--steps", "steps", kSize, true, true, "Global batches; the whole trace by default"},
      {"--loader", "loader", ParameterKind::choice, true, true,
       "carry or drop the rest of a document cut at a window border"},
      {"--micro-batch-size", "micro_batch_size", kSize, true, true, "Sequences of a micro-batch (1)"}};
}

PackKey key_of(const PackParameter& row) {
  PackKey key;
  key.key = row.key;
  key.kind = row.kind;
  key.help = help_of_key(row.key, row.help);
  if (row.kind == ParameterKind::flag) key.value = !std::get<bool>(row.get({}));
  if (const std::size_t no = key.help.find("false "); !key.value && no != std::string::npos)
    key.help.erase(no, std::string_view("false ").size());  // which is the meaning of --no-KEY
  if (row.kind == ParameterKind::choice) key.help += " (" + joined(row.choices) + ")";
  key.flag = row.flag;
  if (!key.flag.empty()) return key;
  key.flag = (key.value ? "--" : "--no-") + key.key;
  std::replace(key.flag.begin(), key.flag.end(), '_', '-');
  return key;
}

}  // namespace

std::span<const PackKey> pack_keys() {
  static const std::vector<PackKey> kAll = [] {
    std::vector<PackKey> all = pack_batch_keys();
    for (const PackParameter& row : pack_parameters())
      if (row.key != "seed") all.push_back(key_of(row));
    return all;
  }();
  return kAll;
}

const PackKey* pack_key(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  for (const PackKey& key : pack_keys())
    if (key.flag == flag || key.key == name) return &key;
  return nullptr;
}

nlohmann::json typed_value(const PackKey& key, const std::string& text) {
  if (key.kind == ParameterKind::number) return json_or_word(text, key.flag);
  return key.kind == ParameterKind::integers ? list_of_words(text) : nlohmann::json(text);
}

nlohmann::json list_of_words(const std::string& text) {
  nlohmann::json list = nlohmann::json::array();
  std::string item;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || text[at] == ',') {
      list.push_back(item);
      item.clear();
    } else {
      item += text[at];
    }
  }
  return list;
}

Study study_of_request(const PackRequest& request) {
  json file = study_file(request);
  const bool all = !request.batch.contains("steps");
  if (all) file["batch"]["steps"] = 1;
  Study study = parse_case(file, request.command);
  // A policy with lanes of its own may run a batch that a study's lanes cannot share equally.
  if (request.knows_job() && !study.impossible.empty()) throw UserError(study.impossible);
  study.policies.clear();
  if (all) study.steps = 0;
  return study;
}

PolicyRun row_of_request(const PackRequest& request, const Study& study, const std::string& policy) {
  json entry = json::object();
  if (!request.job.is_null() && request.job["policies"].front().is_object())
    entry = request.job["policies"].front();
  entry.update(request.policy);
  entry["name"] = policy;
  PolicyRun run = read_policy_run(entry, request.command, study);
  if (run.schedule_auto)
    throw UserError("pack: job: policies[0].schedule: expected the one that `study` chose, found auto");
  const auto refuse_auto = [&](const std::string& key, bool is_auto) {
    if (is_auto && run.says(key))
      throw UserError("pack: ", key, ": expected the one that `study` chose, found auto");
  };
  refuse_auto("virtual_pipeline", run.virtual_pipeline_auto);
  for (const TriedSize* const size : std::exchange(run.open_sizes, {})) {
    refuse_auto(std::string(size->key), true);
    const PackParameter& row = *pack_parameter(size->key);
    row.set(run.pack, row.get(PackOptions()));
  }
  run.pack.seed = request.policy.contains("seed") ? run.pack.seed : request.seed;
  if (const std::optional<CostKind> cost = cost_for(request, run.policy())) run.cost = *cost;
  return run;
}

Notes idle_request_notes(const PackRequest& request, const Study& study) {
  Notes notes;
  const std::vector<PolicyRun>& runs = study.policies;
  for (const std::string& key : runs.front().idle_keys) {
    const auto idle = [&](const PolicyRun& run) {
      return std::find(run.idle_keys.begin(), run.idle_keys.end(), key) != run.idle_keys.end();
    };
    if (!std::all_of(runs.begin(), runs.end(), idle))
      continue;  // a key may be meant for one of several policies
    for (const PolicyRun& run : runs) notes.push_back(idle_key_note(run, key));
  }
  note_keys("", batch_keys(), &request.batch, study, notes);
  return notes;
}

std::optional<Profile> profile_of_request(const PackRequest& request, const Study& study) {
  if (!request.knows_job()) return std::nullopt;
  return Profile::load(study.cluster.profile);
}

StudyRow priced_row(const PackRequest& request, const Study& study, const DocumentSet& documents,
                    const std::optional<Profile>& profile, PolicyRun run) {
  StudyRow row(study, documents, profile ? &*profile : nullptr, std::move(run));
  const CostKind kind = row.run.cost_kind();
  if (row.models == nullptr && kind == CostKind::profiled)
    throw UserError("--cost profiled: needs --model and --profile");
  if (row.models != nullptr || kind == CostKind::quadratic)
    row.workload = workload_of(row);
  else if (!request.model.empty())
    row.workload = std::make_shared<const FlopsWorkload>(flops_workload(study.model));
  else
    throw UserError("--cost flops: needs --model, found none; --cost quadratic does not");
  return row;
}

Packed pack(const PackRequest& request, const Study& study, const DocumentSet& documents, PolicyRun run) {
  const std::optional<Profile> profile = profile_of_request(request, study);
  StudyRow row = priced_row(request, study, documents, profile, std::move(run));
  PlannedRow planned = request.job.is_null() ? plan_alone(row) : plan_for_job(row);
  Packed packed;
  packed.notes = std::move(row.notes);
  packed.notes.insert(packed.notes.end(), planned.notes.begin(), planned.notes.end());
  packed.label = row.run.label;
  packed.pack_ms = planned.pack_ms;
  packed.plan = std::move(planned.plan);
  packed.metrics = plan_metrics(documents.batches, packed.plan);
  *packed.metrics.lost_tokens += static_cast<double>(documents.cut_tokens);
  packed.imbalance = imbalance_degree(packed.plan, micro_batch_workloads(packed.plan, *row.workload));
  for (const SolverReport& report : packed.plan.solver)
    packed.notes.push_back(solver_note(packed.label, report));
  return packed;
}

}  // namespace equipoise
