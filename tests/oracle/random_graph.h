// Random task graphs for the engine's property tests: several ranks with two streams each, kernels,
// collectives over random members, transfers and cross-stream dependencies, never a cycle.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/base/random.h"
#include "sim/verify/task_graph.h"

namespace equipoise {

// With `scale` all durations are multiplied.
inline TaskGraph random_graph(std::uint64_t seed, int tasks, std::int64_t scale = 1) {
  TaskGraphBuilder builder;
  SplitMix64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random.next() % n); };
  const int ranks = static_cast<int>(below(6) + 1);
  std::vector<StreamId> streams;
  for (int r = 0; r < ranks; ++r)
    for (int s = 0; s < 2; ++s) streams.push_back(builder.add_stream(r));
  std::vector<TaskId> made;
  for (int i = 0; i < tasks; ++i) {
    const Picoseconds duration{static_cast<std::int64_t>(random.next() % 1000) * scale};
    const std::size_t what = below(10);
    if (what < 6) {
      made.push_back(builder.add_task(streams[below(streams.size())], duration));
    } else if (what < 8) {
      std::vector<StreamId> members = streams;
      shuffle(members, random);
      members.resize(below(members.size()) + 1);
      made.push_back(builder.add_collective(members, duration));
    } else if (!made.empty()) {
      // A transfer to a task that is issued only now: edges run from older to newer tasks.
      const TaskId from = made[below(made.size())];
      const TaskId to = builder.add_task(streams[below(streams.size())], duration);
      builder.add_transfer(from, to, Picoseconds{static_cast<std::int64_t>(random.next() % 100) * scale});
      made.push_back(to);
    }
    if (made.size() > 1 && below(3) == 0) {
      const std::size_t later = made.size() - 1;
      builder.add_dependency(made[below(later)], made[later]);
    }
  }
  return builder.build();
}

}  // namespace equipoise
