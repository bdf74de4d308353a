// The first output of a sweep: one screen (screen.h). It has a line for each case and policy. Where there is
// no room for these it has a line for each case, with the fastest row that its framework runs in the order of
// the data, and of many cases the fastest ones.
// SweepTable (study_table.h) has all of them with all columns.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/study_screen.h"
#include "sim/report/sweep_page.h"

namespace equipoise {

// What the screen shows of one case. It is only text, so that a sweep does not keep results.
struct ShownCase {
  std::vector<std::string> assignments;        // key=value, of the swept keys
  std::vector<std::string> head;               // of head_parts
  std::vector<std::vector<std::string>> rows;  // of screen_cells
  std::size_t first = 0;                       // the first row of its standing
  double rate = 0;                             // its tokens/s/GPU; 0 if no row ran
  bool runs = false;                           // whether the framework runs it
  std::int64_t gpus = 0;
  std::vector<Warning> warnings;
  std::size_t others = 0;  // other notes
};
ShownCase shown_case(const std::vector<std::string>& assignments, const Study& study,
                     const StudyResult& result);
nlohmann::json to_json(const ShownCase& shown);
ShownCase shown_case(const nlohmann::json& node);  // throws nlohmann::json::exception if it is none

// That cases have different numbers of GPUs, then of each kind of warning the first one, with the case that
// has it or the number of those.
std::vector<Warning> warnings_of_cases(const std::vector<ShownCase>& cases, const SweepPage& page);

// `file`: the study's, or empty where no command can be proposed.
std::string sweep_screen(const std::vector<ShownCase>& cases, const SweepPage& page, const std::string& file,
                         const ScreenContext& typed);

}  // namespace equipoise
