// The first output of `study`: one screen of at most 110 columns and, for up to ten rows, 25 lines. A
// narrower screen has the same text on more lines. It has the columns that decide, then the findings, each
// with a label. `study_table` has all columns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

inline constexpr std::size_t kWarningsShown = 2;

// A note on a study, its rows or their comparison. Those that may change a decision come first, the most
// important at the top; the others are only counted.
struct Warning {
  std::string kind;  // the note's kind; empty for the reason why a row did not run
  std::string text;
  std::string advice;  // the end of the text that says what to do; may be empty
};
struct Noted {
  std::vector<Warning> warnings;
  std::size_t others = 0;
};
Noted noted_of(const Study& study, const StudyResult& result);

inline constexpr std::size_t kScreenWidth = 110, kLeastScreenWidth = 80;

// What the user typed, for the commands that are proposed, and the columns of the terminal.
struct ScreenContext {
  std::string out;               // the folder of `study --out`; empty if nothing is written
  std::vector<std::string> set;  // each as key=value
  std::vector<std::string> job;  // --model and similar options, if there is no study file
  std::size_t width = kScreenWidth;  // from kLeastScreenWidth
};
std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed);

}  // namespace equipoise
