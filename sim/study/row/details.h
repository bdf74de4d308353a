// What can be looked at of a row: files of its first steps (timelines and, at op fidelity, critical paths and
// Chakra traces), and for report.html a closer look at a few steps op by op, at what every stage holds and at
// how long tokens wait.
//
// The steps looked at are those that say most about a row: the one of median time, the slowest, the fastest,
// the one that holds the most memory. What is kept is bounded, so that a page of many rows stays small: lanes
// of a step are taken from both ends (the last to end, the first to end) while there is room.
#pragma once

#include <string>

#include "sim/study/row/row.h"
#include "sim/study/run_options.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Simulates the first steps once more, writes what options.details asks for, and looks closer at the chosen
// steps. `result` has its steps, its peak and its plan; `rule` is the one that ran. Under contention, where a
// step is dear, only the steps written are looked at. Throws UserError where a file cannot be written.
void add_details(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                 PolicyResult& result);

// A label as the name of a file.
std::string file_name(const std::string& label);

}  // namespace equipoise
