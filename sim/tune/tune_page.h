// report.html of a search: the ranking, and a drawing of all candidates that were tried.
#pragma once

#include <string>

#include "sim/tune/tune_report.h"

namespace equipoise {

std::string tune_html(const TuneReport& report);

}  // namespace equipoise
