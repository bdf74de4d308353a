// Reads the lists of a samples file that `profile` wrote (docs/reference/formats.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/fit/samples.h"

namespace equipoise {

// Adds the samples of the file, whose name is `path` in errors. Throws UserError.
void add_json(const nlohmann::json& file, const std::string& path, SampleSet& set);

}  // namespace equipoise
