// The space that is searched where the user names none: every layout of the GPUs that the model's sizes
// allow, and the policies that keep the order of data up to a bounded delay.
#pragma once

#include "sim/tune/space.h"

namespace equipoise {

struct Study;

// `gpus`: of the candidates; `gpus_per_node`: bounds the TP degree.
Space default_space(const Study& study, const nlohmann::json& file, std::int64_t gpus, int gpus_per_node);

}  // namespace equipoise
