// The one way in for JSON that a user wrote: files, lines and values of options.
//
// nlohmann's own parser takes any depth (what prints, copies or compares such a value then overflows the
// stack), keeps the last of two equal keys without a word, and throws what is no user's error for 1e999. Here
// each is refused in one line with file, line and key path:
//   study.json:7: batch.steps: this key is here twice
// A byte-order mark is skipped, anything but UTF-8 refused. O(bytes), like the parser below it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace equipoise {

inline constexpr int kMostJsonDepth = 64;  // objects and arrays inside each other

// A whole file, `name` in errors; comments are allowed.
nlohmann::json parse_json(std::string_view text, const std::string& name);
nlohmann::json read_json_file(const std::string& path);

// One value on a line of a file; `where` is "file:line".
nlohmann::json parse_json_line(std::string_view line, const std::string& where);

// As Python's json module writes it, which its readers take: Infinity and NaN among the numbers. They become
// the largest double and null.
nlohmann::json parse_python_json(std::string_view text, const std::string& name);
nlohmann::json parse_python_json_line(std::string_view line, const std::string& where);

// Whether a text is meant as one JSON document of objects. A line of a log may begin with a bracket or a
// brace, too ("[rank0]: step: 1", "{'loss': 1.2}"), and a file of one object a line is not one document.
bool looks_like_json(std::string_view text);

// A value as it is typed for an option: JSON, or what is none as a string. `where` is the option.
nlohmann::json json_or_word(std::string_view text, const std::string& where);

// A value for an error message: one line, shortened, whatever it holds.
std::string shown_json(const nlohmann::json& value);

}  // namespace equipoise
