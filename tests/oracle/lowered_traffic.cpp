#include "tests/oracle/lowered_traffic.h"

#include <map>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/network.h"

namespace equipoise {
namespace {

class Mapper {
 public:
  Mapper(const OpProgram& program, const RankGrid& grid, const Fabric& fabric)
      : program_(program), fabric_(fabric) {
    // GPUs of each (stage, TP coordinate), by replica.
    for (int s = 0; s < program.stages; ++s)
      for (int t = 0; t < program.tensor; ++t)
        replicas_.push_back(grid.data_context_group(grid.gpu({t, 0, 0, s})));
  }

  [[nodiscard]] int gpu(int stage, int replica, int tensor) const {
    return replicas_[at(stage) * at(program_.tensor) + at(tensor)][at(replica)];
  }
  [[nodiscard]] int gpu_of(const LoweredTask& task, int stage) const {
    const OpLane& lane = program_.lanes[at(task.lane)];
    return gpu(stage, lane.first_replica + task.rank / program_.tensor, task.rank % program_.tensor);
  }

  // The GPUs that an op's data goes round, in order; one: no traffic.
  [[nodiscard]] std::vector<int> ring_of(const LoweredTask& task) const {
    if (task.lane < 0) {  // gradient bucket or parameter gather: all replicas
      std::vector<int> all;
      for (int r = 0; r < program_.replicas; ++r) all.push_back(gpu(task.stage, r, task.rank));
      return all;
    }
    const OpLane& lane = program_.lanes[at(task.lane)];
    const int c = task.rank / program_.tensor;
    const int t = task.rank % program_.tensor;
    std::vector<int> members;
    if (task.sync == SyncGroup::context)
      for (int i = 0; i < lane.context; ++i) members.push_back(gpu(task.stage, lane.first_replica + i, t));
    else if (task.sync == SyncGroup::tensor)
      for (int i = 0; i < program_.tensor; ++i) members.push_back(gpu(task.stage, lane.first_replica + c, i));
    if (!spans_lanes(task.sync)) return members;
    const int group = lane.expert_group[at(c)];
    for (const OpLane& other : program_.lanes)
      for (int i = 0; other.lockstep == lane.lockstep && i < other.context; ++i)
        if (task.sync == SyncGroup::replicas || other.expert_group[at(i)] == group)
          for (int tensor = 0; tensor < program_.tensor; ++tensor)
            if (tensor == t || (task.sync == SyncGroup::expert &&
                                expert_coordinate(lane, at(tensor)) == expert_coordinate(lane, at(t))))
              members.push_back(gpu(task.stage, other.first_replica + i, tensor));
    return members;
  }

  const std::vector<LinkUse>& ring(const std::vector<int>& members) {
    auto [it, is_new] = rings_.try_emplace(members);
    if (is_new) it->second = fabric_.ring(members);
    return it->second;
  }

 private:
  const OpProgram& program_;
  const Fabric& fabric_;
  std::vector<std::vector<int>> replicas_;
  std::map<std::vector<int>, std::vector<LinkUse>> rings_;
};

}  // namespace

LinkTraffic traffic_of(const LoweredProgram& lowered, const OpProgram& program, const RankGrid& grid,
                       const Fabric& fabric) {
  LinkTraffic traffic(fabric.capacities());
  Mapper mapper(program, grid, fabric);
  for (TaskId id = 0; id < lowered.origin.size(); ++id) {
    const LoweredTask& task = lowered.origin[id];
    if (task.marker || task.stream == Stream::compute) continue;
    if (task.stream == Stream::pp) {
      const int from = mapper.gpu_of(task, task.from_stage);
      const int to = mapper.gpu_of(task, task.stage);
      if (from != to && task.bytes > 0) traffic.add(id, fabric.uses(fabric.route(from, to)), task.bytes);
      continue;
    }
    const std::vector<int> members = mapper.ring_of(task);
    if (members.size() < 2) continue;
    const std::vector<LinkUse>& links = mapper.ring(members);
    const double bytes = moved_bytes(task.name, task.bytes, members.size());
    if (bytes > 0) traffic.add(id, links, bytes);
  }
  return traffic;
}

}  // namespace equipoise
