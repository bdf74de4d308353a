// The first output of a search: one screen (sim/report/screen.h) with the first places. `tune_table` has all
// columns of all places.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/tune/tune_report.h"

namespace equipoise {

// What the user typed, for the commands that are proposed, and the columns of the terminal.
struct TuneScreenContext {
  std::string out;                 // the folder of `tune --out`; empty if nothing is written
  std::vector<std::string> again;  // the words of this search
  std::size_t width = 0;
};
std::string tune_screen(const TuneReport& report, const TuneScreenContext& typed);

}  // namespace equipoise
