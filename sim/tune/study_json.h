// A study file as a JSON value that can be changed and written elsewhere: paths absolute, what candidates
// share said in full.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

// The file with `set` applied. Every path in it is absolute, and batch.sequences_per_step stands in it, which
// would otherwise follow from the layout. Throws UserError as read_study does.
nlohmann::json absolute_study(const std::string& path, const std::vector<std::string>& set);

// The same for a study at hand, in place.
void make_absolute(nlohmann::json& file, const Study& study);

}  // namespace equipoise
