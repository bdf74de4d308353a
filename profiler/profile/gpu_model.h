// Finds the GPU that a name means, to compare the names in tools, logs and profiles.
#pragma once

#include <string>

namespace equipoise {

// The word of a GPU's name that identifies it, such as H100 or MI300X; empty if there is none.
std::string gpu_model(const std::string& name);

// Whether two names certainly mean different GPUs. A name without a model differs from any other text.
bool unlike_gpus(const std::string& a, const std::string& b);

}  // namespace equipoise
