// Notes on keys of a study or `pack` that cannot change the result, each of them once.
//
// A key of a policy's entry that neither the policy nor its sharding rule uses gets no note here; a study
// notes those in their rows (study_keys.cpp), with one of these functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

// When keys act that do not act in every study: Key::acting.
namespace acts {
bool has_columns(const Study& study);
bool draws(const Study& study);
bool has_files(const Study& study);
bool may_be_short(const Study& study);
bool has_tensor(const Study& study);
bool has_replicas(const Study& study);
bool nests(const Study& study);
bool casts(const Study& study);
bool disaggregates(const Study& study);
bool has_pipeline(const Study& study);
bool divides_stages(const Study& study);  // depends on framework.stage_division
bool offloads(const Study& study);
bool uses_host_link(const Study& study);
bool has_no_pipeline(const Study& study);
bool has_experts(const Study& study);
bool exchanges_experts(const Study& study);
bool routes_unevenly(const Study&);
bool draws_experts(const Study& study);
bool gathers_keys(const Study& study);
bool rings(const Study& study);
bool gathers_parameters(const Study& study);
bool gathers_fp8(const Study& study);
bool freezes_weights(const Study& study);
bool reduces_gradients_alone(const Study& study);
bool takes_micro_batches(const Study& study);
}  // namespace acts

// Keys of a policy's entry that neither the policy nor its sharding rule uses (policies/policy.h).
std::vector<std::string> idle_keys(const nlohmann::json& entry, const PolicyRun& run);

// A note that the row does not use a key which it states.
Note idle_key_note(const PolicyRun& run, const std::string& key);

void note_oversubscription(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_expert_overlap(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_count_embedding(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_offload(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_activation_offload(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_zero(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_recompute(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_longer(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_sequences(std::string_view key, bool stated, const Study& study, Notes& notes);
void note_windows(std::string_view key, bool stated, const Study& study, Notes& notes);

}  // namespace equipoise
