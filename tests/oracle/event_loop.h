// Runs a task graph in which transfers and collectives share links: a true event loop. Tests
// compare the engine of `--contention` (sim/step/contended_run.h) with it.
//
// A task with traffic moves `bytes` over each of its links (once per hop). Its own pace is bytes / duration;
// where links are full, or slower than that, it gets its max-min fair share of them (FairShare) and
// progresses that much slower. Rates change whenever such a task starts or ends. Where links suffice, every
// task takes exactly its duration, so that the result is that of run().
//
// Order of events: by time; at one time all ends, by task id; each end at once starts what it releases, in
// the order of the graph's edges; when nothing is left to end at that time, rates are shared anew. No two
// events compare equal. O(tasks log tasks + changes x active flows x their links).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/topology/fabric.h"
#include "sim/verify/longest_path.h"

namespace equipoise {

// Which tasks load which links.
class LinkTraffic {
 public:
  explicit LinkTraffic(std::vector<double> link_bytes_per_second)
      : capacities_(std::move(link_bytes_per_second)) {}
  // `bytes`: over one hop. A task may be given once.
  void add(TaskId task, std::span<const LinkUse> links, double bytes);

  struct Flow {
    TaskId task = kNoTask;
    std::uint32_t first = 0, count = 0;  // in uses()
    double bytes = 0;
  };
  [[nodiscard]] std::span<const Flow> flows() const { return flows_; }
  [[nodiscard]] std::span<const LinkUse> uses(const Flow& f) const {
    return std::span(uses_).subspan(f.first, f.count);
  }
  [[nodiscard]] const std::vector<double>& capacities() const { return capacities_; }

 private:
  std::vector<double> capacities_;
  std::vector<Flow> flows_;
  std::vector<LinkUse> uses_;
};

// Throws EngineError as run() does, and for traffic of tasks or links that do not exist or of bytes that are
// no number.
EngineResult run_with_contention(const TaskGraph& graph, const LinkTraffic& traffic);

}  // namespace equipoise
