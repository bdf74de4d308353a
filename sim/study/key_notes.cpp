#include "sim/study/key_notes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "policies/policy_keys.h"
#include "sim/study/derive.h"
#include "sim/study/policy_run.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_effect(const std::string& key, const PolicyRun& run) {
  if (key == "tile") return false;  // the profile prices its kernels' own tiles
  // hbp chooses it with its groups (Algorithm 1).
  if (key == "recompute" && chooses_groups(run)) return false;
  // What orders micro-batches asks for their cost.
  if (key == "cost" && run.pack.order != Order::as_packed) return true;
  return uses_key(run.policy(), key) || uses_key(run.rule(), key);
}

// The profile's W(d) spreads what is linear in tokens over a micro-batch of a window.
bool prices_windows(const PolicyRun& run) {
  return cost_kind(run) == CostKind::profiled && has_effect("cost", run);
}

bool batch_key_has_effect(std::string_view key, const PolicyRun& run) {
  if (key == "loader") return false;
  return uses_key(run.policy(), key) || (key == "context_window" && prices_windows(run));
}

}  // namespace

std::vector<std::string> idle_keys(const json& entry, const PolicyRun& run) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : entry.items())
    if (!has_effect(key, run)) keys.push_back(key);
  return keys;
}

std::string idle_key_note(const PolicyRun& run, const std::string& key) {
  if (key == "tile") return "tile has no effect: the profile says what its kernels' tiles cost";
  return key + " has no effect on " + (is_shard_key(key) ? run.shard + " sharding" : run.name);
}

std::vector<std::string> idle_batch_notes(const json& batch, const Study& study) {
  std::vector<std::string> notes;
  if (study.batch.documents_per_step == 0) return notes;
  for (const char* key : {"context_window", "sequences_per_step", "loader"}) {
    if (!batch.is_object() || !batch.contains(key)) continue;
    std::vector<std::string_view> names;
    for (const PolicyRun& run : study.policies) {
      if (!batch_key_has_effect(key, run) && std::find(names.begin(), names.end(), run.name) == names.end())
        names.push_back(run.name);
    }
    if (names.empty()) continue;
    std::string note = std::string("batch.") + key + " has no effect with documents_per_step on ";
    for (std::size_t i = 0; i < names.size(); ++i) note.append(i == 0 ? "" : ", ").append(names[i]);
    notes.push_back(note + ": documents come whole");
  }
  return notes;
}

void note_idle_keys(const json& batch, Study& study) {
  for (const PolicyRun& run : study.policies)
    for (const std::string& key : run.idle_keys)
      study.notes.push_back(run.label + ": " + idle_key_note(run, key));
  for (std::string& note : idle_batch_notes(batch, study)) study.notes.push_back(std::move(note));
}

}  // namespace equipoise
