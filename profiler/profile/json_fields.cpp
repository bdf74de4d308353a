#include "profiler/profile/json_fields.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "policies/error.h"

namespace equipoise {
namespace {

std::string shown(const nlohmann::json& node, const std::string& key) {
  const auto it = node.find(key);
  if (it == node.end()) return "nothing";
  const std::string text = it->dump();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

[[noreturn]] void refuse(const nlohmann::json& node, const std::string& key, const std::string& where,
                         const std::string& expected) {
  throw UserError(where + "." + key + ": expected " + expected + ", found " + shown(node, key));
}

std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

const nlohmann::json& object_field(const nlohmann::json& node, const std::string& key,
                                   const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_object()) refuse(node, key, where, "an object");
  return *it;
}

double number_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_number() || !std::isfinite(it->get<double>()))
    refuse(node, key, where, "a number");
  return it->get<double>();
}

double positive_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value > 0)) refuse(node, key, where, "a number > 0");
  return value;
}

double non_negative_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value >= 0)) refuse(node, key, where, "a number >= 0");
  return value;
}

std::string text_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_string() || it->get<std::string>().empty())
    refuse(node, key, where, "a text");
  return it->get<std::string>();
}

void refuse_unknown_keys(const nlohmann::json& node, const std::vector<std::string_view>& known,
                         const std::string& where) {
  for (const auto& item : node.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const std::string near = nearest_name(item.key(), names);
    throw UserError(where + ": unknown key '" + item.key() + "'" +
                    (near.empty() ? "; known: " + joined(names) : "; did you mean '" + near + "'?"));
  }
}

std::string nearest_name(std::string_view found, const std::vector<std::string>& known) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(2, found.size() / 2) + 1;
  for (const std::string& name : known) {
    const std::size_t edits = edits_between(found, name);
    if (edits < fewest) {
      fewest = edits;
      best = name;
    }
  }
  return best;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace equipoise
