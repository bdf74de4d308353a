// Which parts of a model a step trains: `lora` and `frozen`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/workload/model.h"
#include "traces/json_object.h"

namespace equipoise {

// Fills model.training, and notes how much of the model is trained. Returns why a step cannot train exactly
// that part of the model; empty if it can. Throws UserError for a wrong key.
std::string read_training(JsonObject& file, const std::string& path, ModelShape& model, Notes& notes);

// The words of a list as the bits of a set; `more` names other allowed items. Throws UserError.
std::uint32_t read_words(const nlohmann::json& list, JsonObject& object, std::string_view key,
                         std::span<const std::string_view> words, const std::string& more = "");

}  // namespace equipoise
