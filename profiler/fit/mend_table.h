// Moves the parameters of one table: the problem that mend.cpp states for every kind, solved once.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/fit/table_fits.h"

namespace equipoise {

// A factor that several parameters share.
struct SharedFactor {
  std::string_view name;
  double trust = 1;  // standard deviation of its logarithm from one machine to the next
};

struct MovedParameter {
  std::string_view path;  // JSON pointer below "parameters"
  double trust = 1;       // of its own factor
  int shared = -1;        // which of the shared factors moves it, too
};

struct MovedForm {
  std::vector<SharedFactor> shared;
  std::vector<MovedParameter> parameters;
};

// Seconds of sample i by a table.
using Predictor = std::function<double(std::size_t sample)>;

struct TableSamples {
  std::vector<std::vector<double>> shapes;
  SampleTimes times;
  std::vector<ErrorGroup> groups{{"all", {}}};
  nlohmann::json ranges;
};

// The table with moved parameters, its ranges, errors and `base_error`; provenance is the caller's.
nlohmann::json mended_table(const nlohmann::json& base, const MovedForm& form, const TableSamples& samples,
                            const std::function<Predictor(const nlohmann::json& table)>& by_table);

}  // namespace equipoise
