// The indexer of a config.json, which chooses the keys that a query attends to.
#pragma once

#include <string>

#include "policies/base/note.h"
#include "sim/workload/hf_config.h"
#include "sim/workload/model.h"

namespace equipoise {

// Whether all layers of the type attend to keys that an indexer chooses.
bool may_index(const std::string& model_type);

// Reads it into a shape whose layers and latent attention are read. Throws UserError.
void read_indexer(HfConfig& config, const std::string& model_type, ModelShape& model, Notes& notes);

}  // namespace equipoise
