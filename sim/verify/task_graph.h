// Tasks with integer durations, the streams that issue them, and who waits for whom: the plain form of a
// step. Its longest path (longest_path.h) gives every task's times.
//
// A stream (one GPU's compute queue, or its queue for one communication axis) runs its tasks one at a time in
// the order they were added. A task may sit on
//   one stream    a kernel, or a communication that only this rank waits for;
//   many streams  a collective: it starts when its last member stream reaches it and holds them all;
//   no stream     a transfer between two ranks: it starts when its data is there and holds nobody.
// A task also waits for its explicit dependencies. All of these are edges of one graph: a stream is a chain,
// and a collective is a node that several chains share.
//
// Storage is a structure of flat arrays indexed by TaskId, successors in compressed rows; about 30 bytes a
// task and 4 an edge, plus 8 an edge while building. The longest path stays in cache where
// tasks that wait for each other have close numbers (lane by lane).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/clock.h"

namespace equipoise {

using TaskId = std::uint32_t;
using StreamId = std::uint32_t;

inline constexpr TaskId kNoTask = 0xffffffffU;

class TaskGraph {
 public:
  [[nodiscard]] std::size_t tasks() const { return durations_.size(); }
  [[nodiscard]] std::span<const Picoseconds> durations() const { return durations_; }
  // Tasks that wait for this one, in the order the edges were added.
  [[nodiscard]] std::span<const TaskId> successors(TaskId task) const {
    return {successors_.data() + first_successor_[task], successors_.data() + first_successor_[task + 1]};
  }
  [[nodiscard]] std::span<const std::uint32_t> first_successors() const { return first_successor_; }
  [[nodiscard]] std::span<const TaskId> all_successors() const { return successors_; }
  [[nodiscard]] std::span<const std::uint32_t> predecessor_counts() const { return predecessor_counts_; }
  // For error messages; "task 7" if the builder got no names.
  [[nodiscard]] std::string describe(TaskId task) const;

 private:
  friend class TaskGraphBuilder;
  std::vector<Picoseconds> durations_;
  std::vector<std::int32_t> ranks_;  // that issued it (a collective: its first member; a transfer: -1)
  std::vector<std::uint32_t> first_successor_;
  std::vector<TaskId> successors_;
  std::vector<std::uint32_t> predecessor_counts_;
  std::vector<std::int32_t> rank_of_stream_;
  std::function<std::string(TaskId)> describe_;
};

class TaskGraphBuilder {
 public:
  void reserve(std::size_t tasks, std::size_t edges);
  StreamId add_stream(int rank);
  TaskId add_task(StreamId stream, Picoseconds duration);
  // Adds a rendezvous of two or more streams.
  TaskId add_collective(std::span<const StreamId> members, Picoseconds duration);
  // Adds a transfer that starts when `after` has ended; `before` waits for it.
  TaskId add_transfer(TaskId after, TaskId before, Picoseconds duration);
  void add_dependency(TaskId before, TaskId after);

  void name_tasks(std::function<std::string(TaskId)> describe) { graph_.describe_ = std::move(describe); }

  // The builder is empty afterwards. Throws EngineError where a dependency names a task that does not exist.
  TaskGraph build();

 private:
  struct Edge {
    TaskId before;
    TaskId after;
  };
  TaskId new_task(Picoseconds duration, int rank);
  void append_to_stream(StreamId stream, TaskId task);

  TaskGraph graph_;
  std::vector<TaskId> last_of_stream_;
  std::vector<Edge> edges_;
};

}  // namespace equipoise
