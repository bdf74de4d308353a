#include "sim/engine/graph/task_graph.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

namespace equipoise {
namespace {

constexpr std::size_t kMostTasks = 0xfffffff0U;  // ids are 32 bits

std::string channel(int from, int to, std::uint64_t tag) {
  return "rank " + std::to_string(from) + " to rank " + std::to_string(to) + ", tag " + std::to_string(tag);
}

}  // namespace

std::string TaskGraph::describe(TaskId task) const {
  if (describe_) return describe_(task);
  std::string text = "task " + std::to_string(task);
  if (ranks_[task] >= 0) text += " of rank " + std::to_string(ranks_[task]);
  return text;
}

void TaskGraphBuilder::reserve(std::size_t tasks, std::size_t edges) {
  graph_.durations_.reserve(tasks);
  graph_.kinds_.reserve(tasks);
  graph_.ranks_.reserve(tasks);
  edges_.reserve(edges);
}

StreamId TaskGraphBuilder::add_stream(int rank) {
  graph_.rank_of_stream_.push_back(rank);
  last_of_stream_.push_back(kNoTask);
  return static_cast<StreamId>(last_of_stream_.size() - 1);
}

TaskId TaskGraphBuilder::new_task(Picoseconds duration, TaskKind kind, int rank) {
  if (duration < 0) throw EngineError("a task's duration is negative");
  if (graph_.durations_.size() >= kMostTasks) throw EngineError("more than 2^32 - 16 tasks in one graph");
  graph_.durations_.push_back(duration);
  graph_.kinds_.push_back(kind);
  graph_.ranks_.push_back(rank);
  return static_cast<TaskId>(graph_.durations_.size() - 1);
}

void TaskGraphBuilder::append_to_stream(StreamId stream, TaskId task) {
  assert(stream < last_of_stream_.size());
  if (last_of_stream_[stream] != kNoTask) edges_.push_back({last_of_stream_[stream], task});
  last_of_stream_[stream] = task;
}

TaskId TaskGraphBuilder::add_task(StreamId stream, Picoseconds duration, TaskKind kind) {
  const TaskId task = new_task(duration, kind, graph_.rank_of_stream_[stream]);
  append_to_stream(stream, task);
  return task;
}

TaskId TaskGraphBuilder::add_collective(std::span<const StreamId> members, Picoseconds duration) {
  assert(!members.empty());
  const TaskId task = new_task(duration, TaskKind::collective, graph_.rank_of_stream_[members.front()]);
  for (const StreamId stream : members) append_to_stream(stream, task);
  return task;
}

TaskId TaskGraphBuilder::add_transfer(TaskId after, TaskId before, Picoseconds duration) {
  const TaskId task = new_task(duration, TaskKind::transfer, -1);
  edges_.push_back({after, task});
  edges_.push_back({task, before});
  return task;
}

void TaskGraphBuilder::add_dependency(TaskId before, TaskId after) {
  edges_.push_back({before, after});
}

void TaskGraphBuilder::send(TaskId after, int from_rank, int to_rank, std::uint64_t tag, std::int64_t bytes,
                            Picoseconds duration) {
  sends_.push_back({from_rank, to_rank, tag, bytes, after, duration});
}

void TaskGraphBuilder::receive(TaskId before, int from_rank, int to_rank, std::uint64_t tag,
                               std::int64_t bytes) {
  receives_.push_back({from_rank, to_rank, tag, bytes, before, Picoseconds{}});
}

void TaskGraphBuilder::join_endpoints() {
  const auto key = [](const Endpoint& e) { return std::tie(e.from, e.to, e.tag); };
  const auto by_key = [&](const Endpoint& a, const Endpoint& b) { return key(a) < key(b); };
  for (std::vector<Endpoint>* side : {&sends_, &receives_}) {
    std::stable_sort(side->begin(), side->end(), by_key);
    const auto twice = std::adjacent_find(
        side->begin(), side->end(), [&](const Endpoint& a, const Endpoint& b) { return key(a) == key(b); });
    if (twice != side->end())
      throw EngineError(std::string(side == &sends_ ? "two sends" : "two receives") +
                        " on one channel: " + channel(twice->from, twice->to, twice->tag));
  }
  std::size_t r = 0;
  for (const Endpoint& s : sends_) {
    if (r < receives_.size() && by_key(receives_[r], s)) break;  // reported below
    if (r == receives_.size() || by_key(s, receives_[r]))
      throw EngineError("send without its receive: " + channel(s.from, s.to, s.tag) + ", issued by " +
                        graph_.describe(s.task));
    if (receives_[r].bytes != s.bytes)
      throw EngineError("size mismatch: " + channel(s.from, s.to, s.tag) + ": sends " +
                        std::to_string(s.bytes) + " bytes, receives " + std::to_string(receives_[r].bytes));
    add_transfer(s.task, receives_[r].task, s.duration);
    ++r;
  }
  if (r < receives_.size())
    throw EngineError(
        "receive without its send: " + channel(receives_[r].from, receives_[r].to, receives_[r].tag) +
        ", awaited by " + graph_.describe(receives_[r].task));
  sends_.clear();
  receives_.clear();
}

TaskGraph TaskGraphBuilder::build() {
  join_endpoints();
  const std::size_t tasks = graph_.durations_.size();
  for (const Edge& e : edges_)
    if (e.before >= tasks || e.after >= tasks)
      throw EngineError("a dependency names a task that does not exist: " + std::to_string(e.before) +
                        " -> " + std::to_string(e.after));
  // Counting sort of the edges by their origin; stable, so successors keep the order of insertion.
  std::vector<std::uint32_t>& first = graph_.first_successor_;
  first.assign(tasks + 1, 0);
  graph_.predecessor_counts_.assign(tasks, 0);
  for (const Edge& e : edges_) {
    ++first[e.before + 1];
    ++graph_.predecessor_counts_[e.after];
  }
  for (std::size_t t = 0; t < tasks; ++t) first[t + 1] += first[t];
  graph_.successors_.resize(edges_.size());
  for (const Edge& e : edges_) graph_.successors_[first[e.before]++] = e.after;
  for (std::size_t t = tasks; t > 0; --t) first[t] = first[t - 1];  // each was advanced to the next row
  first[0] = 0;
  edges_ = {};
  last_of_stream_ = {};
  TaskGraph done = std::move(graph_);
  graph_ = {};
  return done;
}

}  // namespace equipoise
