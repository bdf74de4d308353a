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

// The expert-parallel group of each data x context rank of a stage: the lowest rank in it. (The same for
// every stage.) Where experts have less tensor parallelism than the rest, a group holds several TP ranks of a
// replica, which arrive together: replicas that any of their TP ranks link are one group.
std::vector<int> expert_groups(const RankGrid& grid) {
  const std::vector<int> replicas = grid.data_context_group(grid.gpu({0, 0, 0, 0}));
  std::map<int, int> replica_of;  // by GPU, of all TP ranks
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

// What a schedule from both ends needs beside its micro-batches.
void check_both_ends(const Layout& layout, const StepOptions& options) {
  const std::string name(options.schedule->name);
  if (layout.virtual_pipeline > 1) return;  // which the schedule refuses by itself
  if (!layout.bidirectional) (void)one_way_schedule(name);
  if (layout.zero > 1)
    throw UserError("schedule ", name, ": expected parallel.zero 0 or 1, found ", layout.zero,
                    ": the copies of a layer add up their gradients once a step");
  if (layout.expert > 1 && !options.pairs)
    throw UserError("schedule ", name,
                    ": expected framework.expert_overlap dualpipe: its pairs hide each other's exchanges");
}

// Lanes that share a group, directly or over others, get the same number: that of the lowest of them.
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

// Holds no documents, so nothing is recomputed.
MicroBatch empty_micro_batch() {
  MicroBatch empty;
  empty.recompute_layers = 0;
  return empty;
}

// One stage: merges the lanes' op lists round by round.
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

// `groups`: of all places.
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

// The lanes of a group with a micro-batch, with their places and expert groups; schedules are still to be
// made.
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
      int group = reduces_each_micro_batch(layout) ? 0 : place;  // one group of all, or each on its own
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

ScheduleInput schedule_input(std::span<const MicroBatch> micro_batches, const Layout& layout,
                             const StepOptions& options, std::vector<std::int32_t>& sizes) {
  sizes.clear();
  for (std::size_t j = 0; j < micro_batches.size(); j += at(sizes.back()))
    sizes.push_back(micro_batches[j].chunk.count);
  if (options.schedule->bidirectional) check_both_ends(layout, options);
  const bool in_step = layout.evens_out_stages();
  if (in_step && options.schedule->name != "seq1f1b")
    throw UserError("stage_attention_exchange: true with schedule ", options.schedule->name,
                    "; allowed: seq1f1b, or false");
  return {layout.pipeline,     layout.virtual_pipeline, sizes,  options.keep,
          options.strict_keep, options.pairs,           in_step};
}

Schedule schedule_of(std::span<const MicroBatch> micro_batches, const Layout& layout,
                     const StepOptions& options) {
  std::vector<std::int32_t> sizes;
  return options.schedule->make(schedule_input(micro_batches, layout, options, sizes));
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
    // Pairs cannot be merged op by op: lanes get as many micro-batches, as with a pipeline.
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

namespace {

constexpr std::int32_t kNone = -1;  // a lane that sends nothing

class ExpertArrivalFinder {
 public:
  ExpertArrivalFinder(LockstepGroup& lockstep, std::span<const std::vector<std::int64_t>> tokens,
                      const LayerCosts& costs, const PartOrders& orders)
      : lockstep_(lockstep), tokens_(tokens), costs_(costs), orders_(orders) {}

  void run() {
    const Schedule& first = lockstep_.lanes.front().schedule;
    for (LockstepLane& lane : lockstep_.lanes) {
      lane.arrivals = {};
      lane.arrivals.entries.resize(lane.micro_batches.size());
      lane.arrivals.of_op.resize(first.ops.size());
    }
    for (std::size_t s = 0; s < first.ops.size(); ++s)
      for (std::size_t i = 0; i < first.ops[s].size(); ++i) add_op(s, i);
    for (LockstepLane& lane : lockstep_.lanes)  // those of no op
      for (std::size_t j = 0; j < lane.micro_batches.size(); ++j)
        if (lane.arrivals.entries[j].arriving.empty())
          lane.arrivals.entries[j] = {static_cast<std::int32_t>(j),
                                      std::vector<ExpertArrivals>(lane.expert_group.size())};
  }

 private:
  using Members = std::vector<std::int32_t>;  // by lane: the micro-batch, or kNone

  void add_op(std::size_t stage, std::size_t position) {
    Members members;
    for (const LockstepLane& lane : lockstep_.lanes)
      members.push_back(lane.schedule.ops[stage][position].micro_batch);
    const std::vector<std::int32_t>& entries = entries_of(members);
    for (std::size_t l = 0; l < members.size(); ++l)
      lockstep_.lanes[l].arrivals.of_op[stage].push_back(entries[l]);
    if (lockstep_.lanes.front().schedule.ops[stage][position].kind == OpKind::B)
      add_recomputed(stage, position, members);
  }

  // Layers that not all lanes recompute.
  void add_recomputed(std::size_t stage, std::size_t position, const Members& members) {
    std::vector<int> recomputed;
    for (const LockstepLane& lane : lockstep_.lanes) {
      const ScheduleOp& op = lane.schedule.ops[stage][position];
      const int v = op.virtual_stage * lane.schedule.stages + static_cast<int>(stage);
      recomputed.push_back(orders_.recomputed_layers(v, lane.micro_batches[at(op.micro_batch)]));
    }
    const auto [least, most] = std::minmax_element(recomputed.begin(), recomputed.end());
    if (*least == *most) return;
    for (int layer = 0; layer < *most; ++layer) {
      Members senders = members;
      for (std::size_t l = 0; l < senders.size(); ++l)
        if (recomputed[l] <= layer) senders[l] = kNone;
      const std::vector<std::int32_t>& entries = entries_of(senders);
      for (std::size_t l = 0; l < senders.size(); ++l)
        lockstep_.lanes[l].arrivals.again[{stage, position}].push_back(entries[l]);
    }
  }

  // Each lane's entry. The same members stand beside each other on every stage, forward as well as backward.
  const std::vector<std::int32_t>& entries_of(const Members& members) {
    const auto [known, is_new] = known_.try_emplace(members);
    std::vector<std::int32_t>& entries = known->second;
    if (!is_new) return entries;
    const std::vector<ExpertArrivals> arriving = arrivals_of(members);
    for (std::size_t l = 0; l < members.size(); ++l)
      entries.push_back(entry(lockstep_.lanes[l], members[l], arriving));
    return entries;
  }

  // By expert group.
  [[nodiscard]] std::vector<ExpertArrivals> arrivals_of(const Members& members) const {
    std::vector<ExpertArrivals> groups(at(lockstep_.expert_groups));
    std::vector<std::vector<const MicroBatch*>> sending(groups.size());
    for (std::size_t l = 0; l < members.size(); ++l) {
      if (members[l] == kNone) continue;
      const LockstepLane& lane = lockstep_.lanes[l];
      for (std::size_t r = 0; r < lane.expert_group.size(); ++r) {
        const std::size_t g = at(lane.expert_group[r]);
        const ExpertArrivals sent =
            costs_.experts.sent_to_experts(tokens_[l][at(members[l]) * lane.expert_group.size() + r]);
        groups[g].tokens += sent.tokens;
        groups[g].rows += sent.rows;
        const MicroBatch* const micro_batch = &lane.micro_batches[at(members[l])];
        if (sending[g].empty() || sending[g].back() != micro_batch) sending[g].push_back(micro_batch);
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      groups[g].tokens /= lockstep_.group_places[g];
      groups[g].rows /= lockstep_.group_places[g];
      groups[g].load = costs_.experts.load(sending[g]);
    }
    return groups;
  }

  // The lane's entry for a micro-batch beside these; found or added.
  static std::int32_t entry(LockstepLane& lane, std::int32_t micro_batch,
                            const std::vector<ExpertArrivals>& of_groups) {
    LaneArrivals::Entry wanted{micro_batch, {}};
    for (const int group : lane.expert_group) wanted.arriving.push_back(of_groups[at(group)]);
    std::vector<LaneArrivals::Entry>& entries = lane.arrivals.entries;
    if (micro_batch != kNone) {
      LaneArrivals::Entry& own = entries[at(micro_batch)];
      if (own.arriving.empty()) own = wanted;
      if (own == wanted) return micro_batch;
    }
    const auto others = entries.begin() + static_cast<std::ptrdiff_t>(lane.micro_batches.size());
    const auto found = std::find(others, entries.end(), wanted);
    const auto index = static_cast<std::int32_t>(found - entries.begin());
    if (found == entries.end()) entries.push_back(std::move(wanted));
    return index;
  }

  LockstepGroup& lockstep_;
  std::span<const std::vector<std::int64_t>> tokens_;
  const LayerCosts& costs_;
  const PartOrders& orders_;
  std::map<Members, std::vector<std::int32_t>> known_;  // entries by lane
};

// Where nobody shares experts: what each rank sends arrives there.
std::vector<MicroBatchCost> cost_apart(LockstepLane& lane, MicroBatchCoster& coster) {
  std::vector<MicroBatchCost> costs(lane.micro_batches.size());
  lane.arrivals = {};
  for (std::size_t j = 0; j < costs.size(); ++j) {
    if (j > 0 && costs_alike(lane.micro_batches[j], lane.micro_batches[j - 1]))
      costs[j] = costs[j - 1];
    else
      coster.cost(lane.micro_batches[j], static_cast<int>(lane.expert_group.size()), costs[j]);
    lane.arrivals.entries.push_back({static_cast<std::int32_t>(j), costs[j].arriving});
  }
  return costs;
}

// The micro-batches of a lane with their shardings; what choosing those has counted is used when all else
// is costed.
struct ShardedLane {
  std::vector<MicroBatchCost> costs;
  std::vector<AttentionCounts> counts;  // of costs[j].sharding, wherever that has moved
  std::vector<std::int64_t> tokens;     // [micro-batch x CP rank]
};
static_assert(std::is_nothrow_move_constructible_v<MicroBatchCost>,
              "segments that are counted stay in place");

ShardedLane shard_lane(const LockstepLane& lane, MicroBatchCoster& coster) {
  ShardedLane sharded;
  sharded.costs.resize(lane.micro_batches.size());
  sharded.counts.resize(lane.micro_batches.size());
  for (std::size_t j = 0; j < sharded.costs.size(); ++j) {
    MicroBatchCost& cost = sharded.costs[j];
    if (j > 0 && costs_alike(lane.micro_batches[j], lane.micro_batches[j - 1]))
      cost.sharding = sharded.costs[j - 1].sharding;
    else
      coster.shard(lane.micro_batches[j], static_cast<int>(lane.expert_group.size()), cost,
                   sharded.counts[j]);
    const std::vector<std::int64_t>& ranks = cost.sharding.rank_tokens;
    sharded.tokens.insert(sharded.tokens.end(), ranks.begin(), ranks.end());
  }
  return sharded;
}

// Costs the entries of a lane whose arrivals are known.
void cost_entries(const LockstepLane& lane, MicroBatchCoster& coster, ShardedLane& sharded) {
  const MicroBatch nothing;
  const auto context = static_cast<int>(lane.expert_group.size());
  std::vector<MicroBatchCost>& costs = sharded.costs;
  costs.resize(lane.arrivals.entries.size());
  sharded.counts.resize(costs.size());
  for (std::size_t e = 0; e < costs.size(); ++e) {
    const LaneArrivals::Entry& entry = lane.arrivals.entries[e];
    const bool first = e < lane.micro_batches.size();
    if (first && e > 0 && costs_alike(lane.micro_batches[e], lane.micro_batches[e - 1]) &&
        entry.arriving == costs[e - 1].arriving) {
      costs[e] = costs[e - 1];
      continue;
    }
    if (entry.arriving == costs[e].arriving) continue;  // `optimal` has found all of it
    const MicroBatch& micro_batch =
        entry.micro_batch == kNone ? nothing : lane.micro_batches[at(entry.micro_batch)];
    if (entry.micro_batch == kNone)
      coster.shard(nothing, context, costs[e], sharded.counts[e]);
    else if (!first)
      costs[e].sharding = costs[at(entry.micro_batch)].sharding;
    coster.cost_sharded(micro_batch, context, entry.arriving, sharded.counts[e], costs[e]);
  }
}

// Fills LockstepLane::arrivals of all lanes that share experts. `tokens`: by lane, [micro-batch x CP rank].
// O(ops x lanes).
void find_expert_arrivals(LockstepGroup& lockstep, std::span<const std::vector<std::int64_t>> tokens,
                          const LayerCosts& costs, const PartOrders& orders) {
  ExpertArrivalFinder(lockstep, tokens, costs, orders).run();
}

}  // namespace

std::vector<std::vector<MicroBatchCost>> cost_lockstep_group(LockstepGroup& lockstep,
                                                             MicroBatchCoster& coster,
                                                             const LayerCosts& costs,
                                                             const PartOrders& orders) {
  std::vector<std::vector<MicroBatchCost>> of_lanes;
  if (costs.layout().expert == 1) {
    for (LockstepLane& lane : lockstep.lanes) {
      of_lanes.push_back(cost_apart(lane, coster));
      if (costs.layout().evens_out_stages()) cost_ticks(lane, coster, costs, orders, of_lanes.back());
    }
    return of_lanes;
  }
  std::vector<ShardedLane> sharded;
  std::vector<std::vector<std::int64_t>> tokens;
  for (const LockstepLane& lane : lockstep.lanes)
    tokens.push_back(sharded.emplace_back(shard_lane(lane, coster)).tokens);
  find_expert_arrivals(lockstep, tokens, costs, orders);
  for (std::size_t l = 0; l < sharded.size(); ++l) {
    cost_entries(lockstep.lanes[l], coster, sharded[l]);
    of_lanes.push_back(std::move(sharded[l].costs));
  }
  return of_lanes;
}

}  // namespace equipoise
