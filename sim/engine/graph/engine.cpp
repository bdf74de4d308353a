#include "sim/engine/graph/engine.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>
#include <thread>

namespace equipoise {
namespace {

constexpr std::size_t kMostNamedInStall = 8;

// Runs everything that is reachable from `sources` and needs nothing else. `start` enters as zeros; `stack`
// has room for every task. Returns false if a time overflowed.
bool run_from(std::span<const TaskId> sources, const TaskGraph& graph, std::span<const Picoseconds> durations,
              TaskId* stack, EngineResult& result, std::span<std::uint32_t> pending) {
  const std::uint32_t* const first = graph.first_successors().data();
  const TaskId* const successors = graph.all_successors().data();
  Picoseconds* const start = result.start.data();
  Picoseconds* const end = result.end.data();
  bool overflow = false;
  for (const TaskId source : sources) {
    std::size_t depth = 0;
    stack[depth++] = source;
    while (depth > 0) {
      const TaskId task = stack[--depth];
      Picoseconds done = 0;
      overflow |= __builtin_add_overflow(start[task], durations[task], &done);
      end[task] = done;
      for (std::uint32_t e = first[task]; e < first[task + 1]; ++e) {
        const TaskId next = successors[e];
        start[next] = std::max(start[next], done);
        if (--pending[next] == 0) stack[depth++] = next;
      }
    }
  }
  return !overflow;
}

// The lowest task of each connected part, by task.
std::vector<TaskId> connected_parts(const TaskGraph& graph) {
  std::vector<TaskId> parent(graph.tasks());
  for (TaskId t = 0; t < parent.size(); ++t) parent[t] = t;
  const auto root = [&](TaskId t) {
    while (parent[t] != t) t = parent[t] = parent[parent[t]];
    return t;
  };
  for (TaskId t = 0; t < parent.size(); ++t)
    for (const TaskId next : graph.successors(t)) {
      const TaskId a = root(t);
      const TaskId b = root(next);
      parent[std::max(a, b)] = std::min(a, b);
    }
  for (TaskId t = 0; t < parent.size(); ++t) parent[t] = root(t);
  return parent;
}

// Sources dealt to threads, whole parts at a time, in order of their lowest task.
std::vector<std::vector<TaskId>> deal_sources(const TaskGraph& graph, int threads) {
  std::vector<std::vector<TaskId>> dealt(static_cast<std::size_t>(threads));
  const std::vector<TaskId> part = threads > 1 ? connected_parts(graph) : std::vector<TaskId>{};
  std::vector<std::uint32_t> number_of_part(part.size());
  std::uint32_t parts = 0;
  for (TaskId t = 0; t < part.size(); ++t)
    if (part[t] == t) number_of_part[t] = parts++;
  for (TaskId t = 0; t < graph.tasks(); ++t) {
    if (graph.predecessor_counts()[t] != 0) continue;
    const std::size_t thread = part.empty() ? 0 : number_of_part[part[t]] % dealt.size();
    dealt[thread].push_back(t);
  }
  return dealt;
}

}  // namespace

std::vector<Picoseconds> effective_durations(const TaskGraph& graph, const EngineOptions& options) {
  std::vector<Picoseconds> durations(graph.durations().begin(), graph.durations().end());
  for (TaskId t = 0; t < durations.size(); ++t) {
    double factor = 1;
    if (!options.speed_of_rank.empty() && graph.kind(t) == TaskKind::compute && graph.rank(t) >= 0) {
      assert(static_cast<std::size_t>(graph.rank(t)) < options.speed_of_rank.size());
      factor /= options.speed_of_rank[static_cast<std::size_t>(graph.rank(t))];
    }
    if (options.jitter.sigma > 0) factor *= options.jitter.factor(t);
    if (!(factor * static_cast<double>(durations[t]) < kLongestSeconds * kPicosecondsPerSecond))
      throw EngineError(graph.describe(t) + ": its duration times " + std::to_string(factor) +
                        " is more than the clock can hold");
    if (factor != 1) durations[t] = scaled(durations[t], factor);
  }
  return durations;
}

std::string describe_stall(const TaskGraph& graph, std::span<const std::uint32_t> pending) {
  // Every task that never ran waits for another that never ran, so walking back must come around.
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
    on_cycle = std::min(on_cycle, t);  // named from its lowest task on
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

EngineResult run(const TaskGraph& graph, const EngineOptions& options) {
  const std::size_t tasks = graph.tasks();
  std::vector<Picoseconds> own;
  std::span<const Picoseconds> durations = graph.durations();
  if (options.jitter.sigma > 0 || !options.speed_of_rank.empty()) {
    own = effective_durations(graph, options);
    durations = own;
  }

  EngineResult result;
  result.start.assign(tasks, Picoseconds{});
  result.end.assign(tasks, Picoseconds{});
  std::vector<std::uint32_t> pending(graph.predecessor_counts().begin(), graph.predecessor_counts().end());
  const std::vector<std::vector<TaskId>> sources = deal_sources(graph, std::max(1, options.threads));
  std::vector<char> in_range(sources.size(), 1);
  const auto work = [&](std::size_t thread) {
    if (sources[thread].empty()) return;
    // As large as could ever be needed and not initialised: only the depth that is reached takes memory.
    const auto stack = std::make_unique_for_overwrite<TaskId[]>(tasks);
    in_range[thread] = run_from(sources[thread], graph, durations, stack.get(), result, pending) ? 1 : 0;
  };
  std::vector<std::thread> helpers;
  for (std::size_t thread = 1; thread < sources.size(); ++thread) helpers.emplace_back(work, thread);
  work(0);
  for (std::thread& helper : helpers) helper.join();
  if (std::find(in_range.begin(), in_range.end(), 0) != in_range.end())
    throw EngineError("simulated time passed what the clock can hold (106 days)");

  for (TaskId t = 0; t < tasks; ++t)
    if (pending[t] != 0) throw EngineError(describe_stall(graph, pending));
  for (const Picoseconds end : result.end) result.makespan = std::max(result.makespan, end);
  return result;
}

}  // namespace equipoise
