// What the commands share that run plans for real, on ranks of this machine.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/read/study.h"

namespace equipoise {

struct RankOptions {
  std::string file;              // the study
  std::vector<std::string> set;  // key.path=value
  std::string policy;            // label; all if empty
  int steps = 1;                 // for each plan
  int repetitions = 1;           // how often they are timed
  std::string device = "cpu";
  bool replay = false;  // runs one rank after the other on one device
  std::uint64_t seed = 7;
  MemoryLimit memory = default_memory_limit();  // for all ranks on this machine
  double op_timeout_seconds = 20;  // a rank that computes one op for longer, while others wait, hangs
  std::string out;                 // folder for execution.json, or validation.json, .txt and timelines
  Format format = Format::table;
  bool quiet = false;
};

// The study of such a command, which prints no CSV. A note on `log` names rows that run without an exchange.
Study study_of_ranks(const RankOptions& options, const std::string& command, std::ostream& log);

// Refuses before any rank starts what would fail only after minutes of work, or as a rank that hangs.
void check_real_run(const Study& study, const RankOptions& options, bool reference);

}  // namespace equipoise
