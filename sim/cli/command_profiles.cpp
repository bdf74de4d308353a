#include "sim/cli/command_profiles.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/fit/group_fit.h"
#include "sim/report/text_table.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

using nlohmann::json;

// Tables are at different depths: gemm/bf16, attention/kernels/fa3/forward, collective/networks/efa.
void collect_tables(const json& node, const std::string& path, std::vector<TableView>& views) {
  if (!node.is_object()) return;
  if (node.contains("parameters")) {
    views.push_back({path, &node});
    return;
  }
  for (const auto& item : node.items()) {
    const bool level = item.key() == "kernels" || item.key() == "networks";
    std::string next = level ? path : path.empty() ? item.key() : path + " " + item.key();
    collect_tables(item.value(), next, views);
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
  collect_tables(profile.json().at("tables"), "", views);
  return views;
}

std::string kernels_are(const Profile& profile) {
  const json::json_pointer kind("/tables/gemm/bf16/provenance/kind");
  const json& file = profile.json();
  return file.contains(kind) && file.at(kind).is_string() ? file.at(kind).get<std::string>() : std::string();
}

void print_errors(const Profile& profile, std::ostream& out) {
  TextTable text({"table", "group", "held out", "median", "p90", "by shape", "median", "p90"});
  text.align_left(1);
  for (const TableView& view : tables_of(profile)) {
    const json& table = *view.table;
    const auto folds = table.find("cross_validated");
    if (folds == table.end() || folds->empty()) {
      const std::string kind = table.contains("provenance") ? table["provenance"].value("kind", "") : "";
      text.add({view.path, kind, "", "", "", "", "", ""});
      continue;
    }
    for (const json& crossed : *folds) {
      const std::string name = crossed.value("group", "");
      std::vector<std::string> cells = {view.path, name};
      for (const json* const errors : {group_named(table, "hold_out", name), &crossed}) {
        const int samples = errors == nullptr ? 0 : errors->value("samples", 0);
        cells.push_back(std::to_string(samples));
        for (const char* const which : {"median", "p90"})
          cells.push_back(samples > 0 ? percent(errors->value(which, 0.0)) : "-");
      }
      text.add(std::move(cells));
    }
  }
  out << text.text(screen_width()) << "By shape: each shape is held out in its turn.\n";
}

void print_calibration(const Profile& profile, std::ostream& out) {
  TextTable text({"your samples", "group", "count", "median error of the base", "of your profile"});
  text.align_left(1);
  std::size_t others = 0;
  for (const TableView& view : tables_of(profile)) {
    const json& table = *view.table;
    if (!table.contains("base_errors")) {
      ++others;
      continue;
    }
    for (const json& before : table["base_errors"]) {
      const json* after = group_named(table, "cross_validated", before.at("group"));
      const bool known = after != nullptr && after->value("samples", 0) > 0;
      text.add({view.path, before.at("group"), before.at("samples").dump(), percent(before.at("median")),
                known ? percent(after->at("median")) : "-"});
    }
  }
  out << text.text() << "Each error of your profile is on a shape that its fit did not see. " << others
      << " other tables are those of the base (--all).\n";
}

namespace {

std::string text_of(const json& node) {
  if (node.is_string()) return node.get<std::string>();
  if (!node.is_array()) return node.dump();
  return all_joined(node, "; ", text_of);
}

std::string interval_text(const json& pair) {
  return short_number(pair.at(0).get<double>()) + " .. " + short_number(pair.at(1).get<double>());
}

void print_facts(const Profile& profile, std::ostream& out) {
  const json& device = profile.json().at("device");
  const json sources = device.value("sources", json::object());
  out << profile.name() << ": " << profile.json().value("summary", std::string()) << "\n\n";
  for (const auto& item : device.items()) {
    if (item.key() == "sources") continue;
    char line[120];
    const std::string value =
        item.value().is_number() ? short_number(item.value().get<double>()) : text_of(item.value());
    std::snprintf(line, sizeof line, "  %-26s %-24s ", item.key().c_str(), value.c_str());
    out << line << (sources.contains(item.key()) ? text_of(sources[item.key()]) : "") << '\n';
  }
}

void print_provenance(const Profile& profile, std::ostream& out) {
  for (const TableView& view : tables_of(profile)) {
    const json& table = *view.table;
    const json provenance = table.value("provenance", json::object());
    out << "\n" << view.path << ": " << provenance.value("kind", std::string("?"));
    if (provenance.contains("samples")) out << ", " << printable(provenance["samples"].dump()) << " samples";
    if (provenance.contains("borrowed_from") && provenance.value("kind", std::string()) != "calibrated")
      out << ", borrowed from " << text_of(provenance["borrowed_from"]);
    const std::string source = provenance.contains("source") ? text_of(provenance["source"]) : "";
    if (!source.empty()) out << "\n  from " << source;
    if (table.contains("note")) out << "\n  note: " << text_of(table["note"]);
    if (const std::string errors = unseen_fabric_errors(table); !errors.empty())
      out << "\n  borrowed by every other cluster: on fabrics held out of such a fit " << errors;
    if (table.contains("base_error"))
      out << "\n  the base is off its samples by "
          << short_number(100 * table["base_error"].value("median", 0.0)) << " % at the median";
    const json ranges = table.value("ranges", json::object());
    // A derived table's samples belong to the table that it was derived from.
    const char* const whose =
        provenance.value("kind", std::string()) == "derived" ? ": none of its own; source " : ": samples ";
    for (const auto& range : ranges.items())
      out << "\n  " << range.key() << whose << interval_text(range.value().at("samples")) << ", valid "
          << interval_text(range.value().at("allowed"));
  }
  out << '\n';
}

// Plots measured against predicted on logarithmic axes; equal values lie on the diagonal.
void print_plot(const std::string& title, const json& pairs, std::ostream& out) {
  constexpr int kColumns = 56;
  constexpr int kRows = 18;
  double low = 1e300;
  double high = 0;
  for (const json& pair : pairs)
    for (const json& value : pair) {
      low = std::min(low, value.get<double>());
      high = std::max(high, value.get<double>());
    }
  if (!(low > 0) || high <= low) return;
  const double width = std::log(high / low);
  const auto cell = [&](double value, int cells) {
    return std::clamp(static_cast<int>(std::log(value / low) / width * cells), 0, cells - 1);
  };
  std::vector<std::string> canvas(kRows, std::string(kColumns, ' '));
  for (int column = 0; column < kColumns; ++column)
    canvas[at(kRows - 1 - column * kRows / kColumns)][at(column)] = '.';
  for (const json& pair : pairs) {
    const int column = cell(pair.at(0).get<double>(), kColumns);
    const int row = kRows - 1 - cell(pair.at(1).get<double>(), kRows);
    canvas[at(row)][at(column)] = 'o';
  }
  out << '\n'
      << folded(concatenated(title, ": predicted (up) against measured (right), ", short_number(low * 1e3),
                             " to ", short_number(high * 1e3), " ms, logarithmic"),
                screen_width());
  for (const std::string& line : canvas) out << "  |" << line << '\n';
  out << "  +" << std::string(kColumns, '-') << '\n';
}

}  // namespace

void profiles_command(Format format, std::ostream& out) {
  json list = json::array();
  for (const std::string& name : shipped_profiles()) {
    const Profile profile = Profile::load(name);
    list.push_back({{"name", name},
                    {"device", profile.device().name},
                    {"kernels", kernels_are(profile)},
                    {"summary", profile.json().value("summary", std::string())}});
  }
  if (format == Format::json) {
    out << list.dump(1) << '\n';
    return;
  }
  if (format == Format::csv) out << "name,device,kernels,summary\n";
  for (const json& row : list) {
    const auto name = row["name"].get<std::string>();
    const auto device = row["device"].get<std::string>();
    const auto kernels = row["kernels"].get<std::string>();
    const auto summary = row["summary"].get<std::string>();
    if (format == Format::csv) {
      out << name << ",\"" << device << "\"," << kernels << ",\"" << summary << "\"\n";
    } else {
      const std::string begin = formatted("%-12s %-9s  ", name.c_str(), kernels.c_str());
      out << folded(begin + device + ": " + summary, screen_width(), begin.size());
    }
  }
}

void profiles_show_command(const std::string& name, Format format, std::ostream& out) {
  const Profile profile = Profile::load(name);
  if (format == Format::json) {
    out << profile.json().dump(1) << '\n';
    return;
  }
  if (format == Format::csv) throw UserError("--format: profiles show prints table or json, found csv");
  constexpr std::size_t kIndent = 4;
  std::ostringstream prose, tables;
  refusing_other_types(profile.origin(), [&] {
    print_facts(profile, prose);
    print_provenance(profile, prose);
    print_errors(profile, tables);
    for (const TableView& view : tables_of(profile))
      if (view.table->contains("hold_out_pairs"))
        print_plot(view.path, view.table->at("hold_out_pairs"), tables);
  });
  out << folded(prose.str(), screen_width(), kIndent) << '\n' << tables.str();
}

}  // namespace equipoise
