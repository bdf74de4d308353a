#include "sim/cli/profile_tables.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/number_text.h"

namespace equipoise {
namespace {

using nlohmann::json;

// Tables lie at different depths: gemm/bf16, attention/kernels/fa3/forward, collective/networks/efa.
void collect(const json& node, const std::string& path, std::vector<TableView>& views) {
  if (!node.is_object()) return;
  if (node.contains("parameters")) {
    views.push_back({path, &node});
    return;
  }
  for (const auto& item : node.items()) {
    const bool level = item.key() == "kernels" || item.key() == "networks";
    std::string next = level ? path : path.empty() ? item.key() : path + " " + item.key();
    collect(item.value(), next, views);
  }
}

const json* group_named(const json& table, const char* key, const std::string& name) {
  const auto list = table.find(key);
  if (list == table.end()) return nullptr;
  for (const json& group : *list)
    if (group.value("group", "") == name) return &group;
  return nullptr;
}

}  // namespace

std::vector<TableView> tables_of(const Profile& profile) {
  std::vector<TableView> views;
  collect(profile.json().at("tables"), "", views);
  return views;
}

std::string kernels_are(const Profile& profile) {
  const json::json_pointer kind("/tables/gemm/bf16/provenance/kind");
  const json& file = profile.json();
  return file.contains(kind) && file.at(kind).is_string() ? file.at(kind).get<std::string>() : std::string();
}

void print_errors(const Profile& profile, std::ostream& out) {
  char line[200];
  std::snprintf(line, sizeof line, "%-38s %-15s | %-23s | %s\n", "", "", "held out", "each shape left out");
  out << line;
  std::snprintf(line, sizeof line, "%-38s %-15s | %7s %7s %7s | %7s %7s %7s\n", "table", "group", "samples",
                "median", "p90", "samples", "median", "p90");
  out << line;
  for (const TableView& view : tables_of(profile)) {
    const json& table = *view.table;
    const auto folds = table.find("cross_validated");
    if (folds == table.end() || folds->empty()) {
      const std::string kind = table.contains("provenance") ? table["provenance"].value("kind", "") : "";
      std::snprintf(line, sizeof line, "%-38s %s\n", view.path.c_str(), kind.c_str());
      out << line;
      continue;
    }
    for (const json& crossed : *folds) {
      const std::string name = crossed.value("group", "");
      const json* held = group_named(table, "hold_out", name);
      const json none = {{"samples", 0}, {"median", 0.0}, {"p90", 0.0}};
      const json& seen = held == nullptr ? none : *held;
      std::snprintf(line, sizeof line, "%-38s %-15s | %7d %7s %7s | %7d %7s %7s\n", view.path.c_str(),
                    name.c_str(), seen.value("samples", 0), percent(seen.value("median", 0.0)).c_str(),
                    percent(seen.value("p90", 0.0)).c_str(), crossed.value("samples", 0),
                    percent(crossed.value("median", 0.0)).c_str(),
                    percent(crossed.value("p90", 0.0)).c_str());
      out << line;
    }
  }
}

}  // namespace equipoise
