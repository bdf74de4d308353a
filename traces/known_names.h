// The error for a name that is not in a list.
#pragma once

#include <span>
#include <string_view>

namespace equipoise {

// Throws UserError: "<what>: unknown name 'x'; expected one of a, b, c; did you mean 'a'?"
[[noreturn]] void refuse_name(std::string_view what, std::string_view name,
                              std::span<const std::string_view> known);

}  // namespace equipoise
