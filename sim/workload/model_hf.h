// The shape of a model from its Hugging Face config.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/workload/model.h"

namespace equipoise {

// What a study adds to a config.json.
struct HfOptions {
  int layers = 0;                   // replaces the file's number unless 0
  std::optional<bool> gated_ffn;    // if the file leaves it open
  std::vector<std::string> ignore;  // keys of the file that the user wants to be ignored
};

// Reads a Hugging Face config.json. What it has and we do not model is refused by name, never skipped.
// `notes` receives what the user should know of the model. Throws UserError, which names file and key.
ModelShape read_hf_config(const std::string& path, const HfOptions& options = {}, Notes* notes = nullptr);

}  // namespace equipoise
