// Lanes of a barrier group use the GPUs of the group before: they begin when all of its lanes have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/step/stage_loop.h"

namespace equipoise {

// A group without lanes holds nobody up.
class BarrierGroups {
 public:
  // `running`: how many ranks (or lanes) each group has, by rising group.
  explicit BarrierGroups(std::vector<std::uint32_t> running)
      : running_(std::move(running)), end_(running_.size(), 0), begin_(running_.size(), kUnknown) {
    if (!begin_.empty()) begin_.front() = 0;
  }
  [[nodiscard]] std::size_t size() const { return begin_.size(); }
  // The time is kUnknown until the group before has ended.
  [[nodiscard]] Picoseconds begin_of(std::size_t group) const { return begin_[group]; }
  // `many` members have ended, the last of them at `when`. Returns whether the next group begins now.
  bool leave(std::size_t group, Picoseconds when, std::uint32_t many = 1) {
    end_[group] = std::max(end_[group], when);
    running_[group] -= many;
    if (running_[group] > 0 || group + 1 == begin_.size()) return false;
    begin_[group + 1] = std::max(begin_[group], end_[group]);
    return true;
  }

 private:
  std::vector<std::uint32_t> running_;
  std::vector<Picoseconds> end_, begin_;
};

// Runs lanes group by group: run(group, begin) says when the last of a group's lanes ends. Lanes are those of
// a plan or of a program.
template <class Lanes, class Run>
Picoseconds run_barrier_groups(const Lanes& lanes, const Run& run) {
  std::vector<int> groups;
  for (const auto& lane : lanes) groups.push_back(lane.barrier_group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  BarrierGroups barriers(std::vector<std::uint32_t>(groups.size(), 1));
  Picoseconds end = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    end = std::max(barriers.begin_of(g), run(groups[g], barriers.begin_of(g)));
    barriers.leave(g, end);
  }
  return end;
}

}  // namespace equipoise
