#include "tests/oracle/lowered_traffic.h"

#include <map>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/network_routes.h"

namespace equipoise {
namespace {

class Mapper {
 public:
  Mapper(const OpProgram& program, const RankGrid& grid, const Fabric& fabric)
      : program_(program), grid_(grid), fabric_(fabric) {
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

  // The same as rings of equal size that go side by side: of a nested form's exchanges those of its inner
  // groups (the all-to-alls), or of the ranks of equal number in all of them.
  [[nodiscard]] std::vector<std::vector<int>> rings_of(const LoweredTask& task) const {
    const std::vector<int> members = ring_of(task);
    const int context = static_cast<int>(members.size());
    const int inner = task.lane >= 0 && task.sync == SyncGroup::context ? grid_.inner_ranks(context) : 1;
    if (inner == 1) return {members};
    const bool inside = task.name == OpName::cp_all_to_all;
    std::vector<std::vector<int>> rings(at(inside ? context / inner : inner));
    for (int c = 0; c < context; ++c) rings[at(inside ? c / inner : c % inner)].push_back(members[at(c)]);
    return rings;
  }

  const std::vector<LinkUse>& links(const std::vector<std::vector<int>>& rings) {
    auto [it, is_new] = links_.try_emplace(rings);
    if (!is_new) return it->second;
    std::map<LinkId, std::int32_t> times;
    for (const std::vector<int>& members : rings)
      for (const LinkUse& use : fabric_.ring(members)) times[use.link] += use.times;
    for (const auto& [link, uses] : times) it->second.push_back({link, uses});
    return it->second;
  }

 private:
  const OpProgram& program_;
  const RankGrid& grid_;
  const Fabric& fabric_;
  std::vector<std::vector<int>> replicas_;
  std::map<std::vector<std::vector<int>>, std::vector<LinkUse>> links_;
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
    const std::vector<std::vector<int>> rings = mapper.rings_of(task);
    const std::size_t members = rings.front().size();
    if (members < 2) continue;
    if (const double bytes = moved_bytes(task.name, task.bytes, members); bytes > 0)
      traffic.add(id, mapper.links(rings), bytes);
  }
  return traffic;
}

}  // namespace equipoise
