// A comparison as JSON (equipoise.validation/1), as text tables, and as a plot.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/validation/figures.h"

namespace equipoise {

nlohmann::ordered_json validation_json(const Validation& validation, const ValidationFigures& figures);

// Tables of steps, op kinds and the worst micro-batches, the ranking, and what passed. Ends with a line end.
std::string validation_text(const Validation& validation, const ValidationFigures& figures);

// An SVG image without scripts, fonts or links, for light and dark pages: left each policy's predicted and
// measured step with the measurement's noise, right the error of every op kind in the band of its limit.
std::string validation_plot(const Validation& validation, const ValidationFigures& figures);

}  // namespace equipoise
