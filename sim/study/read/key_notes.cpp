#include "sim/study/read/key_notes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/study_keys.h"
#include "sim/workload/stage_layers.h"
#include "traces/json_object.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Whether the policy makes as many micro-batches as its entry says.
bool counts_micro_batches(const PolicyRun& run) {
  const bool budgets = has_key(run.policy(), kTokensPerMicroBatch.key);
  return has_key(run.policy(), "micro_batches") &&
         (!budgets || run.pack.of<TokenBudget>().tokens_per_micro_batch == 0);
}

bool has_effect(const std::string& key, const PolicyRun& run) {
  if (key == "tile") return false;  // because the profile prices its kernels' own tiles
  // hbp chooses it together with its groups (Algorithm 1).
  if (key == "recompute" && run.chooses_groups()) return false;
  if (key == "recompute_by_stage") return !run.has_recompute || run.recompute == Recompute::automatic;
  if (key == "context_comm") return run.pack.context > 1 || run.pack.lanes > 1;
  if (key == "stage_attention_exchange") return run.pack.stages > 1;
  if (key == "micro_batches" && run.plan_file == kPlanOfCaller)
    return true;  // the caller's function receives it
  if (key == "micro_batches" && has_key(run.policy(), key)) return counts_micro_batches(run);
  // An order of micro-batches needs their cost.
  if (key == "cost" && run.pack.order != Order::as_packed) return true;
  if (const PackParameter* row = pack_parameter(run.policy(), key))
    return row->acts == nullptr || row->acts(run.pack);
  return uses_key(run.policy(), key) || uses_key(run.rule(), key);
}

// The profile's W(d) spreads what is linear in tokens over a micro-batch of a window.
bool prices_windows(const PolicyRun& run) {
  return run.cost_kind() == CostKind::profiled && has_effect("cost", run);
}

bool batch_key_has_effect(std::string_view key, const PolicyRun& run) {
  if (key == "loader") return false;
  return uses_key(run.policy(), key) || (key == "context_window" && prices_windows(run));
}

// Policies that do not use a key of the batch, each once.
std::vector<std::string_view> policies_without(std::string_view key, const Study& study) {
  std::vector<std::string_view> names;
  for (const PolicyRun& run : study.policies)
    if (!batch_key_has_effect(key, run) && std::find(names.begin(), names.end(), run.name) == names.end())
      names.push_back(run.name);
  return names;
}

}  // namespace

namespace acts {

bool has_columns(const Study& s) {
  const auto named = [](std::string_view file) {
    for (const std::string_view packed : {".gz", ".zst"})
      if (file.ends_with(packed)) file.remove_suffix(packed.size());
    return file.ends_with(".csv") || file.ends_with(".tsv") || file.ends_with(".jsonl") ||
           file.ends_with(".ndjson");
  };
  const auto& parts = s.trace.mixture;
  return named(s.trace.file) ||
         std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return named(part.file); });
}
bool draws(const Study& s) {
  return s.trace.is_drawn();
}
bool has_files(const Study& s) {
  return s.trace.has_files();
}
bool may_be_short(const Study& s) {
  return !s.trace.file.empty() || !s.trace.mixture.empty() || s.trace.documents > 0;
}
bool has_tensor(const Study& s) {
  return s.layout.tensor > 1;
}
bool has_replicas(const Study& s) {
  return std::int64_t{s.layout.data} * s.layout.context > 1;
}
bool offloads(const Study& s) {
  return s.layout.optimizer_offload > 0;
}
bool uses_host_link(const Study& s) {
  return offloads(s) || s.layout.activation_offload > 0;
}
bool divides_stages(const Study& s) {
  const Layout& l = s.layout;
  return l.pipeline > 1 && l.stage_layers.empty() && !l.count_embedding_and_head;
}
bool has_pipeline(const Study& s) {
  return s.layout.pipeline > 1;
}
bool has_no_pipeline(const Study& s) {
  return s.layout.pipeline == 1;
}
bool has_experts(const Study& s) {
  return s.model.moe.has_value();
}
bool exchanges_experts(const Study& s) {
  return s.model.moe && s.layout.expert > 1;
}
bool routes_unevenly(const Study& s) {
  return exchanges_experts(s) && s.framework.in_training.expert_capacity_factor == 0;
}
bool draws_experts(const Study& s) {
  return s.model.moe && (s.framework.in_training.expert_skew > 0 ||
                         s.framework.in_training.expert_router != ExpertRouter::stated);
}
// Whether the CP form of the layout or of a row has the property, on more than one rank. Ranks are those of a
// lane, or all of them, which some policies regroup.
bool has_form(const Study& s, bool ContextCommFacts::*fact) {
  const bool of_row = std::ranges::any_of(s.policies, [&](const PolicyRun& run) {
    return run.context_comm && facts_of(*run.context_comm).*fact;
  });
  return has_replicas(s) && (of_row || facts_of(s.layout.context_comm).*fact);
}
bool gathers_keys(const Study& s) {
  const auto row_keeps = [](const PolicyRun& run) {
    return run.context_comm && facts_of(*run.context_comm).keeps_brought;
  };
  return s.layout.context > 1 &&
         (s.layout.acting_facts().keeps_brought || std::ranges::any_of(s.policies, row_keeps));
}
bool rings(const Study& s) {
  return s.framework.in_training.linear_layers == LinearLayers::fused &&
         has_form(s, &ContextCommFacts::goes_in_ring);
}
bool nests(const Study& s) {
  return has_form(s, &ContextCommFacts::nested);
}
bool casts(const Study& s) {
  return has_form(s, &ContextCommFacts::casts);
}
bool disaggregates(const Study& s) {
  return has_form(s, &ContextCommFacts::plans_tasks);
}
bool gathers_parameters(const Study& s) {
  return s.layout.zero == 1 || s.layout.zero == 2;
}
bool gathers_fp8(const Study& s) {
  return s.layout.zero == 3 && s.layout.precision == Precision::fp8 && !s.model.moe && !s.model.mla &&
         s.framework.in_training.linear_layers != LinearLayers::fused;
}
bool freezes_weights(const Study& s) {
  return s.model.training.frozen != 0 || s.model.training.frozen_layers > 0;
}
bool reduces_gradients_alone(const Study& s) {
  return s.layout.zero == 2;
}
bool takes_micro_batches(const Study& s) {
  return std::any_of(s.policies.begin(), s.policies.end(),
                     [](const PolicyRun& run) { return !run.has_plan_file() && counts_micro_batches(run); });
}

}  // namespace acts

std::vector<std::string> idle_keys(const json& entry, const PolicyRun& run) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : entry.items())
    if (!has_effect(key, run)) keys.push_back(key);
  return keys;
}

Note idle_key_note(const PolicyRun& run, const std::string& key) {
  if (key == "recompute_by_stage") return no_effect(key, "with recompute auto");
  if (key == "context_comm") return no_effect(key, "with parallel.context or data above 1");
  if (key == "stage_attention_exchange") return no_effect(key, "with a pipeline");
  if (key == "micro_batches" && has_key(run.policy(), key))
    return no_effect(key, "without tokens_per_micro_batch");
  if (key == "tile") return {"tile_no_effect", "", {}};
  if (const PackParameter* row = pack_parameter(run.policy(), key)) return no_effect(key, row->acts_when);
  if (is_shard_key(key)) return {"no_effect_on_shard", "", {{"key", key}, {"shard", run.shard}}};
  return {"no_effect_on_policy", "", {{"key", key}, {"policy", run.name}}};
}

void note_oversubscription(std::string_view, bool, const Study& study, Notes& notes) {
  if (study.cluster.oversubscription != 1)
    notes.emplace_back(
        no_effect("cluster.network.oversubscription", "with --fidelity op --contention, and between nodes"));
}

// Notes what keeps exchanges of experts exposed here, although the framework says that it hides them. Without
// exchanges it notes this only if the study asks for it.
void note_expert_overlap(std::string_view, bool, const Study& study, Notes& notes) {
  const ExpertOverlap overlap = study.framework.in_training.expert_overlap;
  const auto note = [&](const char* kind) { notes.push_back({kind, "", {{"overlap", name_of(overlap)}}}); };
  if (overlap == ExpertOverlap::none) return;
  if (!study.model.moe || study.layout.expert == 1) return;  // which its row reports, if it is stated
  if (overlap == ExpertOverlap::shared_expert && study.model.moe->shared_width() == 0)
    note("overlap_without_shared");
  if (overlap != ExpertOverlap::dualpipe) return;
  if (study.layout.zero == 3) note("overlap_zero3");
  for (const PolicyRun& run : study.policies) {
    const std::string& schedule = run.schedule.empty() ? study.schedule : run.schedule;
    const SchedulePolicy& policy = schedule_policy(schedule);
    if (study.layout.zero < 3 && !policy.pairs && !policy.bidirectional)
      notes.push_back(
          {"overlap_unpaired", run.label, {{"overlap", name_of(overlap)}, {"schedule", schedule}}});
  }
}

void note_count_embedding(std::string_view, bool, const Study& study, Notes& notes) {
  Layout layout = study.layout;
  if (!layout.count_embedding_and_head || layout.pipeline == 1 || !study.impossible.empty()) return;
  const std::vector<int> counted = layers_of_stages(study.model, layout);
  layout.count_embedding_and_head = false;
  if (counted == layers_of_stages(study.model, layout))
    notes.push_back({"count_embedding_no_effect",
                     "",
                     {{"layers", study.model.layers},
                      {"stages", counted.size()},
                      {"first", counted.front()},
                      {"last", counted.back()}}});
}

void note_zero(std::string_view, bool stated, const Study& study, Notes& notes) {
  if (!stated && study.layout.zero != study.framework.preset.zero)
    notes.push_back(
        {"pipeline_zero", "framework " + study.framework.preset.name, {{"zero", study.layout.zero}}});
  if (study.layout.zero == 3 && study.framework.preset.name == "deepspeed")
    notes.push_back({"zero3_of_deepspeed", "", {}});
}

void note_offload(std::string_view, bool, const Study& study, Notes& notes) {
  if (study.layout.optimizer_offload > 0)
    notes.push_back({"optimizer_offload",
                     "",
                     {{"host_link_GBps", study.layout.host_link_GBps},
                      {"host_memory_GBps", study.layout.host_memory_GBps}}});
}

void note_activation_offload(std::string_view, bool, const Study& study, Notes& notes) {
  if (study.layout.activation_offload > 0)
    notes.push_back({"activation_offload", "", {{"host_link_GBps", study.layout.host_link_GBps}}});
}

// Notes on the layout's key and on those of the rows.
void note_recompute(std::string_view, bool, const Study& study, Notes& notes) {
  const bool selective = std::any_of(study.policies.begin(), study.policies.end(), [&](const PolicyRun& run) {
    return (run.has_recompute ? run.recompute : study.layout.recompute) == Recompute::selective;
  });
  if (selective) notes.push_back({"selective_recompute", "", {}});
  for (const PolicyRun& run : study.policies)  // if the row itself has none, that is noted with its keys
    if (run.recompute_by_stage && !run.has_recompute && study.layout.recompute != Recompute::automatic)
      notes.push_back(about(run.label, no_effect("recompute_by_stage", "with recompute auto")));
}

void note_longer(std::string_view, bool stated, const Study& study, Notes& notes) {
  if (stated && study.batch.max_length == 0) notes.push_back({"oversize_no_effect", "", {}});
}

// With documents_per_step a step has its documents, and at least this many micro-batches.
void note_sequences(std::string_view key, bool stated, const Study& study, Notes& notes) {
  note_windows(key, stated, study, notes);
  const PackOptions& batch = study.batch;
  if (stated && batch.documents_per_step > 0 && batch.micro_batches == 0 && acts::takes_micro_batches(study))
    notes.push_back({"sequences_of_documents", "", {{"sequences", batch.sequences_per_step}}});
}

// With documents_per_step: keys that shape windows and that some policies do not use.
void note_windows(std::string_view key, bool stated, const Study& study, Notes& notes) {
  if (!stated || study.batch.documents_per_step == 0) return;
  const std::string names = all_joined(policies_without(key, study));
  if (!names.empty()) notes.push_back({"window_no_effect", "", {{"key", key}, {"policies", names}}});
}

}  // namespace equipoise
