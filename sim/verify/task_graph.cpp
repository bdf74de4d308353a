#include "sim/verify/task_graph.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace equipoise {
namespace {

constexpr std::size_t kMostTasks = 0xfffffff0U;  // ids are 32 bits

}  // namespace

std::string TaskGraph::describe(TaskId task) const {
  if (describe_) return describe_(task);
  std::string text = "task " + std::to_string(task);
  if (ranks_[task] >= 0) text += " of rank " + std::to_string(ranks_[task]);
  return text;
}

void TaskGraphBuilder::reserve(std::size_t tasks, std::size_t edges) {
  graph_.durations_.reserve(tasks);
  graph_.ranks_.reserve(tasks);
  edges_.reserve(edges);
}

StreamId TaskGraphBuilder::add_stream(int rank) {
  graph_.rank_of_stream_.push_back(rank);
  last_of_stream_.push_back(kNoTask);
  return static_cast<StreamId>(last_of_stream_.size() - 1);
}

TaskId TaskGraphBuilder::new_task(Picoseconds duration, int rank) {
  if (duration < 0) throw EngineError("a task's duration is negative");
  if (graph_.durations_.size() >= kMostTasks) throw EngineError("more than 2^32 - 16 tasks in one graph");
  graph_.durations_.push_back(duration);
  graph_.ranks_.push_back(rank);
  return static_cast<TaskId>(graph_.durations_.size() - 1);
}

void TaskGraphBuilder::append_to_stream(StreamId stream, TaskId task) {
  assert(stream < last_of_stream_.size());
  if (last_of_stream_[stream] != kNoTask) edges_.push_back({last_of_stream_[stream], task});
  last_of_stream_[stream] = task;
}

TaskId TaskGraphBuilder::add_task(StreamId stream, Picoseconds duration) {
  const TaskId task = new_task(duration, graph_.rank_of_stream_[stream]);
  append_to_stream(stream, task);
  return task;
}

TaskId TaskGraphBuilder::add_collective(std::span<const StreamId> members, Picoseconds duration) {
  assert(!members.empty());
  const TaskId task = new_task(duration, graph_.rank_of_stream_[members.front()]);
  for (const StreamId stream : members) append_to_stream(stream, task);
  return task;
}

TaskId TaskGraphBuilder::add_transfer(TaskId after, TaskId before, Picoseconds duration) {
  const TaskId task = new_task(duration, -1);
  edges_.push_back({after, task});
  edges_.push_back({task, before});
  return task;
}

void TaskGraphBuilder::add_dependency(TaskId before, TaskId after) {
  edges_.push_back({before, after});
}

TaskGraph TaskGraphBuilder::build() {
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
  for (std::size_t t = tasks; t > 0; --t) first[t] = first[t - 1];  // undoes the advance to the next row
  first[0] = 0;
  edges_ = {};
  last_of_stream_ = {};
  TaskGraph done = std::move(graph_);
  graph_ = {};
  return done;
}

}  // namespace equipoise
