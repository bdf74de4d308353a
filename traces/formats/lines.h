// Readers of lengths from text, one per format, and the parts that all readers share. Each reader takes the
// decompressed bytes and the file's name (for errors), returns lengths in file order, and throws UserError
// for anything that it does not understand. No reader allocates by a number that it has not compared with the
// size of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/trace.h"

namespace equipoise::formats {

using Lengths = std::vector<std::int64_t>;

Lengths read_text(std::string_view bytes, const std::string& name);
Lengths read_csv(std::string_view bytes, const std::string& name, const std::string& column, char separator);
Lengths read_jsonl(std::string_view bytes, const std::string& name, const std::string& field);
Lengths read_megatron_mock(std::string_view bytes, const std::string& name, const TraceReadOptions& options);

std::string text_bytes(const Lengths& lengths);

// Throws UserError unless `value` is a length in [1, kLongestDocument]. `where` is "file:line" or "file:
// document 3". Inline since readers call it for every document.
[[noreturn]] void refuse_length(const std::string& where, std::string_view found);
inline bool is_length(std::int64_t value) {
  return value >= 1 && value <= kLongestDocument;
}

// The value of a number without sign or fraction; -1 for any other text. A number above kLongestDocument
// gives a value that is_length refuses.
std::int64_t parse_length(std::string_view text);

std::string_view trimmed(std::string_view text);  // removes spaces, tabs and carriage returns at both ends
std::string shown(std::string_view found);        // quoted and shortened, for an error

}  // namespace equipoise::formats
