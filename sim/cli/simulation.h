// What the commands share that simulate a study on all cores.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/run_study.h"

namespace equipoise {

// The options of commands that simulate on all cores.
struct SimulationOptions {
  int jobs = all_cores();  // threads
  MemoryLimit memory = default_memory_limit();
  Format format = Format::table;
  bool quiet = false;
  bool wide = false;  // tables have all columns, in commands whose first output is a screen
};

// The study that a command runs. Throws UserError if its layout is impossible.
Study possible_study(const std::string& file, const std::vector<std::string>& set);
StudyResult run_within(const SimulationOptions& options, const Study& study, const std::atomic<bool>& stop,
                       bool keep_plans = false);

}  // namespace equipoise
