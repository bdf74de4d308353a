// A comparison of simulated with measured times as JSON (equipoise.validation/1), as text tables and as a
// page.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/validation/figures.h"

namespace equipoise {

nlohmann::ordered_json validation_json(const Validation& validation, const ValidationFigures& figures);

// Tables of steps, op kinds and the worst micro-batches, the ranking, and what passed. Tables that are wider
// than `width` lack columns, which the JSON and the page have.
std::string validation_text(const Validation& validation, const ValidationFigures& figures,
                            std::size_t width = std::string::npos);

// report.html: a page that draws the JSON in a browser.
std::string validation_html(const Validation& validation, const ValidationFigures& figures);

}  // namespace equipoise
