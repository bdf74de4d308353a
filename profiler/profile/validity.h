// The two ranges of a fitted table: what the samples covered, and how far its physical form is trusted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace equipoise {

struct Interval {
  double low = 0;
  double high = 0;
  [[nodiscard]] bool holds(double value) const { return value >= low && value <= high; }
};

struct Validity {
  Interval samples;  // of the values that the fit saw; holds nothing if the table is derived
  Interval allowed;  // outside: refused
  bool derived = false;
};

// Reads `table.ranges.<dimension>` = {"samples": [low, high], "allowed": [low, high]}. A table of provenance
// `derived` has no samples: those that its file states are of the table it was derived from.
Validity validity_of(const nlohmann::json& table, const std::string& dimension, const std::string& where);

// One line for the user: which profile, which op, what was asked for, what is allowed.
[[noreturn]] void refuse_out_of_range(const std::string& profile, const std::string& op,
                                      const std::string& dimension, double found, const Interval& allowed);

}  // namespace equipoise
