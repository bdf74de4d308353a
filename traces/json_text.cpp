#include "traces/json_text.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

using nlohmann::json;

// Passes the text to the parser and records how far the parser came, which its events do not tell.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// What is wrong with a text; empty if nothing.
struct Fault {
  bool syntax = false;  // whether it is no JSON at all
  std::string what;
};

std::string path_of(const std::vector<json*>& open, const std::vector<std::string>& keys, std::size_t depth) {
  std::string path;
  for (std::size_t i = 0; i < depth; ++i)
    if (open[i]->is_array())
      path.append("[").append(std::to_string(open[i]->size() - 1)).append("]");
    else
      path.append(path.empty() ? "" : ".").append(keys[i]);
  return path.size() > 120 ? path.substr(0, 117) + "..." : path;
}

// Builds the value from the parser's events and stops at the first that is not allowed.
class Builder {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) { return add(value) != nullptr; }
  bool string(string_t& value) { return add(std::move(value)) != nullptr; }
  bool binary(binary_t& /*value*/) { return false; }  // does not occur in text
  bool start_object(std::size_t /*size*/) { return enter(json::object()); }
  bool start_array(std::size_t /*size*/) { return enter(json::array()); }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }

  bool key(string_t& name) {
    const auto [place, fresh] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    keys_[open_.size() - 1] = std::move(name);
    member_ = &place->second;
    if (!fresh) fault_.what = path_of(open_, keys_, open_.size()) + ": this key is here twice";
    return fresh;
  }

  bool parse_error(std::size_t /*position*/, const std::string& token, const json::exception& error) {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow)
      fault_.what = "the number " + token + " is out of range";
    else
      fault_ = {true, "not JSON"};
    return false;
  }

  json take() { return std::move(root_); }
  [[nodiscard]] const Fault& fault() const { return fault_; }

 private:
  template <class Value>
  json* add(Value&& value) {
    if (open_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& items = open_.back()->get_ref<json::array_t&>();
      items.emplace_back(std::forward<Value>(value));
      return &items.back();
    }
    *member_ = std::forward<Value>(value);
    return member_;
  }

  bool enter(json&& empty) {
    json* const added = add(std::move(empty));
    if (open_.size() == kMostJsonDepth) {
      fault_.what = path_of(open_, keys_, 4) + "...: expected values at most " +
                    std::to_string(kMostJsonDepth) + " levels deep, found more";
      return false;
    }
    open_.push_back(added);
    keys_.resize(std::max(keys_.size(), open_.size()));
    return true;
  }

  bool leave() {
    open_.pop_back();
    return true;
  }

  json root_;
  json* member_ = nullptr;         // value of the last key
  std::vector<json*> open_;        // from the root inwards; a parent only grows once its children are closed
  std::vector<std::string> keys_;  // the last key of each open object
  Fault fault_;
};

struct Parsed {
  json value;
  Fault fault;
  std::size_t at = 0;  // bytes before the fault
};

Parsed parse(std::string_view text, bool comments) {
  const char* reached = text.data();
  Builder builder;
  Parsed parsed;
  if (json::sax_parse(Cursor(text.data(), &reached), Cursor(text.data() + text.size(), &reached), &builder,
                      json::input_format_t::json, true, comments))
    parsed.value = builder.take();
  else
    parsed.fault = builder.fault();
  parsed.at = static_cast<std::size_t>(reached - text.data());
  return parsed;
}

std::string_view without_mark(std::string_view text, const std::string& where) {
  constexpr std::string_view kUtf8 = "\xef\xbb\xbf", kUtf16Little = "\xff\xfe", kUtf16Big = "\xfe\xff";
  const std::string_view start = text.substr(0, 2);
  if (start == kUtf16Little || start == kUtf16Big) throw UserError(where, ": expected UTF-8, found UTF-16");
  if (text.substr(0, kUtf8.size()) == kUtf8) text.remove_prefix(kUtf8.size());
  return text;
}

// The text at which the parser gave up, for an error.
std::string found_at(std::string_view text, std::size_t at) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "nothing";
  if (at >= text.size() && at > 0) --at;
  const std::size_t before = text.rfind('\n', at == 0 ? 0 : at - 1);
  const std::size_t begin =
      std::max(before == std::string_view::npos ? 0 : before + 1, at < 20 ? 0 : at - 20);
  const std::string_view rest = text.substr(begin, 40);
  return "\"" + printable(rest.substr(0, rest.find_first_of("\r\n"))) + "\"";
}

[[noreturn]] void refuse(const Parsed& parsed, std::string_view text, const std::string& where) {
  if (!parsed.fault.syntax) throw UserError(where, ": ", parsed.fault.what);
  if (const std::size_t good = utf8_prefix(text); good < text.size() && good <= parsed.at)
    throw UserError(where, ": expected UTF-8, found other bytes");
  throw UserError(where, ": not JSON, near ", found_at(text, parsed.at));
}

// Replaces each Infinity and NaN outside strings by a number or null. Empty if there is none.
std::string without_python_numbers(std::string_view text) {
  if (text.find("Infinity") == std::string_view::npos && text.find("NaN") == std::string_view::npos)
    return {};
  constexpr std::pair<std::string_view, std::string_view> kNumbers[] = {
      {"Infinity", "1.7976931348623157e308"}, {"NaN", "null"}};
  std::string plain;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') quoted = !quoted;
    const auto* const number = std::ranges::find_if(
        kNumbers, [&](const auto& one) { return !quoted && text.substr(i).starts_with(one.first); });
    const std::size_t taken = number != std::end(kNumbers) ? number->first.size()
                              : quoted && text[i] == '\\'  ? 2
                                                           : 1;
    plain += number != std::end(kNumbers) ? number->second : text.substr(i, taken);
    i += taken;
  }
  return plain;
}

}  // namespace

json parse_json(std::string_view text, const std::string& name) {
  text = without_mark(text, name + ":1");
  Parsed parsed = parse(text, true);
  if (parsed.fault.what.empty()) return std::move(parsed.value);
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(parsed.at, text.size()));
  refuse(parsed, text, name + ":" + std::to_string(1 + std::count(text.begin(), end, '\n')));
}

json read_json_file(const std::string& path) {
  return parse_json(read_text_file(path), path);
}

json parse_json_line(std::string_view line, const std::string& where) {
  Parsed parsed = parse(line, false);
  if (parsed.fault.what.empty()) return std::move(parsed.value);
  refuse(parsed, line, where);
}

json parse_python_json(std::string_view text, const std::string& name) {
  const std::string plain = without_python_numbers(text);
  return parse_json(plain.empty() ? text : plain, name);
}

json parse_python_json_line(std::string_view line, const std::string& where) {
  const std::string plain = without_python_numbers(line);
  return parse_json_line(plain.empty() ? line : plain, where);
}

bool looks_like_json(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\xef\xbb\xbf";
  const std::size_t first = text.find_first_not_of(kBlanks);
  const std::size_t second =
      first == std::string_view::npos ? first : text.find_first_not_of(kBlanks, first + 1);
  if (second == std::string_view::npos)
    return first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  const std::string_view opens = text[first] == '{' ? "\"}/" : text[first] == '[' ? "[{]/" : "";
  if (opens.find(text[second]) == std::string_view::npos) return false;
  const std::size_t end = text.find('\n', second);
  if (end == std::string_view::npos || text.find_first_not_of(kBlanks, end) == std::string_view::npos)
    return true;
  return !json::accept(text.substr(first, end - first));  // otherwise the next line is another document
}

json json_or_word(std::string_view text, const std::string& where) {
  if (!is_utf8(text)) throw UserError(where, ": expected UTF-8, found other bytes");
  Parsed parsed = parse(text, false);
  if (parsed.fault.what.empty()) return std::move(parsed.value);
  if (parsed.fault.syntax) return std::string(text);
  refuse(parsed, text, where);
}

std::string shown_json(const json& value) {
  const std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return text.size() > 80 ? text.substr(0, utf8_prefix(text.substr(0, 77))) + "..." : text;
}

}  // namespace equipoise
