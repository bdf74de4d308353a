#include "sim/study/row/runs_in.h"

#include "sim/study/read/policy_run.h"

namespace equipoise {
namespace {

// Presets that are no training framework: kernels alone, and the ranks of `execute`, which run every plan.
constexpr std::string_view kNoFramework = "none execution ";

bool chooses_degrees(const PolicyResult& row) {
  if (row.facts.steps > 0) return !other_degrees(row).empty();
  const Policy& policy = row.run.policy();
  return policy.chooses_degrees || policy.derives == Derives::groups;
}

// What the row needs that no loader can provide.
Notes needs_of(const FrameworkRuns& framework, const Study& study, std::optional<ContextComm> stated,
               const PolicyResult& row) {
  Notes needs;
  const std::string_view schedule = schedule_policy_of(study, row.run).name;
  const int pipeline = study.layout.pipeline;
  if (chooses_degrees(row) && !(pipeline == 1 && lists(framework.degrees, row.run.name)))
    needs.push_back({"needs_degrees", "", {}});
  if (row.facts.has_chunks) needs.push_back({"needs_chunks", "", {}});
  if (study.layout.context > 1 && row.facts.has_local) needs.push_back({"needs_placement", "", {}});
  // The study's own schedule is the framework's, if that has a pipeline.
  if (pipeline > 1 &&
      (framework.schedules.empty() || (schedule != study.schedule && !lists(framework.schedules, schedule))))
    needs.push_back({"needs_schedule", "", {{"schedule", schedule}}});
  if (study.layout.context > 1 && !lists(kShardsOfLoaders, row.run.shard))
    needs.push_back({"needs_shard", "", {{"shard", row.run.shard}}});
  const ContextComm form = row.run.context_comm.value_or(study.layout.context_comm);
  if (study.layout.context > 1 && form != stated && (facts_of(form).run_by & framework.forms) == 0)
    needs.push_back({"needs_form", "", {{"form", facts_of(form).name}}});
  if (row.run.stage_attention_exchange) needs.push_back({"needs_exchange", "", {}});
  return needs;
}

}  // namespace

std::set<int> other_degrees(const PolicyResult& row) {
  std::set<int> degrees = row.facts.degrees;
  degrees.erase(row.layout.context);
  return degrees;
}

void say_what_runs(const Study& study, std::optional<ContextComm> stated, PolicyResult& row) {
  const std::string& name = study.framework.preset.name;
  if (lists(kNoFramework, name)) row.runs_in = RunsIn::yes;
  const FrameworkRuns* framework = framework_runs(name);
  if (framework == nullptr) return;
  row.needs = needs_of(*framework, study, stated, row);
  const bool cuts = study.layout.context == 1 || lists(framework->shards, row.run.shard);
  // The loader takes a policy, not a file, and has documents as long as they are.
  const bool loaded = framework->takes_loader && !row.run.policy().pads_documents;
  const bool packs = (loaded || lists(framework->packs, row.run.name)) && row.run.plan_file.empty();
  row.runs_in = !row.needs.empty() ? RunsIn::no : cuts && packs ? RunsIn::yes : RunsIn::own_loader;
}

}  // namespace equipoise
