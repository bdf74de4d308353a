// What all commands have in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

enum class Format { table, json, csv };
inline constexpr std::string_view kFormatNames[] = {"table", "json", "csv"};

// Throws UserError for anything but table, json and csv.
Format parse_format(std::string_view text);

// A size as users write it: an integer from 1 to 2^31, K = 1024, M = 1024^2. `option` names it in the error.
std::int64_t parse_length(std::string_view text, std::string_view option);

// Sizes separated by commas: "1,1,2,4", "4K,128K".
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view option);

// Columns that a drawing on stdout may use: COLUMNS, else 100.
int terminal_columns();

// Colours only on a terminal that has them, and only where NO_COLOR is not set.
bool colors_wanted();

}  // namespace equipoise
