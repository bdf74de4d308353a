#include "sim/step/lockstep_costs.h"

#include <algorithm>
#include <map>
#include <span>
#include <type_traits>

#include "sim/step/stage_ticks.h"

namespace equipoise {

namespace {

constexpr std::int32_t kNone = -1;  // stands for a lane that sends nothing

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
    for (LockstepLane& lane : lockstep_.lanes)  // entries that no op uses
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

  // Adds the layers that only some lanes recompute.
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

  // Each lane's entry for these members, which run together on every stage, both forward and backward.
  const std::vector<std::int32_t>& entries_of(const Members& members) {
    const auto [known, is_new] = known_.try_emplace(members);
    std::vector<std::int32_t>& entries = known->second;
    if (!is_new) return entries;
    const std::vector<ExpertArrivals> arriving = arrivals_of(members);
    for (std::size_t l = 0; l < members.size(); ++l)
      entries.push_back(entry(lockstep_.lanes[l], members[l], arriving));
    return entries;
  }

  // What arrives at the ranks of each expert group.
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

  // The lane's entry for a micro-batch that runs with these arrivals; added if it is new.
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

// Lanes that share no experts: what a rank sends arrives at itself.
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

// A lane's micro-batches with their shardings; the counts from choosing those serve the other costs.
struct ShardedLane {
  std::vector<MicroBatchCost> costs;
  std::vector<AttentionCounts> counts;  // of costs[j].sharding, also after that has moved
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
    if (entry.arriving == costs[e].arriving) continue;  // `optimal` has costed it already
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
