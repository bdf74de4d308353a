// report.html of `tune` and `validate`: their JSON as pages for a browser.
#pragma once

#include <string>

#include "sim/tune/outcome.h"
#include "sim/validation/validation_report.h"

namespace equipoise {

std::string tune_html(const TuneReport& report);
std::string validation_html(const Validation& validation, const ValidationFigures& figures);

}  // namespace equipoise
