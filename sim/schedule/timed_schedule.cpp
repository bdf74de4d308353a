#include "sim/schedule/timed_schedule.h"

#include "policies/base/text.h"

namespace equipoise {

double bubble_ratio(const TimedSchedule& timed) {
  if (timed.makespan <= 0) return 0;
  double useful = 0;
  for (std::size_t s = 0; s < timed.busy.size(); ++s) useful += timed.busy[s] - timed.recompute[s];
  return 1 - useful / (as_double(timed.busy.size()) * timed.makespan);
}

}  // namespace equipoise
