// A closer look at a row: files of its first steps (timelines and, at op fidelity, critical paths and Chakra
// traces), and for report.html some steps op by op, the memory of every stage and the delay of tokens.
//
// The steps shown are those that say most about a row: the one of median time, the slowest, the fastest, the
// one that needs the most memory. Their number of ops is bounded, so that a page of many rows stays small:
// lanes of a step are taken from both ends (the last to end, the first to end) while there is room.
#pragma once

#include <string>

#include "sim/cost/micro_batch_cost.h"
#include "sim/study/row/study_row.h"
#include "sim/study/run_options.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Simulates the first steps once more, writes what options.details asks for, and looks closer at the chosen
// steps. `result` has its steps, its peak and its plan; `rule` is the one that ran. Under contention, where a
// step is dear, only the steps written are examined. Throws UserError where a file cannot be written.
void add_details(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                 PolicyResult& result);

// Simulates the slowest step once more, op by op and without contention, for options.check_step.
void show_slowest_step(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options,
                       const PolicyResult& result);

// A row's label, or a case's name, as the name of a file or folder.
std::string file_name(const std::string& label);

}  // namespace equipoise
