// The first output of `study`: one screen (screen.h), for up to ten rows. It has the columns that decide,
// then the findings, each with a label. `study_table` has all columns.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/saved_result.h"
#include "sim/report/screen.h"
#include "sim/study/study_result.h"

namespace equipoise {

// What is said of a result. Warnings may change a decision, the most important first; a screen counts others.
struct Noted {
  std::vector<Warning> warnings;
  std::vector<std::string> others;
};
// `notes` has those on the whole study (notes_of); the rows have theirs.
Noted noted_of(Notes notes, const StudyResult& result);

// The parts of the screen's first line; with `all_axes` it has axes of degree 1, too.
std::vector<std::string> head_parts(const Study& study, const StudyResult& result, bool all_axes);

// What the user typed, for the commands that are proposed, and the columns of the terminal.
struct ScreenContext {
  std::string out = {};               // the folder of `study --out`; empty if nothing is written
  std::vector<std::string> set = {};  // each as key=value
  std::vector<std::string> job = {};  // --model and similar options, if there is no study file
  std::size_t width = kScreenWidth;   // from kLeastScreenWidth
  bool is_program = true;             // else the Python module, where nothing is typed
};
std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed);
// Of a saved result: which row is fastest, or that none runs. Without steps.csv nothing is said of rows that
// run, since intervals are unknown, and so are ties.
std::optional<Note> finding_of(const SavedResult& saved);
std::string saved_screen(const SavedResult& saved, std::size_t width);

}  // namespace equipoise
