#include "sim/step/lockstep.h"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

#include "policies/base/error.h"

namespace equipoise {
namespace {

// Ops of one class make the same collectives in the same order.
enum OpClass { kForwards, kBackwards, kWeights, kClasses };
OpClass class_of(OpKind kind) {
  return kind == OpKind::B ? kBackwards : kind == OpKind::W ? kWeights : kForwards;
}
constexpr std::array<OpKind, kClasses> kEmptyOp = {OpKind::F, OpKind::B, OpKind::W};

// By data x context rank of a stage, the lowest rank of its expert-parallel group; the same for every stage.
// Experts with less tensor parallelism than the rest have groups with several TP ranks of a replica, which
// arrive together. Replicas that any of their TP ranks link are therefore one group.
std::vector<int> expert_groups(const RankGrid& grid) {
  const std::vector<int> replicas = grid.data_context_group(grid.gpu({0, 0, 0, 0}));
  std::map<int, int> replica_of;  // by GPU, over all TP ranks
  for (int t = 0; t < grid.sizes().tensor; ++t) {
    const std::vector<int> of_tensor = grid.data_context_group(grid.gpu({t, 0, 0, 0}));
    for (std::size_t i = 0; i < of_tensor.size(); ++i) replica_of[of_tensor[i]] = static_cast<int>(i);
  }
  std::vector<int> group = positions<int>(replicas.size());
  const auto root = [&](int i) {
    while (group[at(i)] != i) i = group[at(i)];
    return i;
  };
  for (const auto& [gpu, replica] : replica_of)
    for (const int member : grid.group(Axis::expert, gpu)) {
      const int a = root(replica), b = root(replica_of.at(member));
      group[at(std::max(a, b))] = std::min(a, b);
    }
  for (std::size_t i = 0; i < group.size(); ++i) group[i] = root(group[i]);
  return group;
}

// Gives lanes that share a group, directly or through others, one number: the lowest lane's.
std::vector<std::size_t> linked_lanes(const std::vector<LockstepLane>& lanes) {
  std::vector<std::size_t> linked = positions(lanes.size());
  const auto root = [&](std::size_t i) {
    while (linked[i] != i) i = linked[i];
    return i;
  };
  std::map<int, std::size_t> first_of_group;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    for (const int group : lanes[i].expert_group) {
      const std::size_t a = root(first_of_group.try_emplace(group, i).first->second);
      const std::size_t b = root(i);
      linked[std::max(a, b)] = std::min(a, b);
    }
  for (std::size_t i = 0; i < lanes.size(); ++i) linked[i] = root(i);
  return linked;
}

bool same_order(const Schedule& a, const Schedule& b) {
  for (std::size_t s = 0; s < a.ops.size(); ++s) {
    if (a.ops[s].size() != b.ops[s].size()) return false;
    for (std::size_t i = 0; i < a.ops[s].size(); ++i)
      if (class_of(a.ops[s][i].kind) != class_of(b.ops[s][i].kind) ||
          a.ops[s][i].virtual_stage != b.ops[s][i].virtual_stage ||
          a.ops[s][i].with_next != b.ops[s][i].with_next || a.ops[s][i].whole != b.ops[s][i].whole)
        return false;
  }
  return true;
}

// An empty micro-batch has no documents, so it recomputes nothing.
MicroBatch empty_micro_batch() {
  MicroBatch empty;
  empty.recompute_layers = 0;
  return empty;
}

// Merges the lanes' op lists on one stage, round by round.
void merge_orders(std::vector<LockstepLane*>& lanes) {
  std::vector<std::vector<ScheduleOp>> merged(lanes.size());
  std::vector<std::size_t> next(lanes.size(), 0);
  for (;;) {
    OpClass round = kClasses;
    for (std::size_t l = 0; l < lanes.size(); ++l)
      if (next[l] < lanes[l]->schedule.ops[0].size())
        round = std::min(round, class_of(lanes[l]->schedule.ops[0][next[l]].kind));
    if (round == kClasses) break;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const std::vector<ScheduleOp>& own = lanes[l]->schedule.ops[0];
      if (next[l] < own.size() && class_of(own[next[l]].kind) == round) {
        merged[l].push_back(own[next[l]++]);
        continue;
      }
      merged[l].push_back({kEmptyOp[round], static_cast<std::int32_t>(lanes[l]->micro_batches.size()), 0});
      lanes[l]->micro_batches.push_back(empty_micro_batch());
    }
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    lanes[l]->schedule.ops[0] = std::move(merged[l]);
    lanes[l]->schedule.micro_batches = static_cast<int>(lanes[l]->micro_batches.size());
  }
}

// `groups` has the group of every place.
void number_groups(LockstepGroup& lockstep, std::span<const int> groups) {
  std::map<int, int> number;
  for (LockstepLane& lane : lockstep.lanes)
    for (int& group : lane.expert_group) {
      const auto [found, is_new] = number.try_emplace(group, static_cast<int>(number.size()));
      if (is_new) {
        const auto places = std::count(groups.begin(), groups.end(), group);
        lockstep.group_places.push_back(lockstep.unsynchronized || places == 0 ? 0
                                                                               : static_cast<int>(places));
      }
      group = found->second;
    }
  lockstep.expert_groups = static_cast<int>(number.size());
  std::vector<int> present(number.size(), 0);
  for (const LockstepLane& lane : lockstep.lanes)
    for (const int group : lane.expert_group) ++present[at(group)];
  for (std::size_t g = 0; g < present.size(); ++g)
    if (lockstep.group_places[g] == 0) lockstep.group_places[g] = present[g];
}

// The lanes of a group that have micro-batches, with places and expert groups; their schedules come later.
std::vector<LockstepLane> lanes_of(const Step& step, int barrier_group, const Layout& layout,
                                   std::span<const int> groups) {
  std::vector<LockstepLane> lanes;
  int place = 0;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const Lane& lane = step.lanes[l];
    if (lane.barrier_group != barrier_group) continue;
    if (layout.evens_out_stages() && lane.context != layout.context)
      throw UserError("stage_attention_exchange: true with a lane of CP degree ", lane.context,
                      "; allowed: ", layout.context, ", or false");
    LockstepLane out;
    out.lane = static_cast<std::int32_t>(l);
    out.first_replica = place;
    out.real = lane.micro_batches.size();
    out.micro_batches = lane.micro_batches;
    for (int r = 0; r < lane.context; ++r, ++place) {
      int group = reduces_each_micro_batch(layout) ? 0 : place;  // one group for all, or one each
      if (layout.expert > 1) group = at(place) < groups.size() ? groups[at(place)] : place;
      out.expert_group.push_back(group);
    }
    if (!lane.micro_batches.empty()) lanes.push_back(std::move(out));
  }
  return lanes;
}

}  // namespace

bool lanes_synchronize(const Layout& layout) {
  return layout.expert > 1 || reduces_each_micro_batch(layout) || layout.evens_out_stages();
}

std::vector<LockstepGroup> make_lockstep_groups(const Step& step, int barrier_group, const Layout& layout,
                                                const RankGrid& grid, const StepOptions& options) {
  const std::vector<int> groups = layout.expert > 1 ? expert_groups(grid) : std::vector<int>{};
  std::vector<LockstepLane> lanes = lanes_of(step, barrier_group, layout, groups);
  std::vector<std::size_t> linked(lanes.size(), 0);
  if (!layout.reduces_each_micro_batch()) linked = linked_lanes(lanes);
  std::vector<LockstepGroup> lockstep_groups;
  for (std::size_t first = 0; first < lanes.size(); ++first) {
    std::vector<LockstepLane*> members;
    for (std::size_t l = first; l < lanes.size() && linked[first] == first; ++l)
      if (linked[l] == first) members.push_back(&lanes[l]);
    if (members.empty()) continue;
    std::size_t most = 0;
    for (const LockstepLane* lane : members) most = std::max(most, lane->real);
    // Pairs cannot be merged op by op, so lanes are padded to as many micro-batches, as with a pipeline.
    const bool merges = layout.pipeline == 1 && !(options.pairs && options.schedule->pairs);
    for (LockstepLane* lane : members) {
      if (!merges) lane->micro_batches.resize(most, empty_micro_batch());
      lane->schedule = schedule_of(lane->micro_batches, layout, options);
    }
    if (merges) merge_orders(members);
    const std::size_t before = lockstep_groups.size();
    for (LockstepLane* lane : members) {
      auto lockstep = std::find_if(
          lockstep_groups.begin() + static_cast<std::ptrdiff_t>(before), lockstep_groups.end(),
          [&](const LockstepGroup& c) { return same_order(c.lanes.front().schedule, lane->schedule); });
      if (lockstep == lockstep_groups.end()) lockstep = lockstep_groups.emplace(lockstep_groups.end());
      lockstep->lanes.push_back(std::move(*lane));
    }
    for (std::size_t c = before; c < lockstep_groups.size(); ++c)
      lockstep_groups[c].unsynchronized = lockstep_groups.size() - before > 1;
  }
  const bool ends_step = std::none_of(step.lanes.begin(), step.lanes.end(), [&](const Lane& lane) {
    return lane.barrier_group > barrier_group && !lane.micro_batches.empty();
  });
  for (LockstepGroup& lockstep : lockstep_groups) {
    number_groups(lockstep, groups);
    lockstep.ends_step = ends_step;
  }
  return lockstep_groups;
}

int most_recomputed(const LockstepGroup& lockstep, const PartOrders& orders, int stage,
                    std::size_t position) {
  int most = 0;
  for (const LockstepLane& lane : lockstep.lanes) {
    const ScheduleOp& op = lane.schedule.ops[at(stage)][position];
    const int v = op.virtual_stage * lane.schedule.stages + stage;
    most = std::max(most, orders.recomputed_layers(v, lane.micro_batches[at(op.micro_batch)]));
  }
  return most;
}

}  // namespace equipoise
