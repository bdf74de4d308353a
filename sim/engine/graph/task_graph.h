// What the engine runs: tasks with integer durations, the streams that issue them, and who waits for whom.
//
// A stream (one GPU's compute queue, or its queue for one communication axis) runs its tasks one at a time in
// the order they were added. A task may sit on
//   one stream    a kernel, or a communication that only this rank waits for;
//   many streams  a collective: it starts when its last member stream reaches it and holds them all;
//   no stream     a transfer between two ranks: it starts when its data is there and holds nobody.
// Beyond that a task waits for its explicit dependencies. Everything is an edge in the end: a stream is a
// chain, a collective a node where chains meet.
//
// Storage is a structure of flat arrays indexed by TaskId, successors in compressed rows; about 30 bytes a
// task and 4 an edge, plus 8 an edge while building. Number tasks so that those which meet are near each
// other (lane by lane): the engine then stays in cache.
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

enum class TaskKind : std::uint8_t {
  compute,     // slowed by its rank's speed factor
  collective,  // rendezvous of its streams
  transfer,    // between two ranks
};

// Immutable once built.
class TaskGraph {
 public:
  [[nodiscard]] std::size_t tasks() const { return durations_.size(); }
  [[nodiscard]] std::size_t edges() const { return successors_.size(); }
  [[nodiscard]] std::size_t streams() const { return rank_of_stream_.size(); }
  [[nodiscard]] std::span<const Picoseconds> durations() const { return durations_; }
  [[nodiscard]] TaskKind kind(TaskId task) const { return kinds_[task]; }
  // The rank that issued it (a collective: its first member; a transfer: -1).
  [[nodiscard]] int rank(TaskId task) const { return ranks_[task]; }
  // Tasks that wait for this one, in the order the edges were added.
  [[nodiscard]] std::span<const TaskId> successors(TaskId task) const {
    return {successors_.data() + first_successor_[task], successors_.data() + first_successor_[task + 1]};
  }
  [[nodiscard]] std::span<const std::uint32_t> first_successors() const { return first_successor_; }
  [[nodiscard]] std::span<const TaskId> all_successors() const { return successors_; }
  [[nodiscard]] std::span<const std::uint32_t> predecessor_counts() const { return predecessor_counts_; }
  // For error messages; "task 7" where the builder was given no names.
  [[nodiscard]] std::string describe(TaskId task) const;

 private:
  friend class TaskGraphBuilder;
  std::vector<Picoseconds> durations_;
  std::vector<TaskKind> kinds_;
  std::vector<std::int32_t> ranks_;
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
  TaskId add_task(StreamId stream, Picoseconds duration, TaskKind kind = TaskKind::compute);
  // Rendezvous of two or more streams.
  TaskId add_collective(std::span<const StreamId> members, Picoseconds duration);
  // Starts when `after` has ended; `before` waits for it.
  TaskId add_transfer(TaskId after, TaskId before, Picoseconds duration);
  void add_dependency(TaskId before, TaskId after);

  // A transfer whose two ends are issued by different ranks' programs: build() joins each send with the
  // receive of the same (from, to, tag), and throws EngineError for one without the other, for two of the
  // same tag, and where the sizes differ.
  void send(TaskId after, int from_rank, int to_rank, std::uint64_t tag, std::int64_t bytes,
            Picoseconds duration);
  void receive(TaskId before, int from_rank, int to_rank, std::uint64_t tag, std::int64_t bytes);

  void name_tasks(std::function<std::string(TaskId)> describe) { graph_.describe_ = std::move(describe); }

  // The builder is empty afterwards. Throws EngineError (see send).
  TaskGraph build();

 private:
  struct Edge {
    TaskId before;
    TaskId after;
  };
  struct Endpoint {
    int from = 0;
    int to = 0;
    std::uint64_t tag = 0;
    std::int64_t bytes = 0;
    TaskId task = kNoTask;
    Picoseconds duration{};  // of a send
  };
  TaskId new_task(Picoseconds duration, TaskKind kind, int rank);
  void append_to_stream(StreamId stream, TaskId task);
  void join_endpoints();

  TaskGraph graph_;
  std::vector<TaskId> last_of_stream_;
  std::vector<Edge> edges_;
  std::vector<Endpoint> sends_;
  std::vector<Endpoint> receives_;
};

}  // namespace equipoise
