// The first output of `study`: one screen, at most 110 columns and, for up to ten rows, 25 lines. It has the
// columns that decide, then what was found, a word before each line. `study_table` has all columns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

inline constexpr std::size_t kWarningsShown = 2;

// What is noted of a study, its rows and how they compare: what may change a decision, most important first,
// and the number of all others.
struct Warning {
  std::string kind;  // of the note; empty: why a row did not run
  std::string text;
};
struct Noted {
  std::vector<Warning> warnings;
  std::size_t others = 0;
};
Noted noted_of(const Study& study, const StudyResult& result);

// What the user typed, for the commands that are proposed.
struct ScreenContext {
  std::string out;               // the folder of `study --out`; empty: nothing was written
  std::vector<std::string> set;  // key=value, each
  std::vector<std::string> job;  // --model and its like, where there is no study file
};
std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed);

}  // namespace equipoise
