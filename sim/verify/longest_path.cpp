#include "sim/verify/longest_path.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>

namespace equipoise {
namespace {

constexpr std::size_t kMostNamedInStall = 8;

}  // namespace

std::string describe_stall(const TaskGraph& graph, std::span<const std::uint32_t> pending) {
  // Every task that never ran waits for another that never ran, so walking back must end in a cycle.
  std::vector<TaskId> waits_for(graph.tasks(), kNoTask);
  TaskId first = kNoTask;
  std::size_t count = 0;
  for (TaskId t = 0; t < graph.tasks(); ++t) {
    if (pending[t] == 0) continue;
    ++count;
    if (first == kNoTask) first = t;
    for (const TaskId next : graph.successors(t))
      if (waits_for[next] == kNoTask) waits_for[next] = t;
  }
  assert(first != kNoTask);
  TaskId on_cycle = first;
  for (std::size_t hop = 0; hop < graph.tasks(); ++hop) on_cycle = waits_for[on_cycle];
  for (TaskId t = waits_for[on_cycle], end = on_cycle; t != end; t = waits_for[t])
    on_cycle = std::min(on_cycle, t);  // the cycle is named from its lowest task
  std::string text = std::to_string(count) + " of " + std::to_string(graph.tasks()) +
                     " tasks never ran: " + graph.describe(on_cycle);
  TaskId t = on_cycle;
  for (std::size_t named = 0; named < kMostNamedInStall; ++named) {
    t = waits_for[t];
    text += (named == 0 ? " waits for " : ", which waits for ") + graph.describe(t);
    if (t == on_cycle) return text;
  }
  return text + ", ...";
}

EngineResult run(const TaskGraph& graph) {
  const std::size_t tasks = graph.tasks();
  const std::span<const Picoseconds> durations = graph.durations();
  const std::uint32_t* const first = graph.first_successors().data();
  const TaskId* const successors = graph.all_successors().data();
  EngineResult result;
  result.start.assign(tasks, Picoseconds{});
  result.end.assign(tasks, Picoseconds{});
  Picoseconds* const start = result.start.data();
  std::vector<std::uint32_t> pending(graph.predecessor_counts().begin(), graph.predecessor_counts().end());
  // Uninitialised memory of the largest possible size: only the depth that is reached takes memory.
  const auto stack = std::make_unique_for_overwrite<TaskId[]>(tasks);
  bool overflow = false;
  for (TaskId source = 0; source < tasks; ++source) {
    if (graph.predecessor_counts()[source] != 0) continue;
    std::size_t depth = 0;
    stack[depth++] = source;
    while (depth > 0) {
      const TaskId task = stack[--depth];
      Picoseconds done = 0;
      overflow |= __builtin_add_overflow(start[task], durations[task], &done);
      result.end[task] = done;
      for (std::uint32_t e = first[task]; e < first[task + 1]; ++e) {
        const TaskId next = successors[e];
        start[next] = std::max(start[next], done);
        if (--pending[next] == 0) stack[depth++] = next;
      }
    }
  }
  if (overflow) throw EngineError("simulated time passed what the clock can hold (106 days)");
  for (TaskId t = 0; t < tasks; ++t)
    if (pending[t] != 0) throw EngineError(describe_stall(graph, pending));
  for (const Picoseconds end : result.end) result.makespan = std::max(result.makespan, end);
  return result;
}

}  // namespace equipoise
