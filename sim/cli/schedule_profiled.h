// A schedule timed by a profile instead of by length: the stage engine runs it as the one lane of a step.
#pragma once

#include <span>
#include <string>

#include "policies/plan.h"
#include "sim/schedule/timing.h"

namespace equipoise {

struct ProfiledRun {
  std::string profile;  // shipped name or file
  std::string model = "llama2-7b";
  int tensor = 1;
  int keep = 1;
  bool strict_keep = false;
  bool pairs = false;
};

// Times in seconds; embedding, head and pipeline hops included. `name` is the schedule that `schedule` was
// made by. Throws UserError where model and layout do not fit or the profile does not reach.
TimedSchedule time_by_profile(const ProfiledRun&, std::string_view name, const Schedule& schedule,
                              std::span<const MicroBatch>);

}  // namespace equipoise
