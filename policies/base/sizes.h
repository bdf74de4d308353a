// Sizes as users write them: 8192, 8K (1024), 1M (1024^2).
#pragma once

#include <cstdint>
#include <string_view>

namespace equipoise {

// Whether `text` is one; `value` is set where it is. At most 2^42 before K or M, so that nothing overflows.
bool parse_size(std::string_view text, std::int64_t& value);

}  // namespace equipoise
