#include "profiler/profile/validity.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

Interval interval_of(const nlohmann::json& range, const std::string& key, const std::string& where) {
  const auto it = range.find(key);
  const bool pair = it != range.end() && it->is_array() && it->size() == 2 && it->at(0).is_number() &&
                    it->at(1).is_number() && it->at(0).get<double>() <= it->at(1).get<double>();
  if (!pair)
    throw UserError(where + "." + key + ": expected [low, high] with low <= high, found " +
                    (it == range.end() ? "nothing" : shown_json(*it)));
  return {it->at(0).get<double>(), it->at(1).get<double>()};
}

}  // namespace

Validity validity_of(const nlohmann::json& table, const std::string& dimension, const std::string& where) {
  const nlohmann::json& ranges = object_field(table, "ranges", where);
  const std::string here = where + ".ranges." + dimension;
  const nlohmann::json& range = object_field(ranges, dimension, where + ".ranges");
  Validity validity{interval_of(range, "samples", here), interval_of(range, "allowed", here)};
  const auto provenance = table.find("provenance");
  validity.derived = provenance != table.end() && provenance->is_object() && provenance->contains("kind") &&
                     provenance->at("kind") == "derived";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (validity.derived) validity.samples = {kInfinity, -kInfinity};
  return validity;
}

void refuse_out_of_range(const std::string& profile, const std::string& op, const std::string& dimension,
                         double found, const Interval& allowed) {
  throw UserError("profile " + profile + ": " + op + ": " + dimension + " = " + short_number(found) +
                  " is outside the range it is valid for, " + short_number(allowed.low) + " to " +
                  short_number(allowed.high));
}

}  // namespace equipoise
