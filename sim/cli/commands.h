// What all commands have in common.
#pragma once

#include <string>
#include <string_view>

namespace equipoise {

enum class Format { table, json, csv };

// Throws UserError for anything but table, json and csv.
Format parse_format(std::string_view text);

}  // namespace equipoise
