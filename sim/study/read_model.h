// What a study says of its model: a built-in name, a config.json, or a shape written out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/workload/model.h"

namespace equipoise {

// `where` names file and key; a config.json's path is relative to the file `study`. Throws UserError.
ModelShape read_model(const nlohmann::json& node, const std::string& where, const std::string& study,
                      std::vector<std::string>& notes);

}  // namespace equipoise
