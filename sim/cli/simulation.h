// What the commands have in common that simulate a study on all cores.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/study/run_study.h"

namespace equipoise {

// What the commands take that simulate on all cores.
struct SimulationOptions {
  int jobs = 0;              // threads; 0: all cores
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
  bool quiet = false;
};

// The study of a command that runs it. Throws UserError where its layout is impossible.
Study possible_study(const std::string& file, const std::vector<std::string>& set);
// The study run on the threads and within the memory of the options.
StudyResult run_within(const SimulationOptions& options, const Study& study, const std::atomic<bool>& stop,
                       bool keep_plans = false);

}  // namespace equipoise
