// The only reader of JSON that a user wrote: files, lines and values of options.
//
// nlohmann's own parser takes any depth, so that printing, copying or comparing such a value overflows the
// stack. It also keeps the last of two equal keys silently and throws an internal error for 1e999. Here each
// is refused in one line with file, line and key path: study.json:7: batch.steps: this key is here twice. A
// byte-order mark is skipped, and anything but UTF-8 is refused. O(bytes), like nlohmann's parser.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace equipoise {

inline constexpr int kMostJsonDepth = 64;  // nested objects and arrays

// Reads a whole file, called `name` in errors; comments are allowed.
nlohmann::json parse_json(std::string_view text, const std::string& name);
nlohmann::json read_json_file(const std::string& path);

// Reads one value on a line of a file; `where` is "file:line".
nlohmann::json parse_json_line(std::string_view line, const std::string& where);

// Reads JSON as Python's json module writes it, with Infinity and NaN among the numbers. They become the
// largest double and null.
nlohmann::json parse_python_json(std::string_view text, const std::string& name);
nlohmann::json parse_python_json_line(std::string_view line, const std::string& where);

// Whether a text is meant as one JSON document of objects. A line of a log may also begin with a bracket or a
// brace ("[rank0]: step: 1", "{'loss': 1.2}"), and a file with one object per line is not one document.
bool looks_like_json(std::string_view text);

// Reads the value of an option: JSON, or else a string. `where` is the option.
nlohmann::json json_or_word(std::string_view text, const std::string& where);

// A value for an error message, shortened to one line.
std::string shown_json(const nlohmann::json& value);

}  // namespace equipoise
