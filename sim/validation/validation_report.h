// A comparison as JSON (equipoise.validation/1), as text tables, as a plot and as a page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/execution/equivalence.h"
#include "sim/validation/figures.h"
#include "sim/validation/real_run.h"

namespace equipoise {

nlohmann::ordered_json validation_json(const Validation& validation, const ValidationFigures& figures);

// Tables of steps, op kinds and the worst micro-batches, the ranking, and what passed. Ends with a line end.
std::string validation_text(const Validation& validation, const ValidationFigures& figures);

// An SVG image without scripts, fonts or links, for light and dark pages: left each policy's predicted and
// measured step with the measurement's noise, right the error of every op kind in the band of its limit.
std::string validation_plot(const Validation& validation, const ValidationFigures& figures);

// report.html: the JSON as a page for a browser.
std::string validation_html(const Validation& validation, const ValidationFigures& figures);

// --- What `execute` found, as JSON (equipoise.execution/1) and as text.

struct ExecutionRow {
  RealResult result;
  std::vector<execution::LossBias> biases;  // of the first step
};

struct ExecutionReport {
  std::string study, device, ranks;  // `ranks`: what they are and how many
  std::string normalizer;
  bool replay = false;  // measured steps are composed
  std::vector<ExecutionRow> rows;

  [[nodiscard]] bool all_equivalent() const;
};

nlohmann::ordered_json execution_json(const ExecutionReport& report);
std::string execution_text(const ExecutionReport& report);

}  // namespace equipoise
