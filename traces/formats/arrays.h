// Readers of lengths from binary arrays, one per format. They follow the same rules as those of lines.h.
#pragma once

#include <string>
#include <string_view>

#include "traces/formats/lines.h"

namespace equipoise::formats {

Lengths read_npy(std::string_view bytes, const std::string& name);
Lengths read_megatron_idx(std::string_view bytes, const std::string& name);
Lengths read_datatrove_index(std::string_view bytes, const std::string& name);

}  // namespace equipoise::formats
