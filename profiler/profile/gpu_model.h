// Which GPU a name is of, for comparing names that tools, logs and profiles give to one.
#pragma once

#include <string>

namespace equipoise {

// The word of a GPU's name that says which it is, such as H100 or MI300X; empty where there is none.
std::string gpu_model(const std::string& name);

// Whether two names are certainly of unlike GPUs. A name without a model is unlike another text.
bool unlike_gpus(const std::string& a, const std::string& b);

}  // namespace equipoise
