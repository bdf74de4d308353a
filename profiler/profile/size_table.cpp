#include "profiler/profile/size_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/profile/collective_form.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

std::vector<double> positive_numbers(const nlohmann::json& node, const std::string& key,
                                     const std::string& where) {
  const auto found = node.find(key);
  const auto positive = [](const nlohmann::json& value) {
    return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>());
  };
  if (found == node.end() || !found->is_array() || !std::all_of(found->begin(), found->end(), positive))
    throw UserError(where + "." + key + ": expected a list of numbers > 0");
  return found->get<std::vector<double>>();
}

}  // namespace

double table_us(const SizeTable& table, double link_bytes) {
  if (link_bytes <= table.bytes.front()) return table.us.front();
  if (link_bytes >= table.bytes.back()) return table.us.back() * (link_bytes / table.bytes.back());
  const auto above = static_cast<std::size_t>(
      std::upper_bound(table.bytes.begin(), table.bytes.end(), link_bytes) - table.bytes.begin());
  const double share =
      std::log(link_bytes / table.bytes[above - 1]) / std::log(table.bytes[above] / table.bytes[above - 1]);
  return table.us[above - 1] * std::pow(table.us[above] / table.us[above - 1], share);
}

double table_seconds(const SizeTable& table, Collective kind, double bytes, int ranks) {
  return 1e-6 * (table_us(table, bytes * bus_factor(kind, ranks)) + table.rank_us * std::max(0, ranks - 2));
}

double bus_GBps(const SizeTable& table) {
  return 1e-3 * table.bytes.back() / table.us.back();
}

SizeTable size_table(const nlohmann::json& table, const std::string& where) {
  const nlohmann::json& node = object_field(table, "parameters", where);
  const std::string here = where + ".parameters";
  SizeTable made{positive_numbers(node, "bytes", here), positive_numbers(node, "us", here),
                 non_negative_field(node, "rank_us", here)};
  if (made.bytes.empty() || made.bytes.size() != made.us.size())
    throw UserError(here + ".us: expected one time a size in bytes, found " + std::to_string(made.us.size()) +
                    " of " + std::to_string(made.bytes.size()));
  if (std::adjacent_find(made.bytes.begin(), made.bytes.end(), std::greater_equal<>()) != made.bytes.end())
    throw UserError(here + ".bytes: expected sizes that grow");
  if (!std::is_sorted(made.us.begin(), made.us.end()))
    throw UserError(here + ".us: expected times that do not fall with size");
  return made;
}

nlohmann::json to_json(const SizeTable& table) {
  return {{"bytes", table.bytes}, {"us", table.us}, {"rank_us", table.rank_us}};
}

}  // namespace equipoise
