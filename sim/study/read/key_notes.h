// Keys that a study or `pack` gives and that cannot change the result: each is told once.
//
// A key of a policy's entry has none where neither the policy nor its sharding rule uses it; those of a study
// say so beside their rows (study_keys.cpp), by one of these functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

// Keys of a policy's entry that neither the policy nor its sharding rule uses (policies/policy.h).
std::vector<std::string> idle_keys(const nlohmann::json& entry, const PolicyRun& run);

// "chunk_size has no effect on plain".
std::string idle_key_note(const PolicyRun& run, const std::string& key);

void note_oversubscription(std::string_view key, bool stated, const Study& study,
                           std::vector<std::string>& notes);
void note_recompute_ahead(std::string_view key, bool stated, const Study& study,
                          std::vector<std::string>& notes);
void note_expert_overlap(std::string_view key, bool stated, const Study& study,
                         std::vector<std::string>& notes);
void note_kept_kv(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);
void note_reduction(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);
void note_count_embedding(std::string_view key, bool stated, const Study& study,
                          std::vector<std::string>& notes);
void note_zero(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);
void note_selective(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);
void note_longer(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);
void note_windows(std::string_view key, bool stated, const Study& study, std::vector<std::string>& notes);

}  // namespace equipoise
