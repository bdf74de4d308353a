// The results of `execute` as JSON (equipoise.execution/1) and as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/execution/equivalence.h"
#include "sim/validation/real_run.h"

namespace equipoise {

struct ExecutionRow {
  RealResult result;
  std::vector<execution::LossBias> biases;  // for the first step
};

struct ExecutionReport {
  std::string study, device, ranks;  // `ranks` says what they are and how many
  std::string normalizer;
  bool replay = false;  // whether measured steps are composed
  std::vector<ExecutionRow> rows;

  [[nodiscard]] bool all_equivalent() const;
};

nlohmann::ordered_json execution_json(const ExecutionReport& report);
std::string execution_text(const ExecutionReport& report);

}  // namespace equipoise
