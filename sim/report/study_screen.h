// The first output of `study`: one screen (screen.h), for up to ten rows. It has the columns that decide,
// then the findings, each with a label. `study_table` has all columns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/report/screen.h"
#include "sim/study/study_result.h"

namespace equipoise {

// The warnings may change a decision, the most important first; the other notes are only counted.
struct Noted {
  std::vector<Warning> warnings;
  std::size_t others = 0;
};
Noted noted_of(const Study& study, const StudyResult& result);

// The parts of the screen's first line; with `all_axes` it has axes of degree 1, too.
std::vector<std::string> head_parts(const Study& study, const StudyResult& result, bool all_axes);

// What the user typed, for the commands that are proposed, and the columns of the terminal.
struct ScreenContext {
  std::string out;               // the folder of `study --out`; empty if nothing is written
  std::vector<std::string> set;  // each as key=value
  std::vector<std::string> job;  // --model and similar options, if there is no study file
  std::size_t width = kScreenWidth;  // from kLeastScreenWidth
};
std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed);

}  // namespace equipoise
