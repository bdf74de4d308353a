// `equipoise schedule`: one pipeline as a text drawing and numbers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

struct MicroBatch;
struct Schedule;
struct TimedSchedule;

struct ScheduleOptions {
  std::string schedule = "1f1b";
  int stages = 4;
  std::vector<std::int64_t> lengths = {};  // documents with a chunk size, else micro-batches
  std::int64_t chunk_size = 0;             // 0: none
  int keep = 1;
  bool strict_keep = false;
  int virtual_stages = 1;
  bool pairs = false;  // forward and backward of a turn issued together
  double backward_ratio = 2;
  double p2p = 0;  // time of a hop between two ranks
  // A profile's name or file: times in seconds of this model on `tensor` GPUs a stage, not lengths.
  std::string profile = {};
  std::string model = "llama2-7b";
  int tensor = 1;
  MemoryLimit memory = default_memory_limit();
  Format format = Format::table;
  int columns = 100;
  bool color = false;
};

// Draws the schedule and its numbers. Without a profile time = length: a forward of n tokens takes n. Options
// that change nothing here draw a line on `notes`.
void schedule_command(const ScheduleOptions&, std::ostream& out, std::ostream& notes);

// The times in seconds of options.schedule by options.profile, with embedding, head and pipeline hops. Throws
// UserError where model and layout do not fit or the profile does not reach.
TimedSchedule time_by_profile(const ScheduleOptions& options, const Schedule& schedule,
                              std::span<const MicroBatch>);

}  // namespace equipoise
