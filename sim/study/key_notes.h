// Keys that a study or `pack` gives and that cannot change the result: each is told once.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study.h"

namespace equipoise {

// Keys of a policy's entry that neither the policy nor its sharding rule uses (policies/policy_keys.h).
std::vector<std::string> idle_keys(const nlohmann::json& entry, const PolicyRun& run);

// "chunk_size has no effect on plain".
std::string idle_key_note(const PolicyRun& run, const std::string& key);

// With documents_per_step: keys of `batch` that shape windows and some policy has no use for.
std::vector<std::string> idle_batch_notes(const nlohmann::json& batch, const Study& study);

// Both, for every policy of the study, into its notes.
void note_idle_keys(const nlohmann::json& batch, Study& study);

}  // namespace equipoise
