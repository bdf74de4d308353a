#include "sim/step/network_routes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "policies/base/index.h"

namespace equipoise {
namespace {

using Routes = std::vector<std::vector<LinkUse>>;

}  // namespace

Picoseconds paced(Picoseconds duration, double bytes, double limit) {
  if (duration == 0 || !(bytes > 0)) return duration;
  const double cap = bytes / (static_cast<double>(duration) / kPicosecondsPerSecond);
  if (cap <= limit) return duration;
  const double takes = std::ceil(static_cast<double>(duration) / (limit / cap));
  if (!(takes < kLongestSeconds * kPicosecondsPerSecond))
    refuse_time("a collective over its links", takes / kPicosecondsPerSecond);
  return static_cast<Picoseconds>(takes);
}

// The route of a collective of given ranks, of a bucket, or of the transfers between two ranks.
struct NetworkRoutes::Flow {
  OpRoute* out = nullptr;
  Routes members;                   // for each TP rank that it represents
  std::vector<std::uint32_t> held;  // ranks that it blocks, rising; empty if it overlaps other ops
  bool overlaps_itself = false;
  int lane = -1;  // -1 at the step's end
};

class NetworkRoutes::Builder {
 public:
  Builder(NetworkRoutes& out, const OpProgram& program, const RankGrid& grid, const Fabric& fabric)
      : out_(out), program_(program), grid_(grid), fabric_(fabric), capacities_(fabric.capacities()) {
    out_.tensor_ = at(program.tensor);
    tensor_ = grid.sizes().tensor;
    out_.width_ = tensor_ / program.tensor;
    for (int s = 0; s < program.stages; ++s)
      for (int t = 0; t < tensor_; ++t) replicas_.push_back(grid.data_context_group(grid.gpu({t, 0, 0, s})));
  }

  void build(bool reduce) {
    reduce_ = reduce;
    make_room();
    for (std::size_t l = 0; l < program_.lanes.size(); ++l)
      for (std::size_t s = 0; s < at(program_.stages); ++s) {
        add_groups(l, s);
        add_transfers(l, s);
      }
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) add_lockstep(l);
    for (int s = 0; s < program_.stages && !program_.ends.empty(); ++s)
      for (int t = 0; t < program_.tensor; ++t) add_end(s, t);
    color_links();
    number_links();
    for (std::uint32_t f = 0; f < flows_.size(); ++f) take_route(f);
    find_lane_sets();
  }

 private:
  [[nodiscard]] int gpu(int stage, int replica, int tensor) const {
    return replicas_[at(stage) * at(tensor_) + at(tensor)][at(replica)];
  }
  // Calls `each` for the TP coordinates that one of the program represents.
  template <class Each>
  void for_folded(int tensor, const Each& each) const {
    for (int t = tensor; t < tensor_; t += program_.tensor) each(t);
  }
  [[nodiscard]] std::uint32_t held(int stage, int replica, int tensor) const {
    return static_cast<std::uint32_t>((stage * program_.replicas + replica) * program_.tensor +
                                      tensor % program_.tensor);
  }

  void make_room() {
    out_.lanes_.resize(program_.lanes.size());
    const auto groups = at(program_.lockstep_groups);
    out_.experts_.resize(groups);
    out_.replicas_.resize(groups);
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
      const OpLane& lane = program_.lanes[l];
      out_.lockstep_of_.push_back(lane.lockstep);
      out_.lanes_[l].resize(at(program_.stages));
      for (Stage& stage : out_.lanes_[l]) {
        stage.context.resize(at(program_.tensor));
        stage.inside.resize(grid_.inner_ranks(lane.context) > 1 ? at(program_.tensor) : 0);
        stage.tensor.resize(at(lane.context));
        stage.transfers.resize(at(program_.stages));
      }
      if (lane.lockstep == kNoLockstep) continue;
      const int experts = *std::max_element(lane.expert_group.begin(), lane.expert_group.end()) + 1;
      for (auto* of : {&out_.experts_[at(lane.lockstep)], &out_.replicas_[at(lane.lockstep)]}) {
        of->resize(at(program_.stages));
        for (auto& stage : *of) stage.resize(std::max(stage.size(), at(experts) * at(program_.tensor)));
      }
    }
    out_.ends_.resize(program_.ends.size() * at(program_.tensor));
  }

  void add_ring(Flow& flow, const std::vector<int>& gpus) { add_rings(flow, {gpus}); }
  // Adds rings of equal size that run side by side at one pace.
  void add_rings(Flow& flow, const std::vector<std::vector<int>>& rings) {
    if (rings.front().size() < 2) return;
    // Several folded ranks may take part in the same collective.
    if (std::find(rings_.begin(), rings_.end(), rings.front()) != rings_.end()) return;
    rings_.push_back(rings.front());
    flow.out->members = static_cast<int>(rings.front().size());
    std::map<LinkId, std::int32_t> times;
    for (const std::vector<int>& gpus : rings)
      for (const LinkUse& use : fabric_.ring(gpus)) times[use.link] += use.times;
    std::vector<LinkUse>& links = flow.members.emplace_back();
    for (const auto& [link, uses] : times) links.push_back({link, uses});
  }
  void finish(Flow& flow) {
    rings_.clear();
    std::sort(flow.held.begin(), flow.held.end());
    flow.held.erase(std::unique(flow.held.begin(), flow.held.end()), flow.held.end());
    if (!flow.members.empty()) flows_.push_back(std::move(flow));
  }

  // Which collectives the ranks of a lane's stage have, and whether something runs under those of experts.
  [[nodiscard]] bool uses(const OpLane& lane, SyncGroup sync) const {
    for (const OpBlock& block : lane.blocks)
      for (const OpStep& step : block.steps)
        if (step.sync == sync) return true;
    return false;
  }

  void add_groups(std::size_t l, std::size_t s) {
    const OpLane& lane = program_.lanes[l];
    const int stage = static_cast<int>(s);
    if (uses(lane, SyncGroup::context))
      for (int t = 0; t < program_.tensor; ++t) {
        NetworkRoutes::Stage& here = out_.lanes_[l][s];
        const int inner = grid_.inner_ranks(lane.context);
        if (inner > 1) add_context(l, stage, t, true, here.inside[at(t)]);
        add_context(l, stage, t, false, here.context[at(t)]);
      }
    if (uses(lane, SyncGroup::tensor))
      for (int c = 0; c < lane.context; ++c) {
        Flow flow{&out_.lanes_[l][s].tensor[at(c)], {}, {}, false, static_cast<int>(l)};
        std::vector<int> gpus;
        for (int t = 0; t < tensor_; ++t) gpus.push_back(gpu(stage, lane.first_replica + c, t));
        add_ring(flow, gpus);
        for (int t = 0; t < program_.tensor; ++t) flow.held.push_back(held(stage, lane.first_replica + c, t));
        finish(flow);
      }
  }

  // Adds the rings of CP ranks: of each inner group, or of the equal ranks of all inner groups.
  void add_context(std::size_t l, int stage, int t, bool inside, OpRoute& out) {
    const OpLane& lane = program_.lanes[l];
    const int inner = grid_.inner_ranks(lane.context);
    Flow flow{&out, {}, {}, false, static_cast<int>(l)};
    for_folded(t, [&](int real) {
      std::vector<std::vector<int>> gpus(at(inside ? lane.context / inner : inner));
      for (int c = 0; c < lane.context; ++c)
        gpus[at(inside ? c / inner : c % inner)].push_back(gpu(stage, lane.first_replica + c, real));
      add_rings(flow, gpus);
    });
    for (int c = 0; c < lane.context; ++c) flow.held.push_back(held(stage, lane.first_replica + c, t));
    finish(flow);
  }

  void add_transfers(std::size_t l, std::size_t s) {
    const OpLane& lane = program_.lanes[l];
    for (const ScheduledOp& op : lane.stages[s]) {
      if (op.input_stage == kNoInput || at(op.input_stage) == s) continue;
      std::vector<OpRoute>& routes = out_.lanes_[l][s].transfers[at(op.input_stage)];
      if (!routes.empty()) continue;
      routes.resize(at(lane.context) * at(program_.tensor));
      for (std::size_t r = 0; r < routes.size(); ++r) {
        Flow flow{&routes[r], {}, {}, true, static_cast<int>(l)};
        const int replica = lane.first_replica + static_cast<int>(r) / program_.tensor;
        for_folded(static_cast<int>(r) % program_.tensor, [&](int t) {
          const int from = gpu(op.input_stage, replica, t), to = gpu(static_cast<int>(s), replica, t);
          if (from == to) return;
          flow.members.push_back(fabric_.uses(fabric_.route(from, to)));
          flow.out->members = 2;
        });
        finish(flow);
      }
    }
  }

  // Adds the routes of the lane's lockstep group, when the lane is its first.
  void add_lockstep(std::size_t l) {
    const OpLane& lane = program_.lanes[l];
    const auto same = [&](const OpLane& o) { return o.lockstep == lane.lockstep; };
    if (lane.lockstep == kNoLockstep || &*std::ranges::find_if(program_.lanes, same) != &lane) return;
    bool over = false;
    for (const OpLane& other : program_.lanes)
      for (const OpBlock& block : other.blocks)
        for (const OpStep& step : block.steps) over |= same(other) && step.over > 0;
    for (int s = 0; s < program_.stages; ++s) {
      std::vector<OpRoute>& experts = out_.experts_[at(lane.lockstep)][at(s)];
      for (std::size_t g = 0; g < experts.size(); ++g) add_expert_group(lane, s, g, over, experts[g]);
      for (int t = 0; t < program_.tensor; ++t) {
        Flow flow{&out_.replicas_[at(lane.lockstep)][at(s)][at(t)], {}, {}, false, static_cast<int>(l)};
        for_folded(t, [&](int real) {
          std::vector<int> gpus;
          for (const OpLane& other : program_.lanes)
            for (int i = 0; same(other) && i < other.context; ++i)
              gpus.push_back(gpu(s, other.first_replica + i, real));
          add_ring(flow, gpus);
        });
        finish(flow);
      }
    }
  }
  // Adds expert group number `g` of the program: expert group x TP coordinate (interpreter::sync_index).
  void add_expert_group(const OpLane& lane, int stage, std::size_t g, bool over, OpRoute& out) {
    const int group = static_cast<int>(g) / program_.tensor;
    Flow flow{&out, {}, {}, false, static_cast<int>(&lane - program_.lanes.data())};
    for_folded(static_cast<int>(g) % program_.tensor, [&](int real) {
      std::vector<int> gpus;
      for (const OpLane& other : program_.lanes)
        for (int i = 0; other.lockstep == lane.lockstep && i < other.context; ++i)
          for (int t = 0; other.expert_group[at(i)] == group && t < tensor_; ++t)
            if (expert_coordinate(lane, at(t)) == expert_coordinate(lane, at(real))) {
              gpus.push_back(gpu(stage, other.first_replica + i, t));
              if (!over) flow.held.push_back(held(stage, other.first_replica + i, t));
            }
      add_ring(flow, gpus);
    });
    finish(flow);
  }

  void add_end(int stage, int t) {
    Flow flow{&out_.ends_[at(stage) * at(program_.tensor) + at(t)], {}, {}, false, -1};
    for_folded(t, [&](int real) {
      std::vector<int> gpus;
      for (int r = 0; r < program_.replicas; ++r) gpus.push_back(gpu(stage, r, real));
      add_ring(flow, gpus);
    });
    finish(flow);
  }

  // A color is a set of links that are always equally full. Colors are numbered by their lowest link.
  struct Use {
    std::uint32_t flow = 0;
    std::int32_t times = 0;  // by all members
    friend bool operator==(const Use&, const Use&) = default;
  };
  struct Color {
    double capacity = 0;
    std::vector<Use> users;  // in rising order of flows
    bool own = false;        // two of its users never run at the same time
    bool slack = false;      // another link always fills before it
    LinkId link = 0;         // number in the table, unless `own`
  };

  void color_links() {
    std::vector<std::vector<Use>> users(capacities_.size());
    for (std::uint32_t f = 0; f < flows_.size(); ++f)
      for (const auto& member : flows_[f].members)
        for (const LinkUse& use : member) {
          std::vector<Use>& of_link = users[use.link];
          if (of_link.empty() || of_link.back().flow != f) of_link.push_back({f, 0});
          of_link.back().times += use.times;
        }
    color_of_.assign(capacities_.size(), 0);
    std::unordered_multimap<std::size_t, std::uint32_t> known;
    for (LinkId link = 0; link < users.size(); ++link) {
      if (users[link].empty()) continue;
      std::size_t hash = std::hash<double>{}(capacities_[link]);
      for (const Use& use : users[link])
        hash = (hash ^ (std::size_t{use.flow} << 20) ^ at(use.times)) * 0x9e3779b97f4a7c15ULL;
      const auto [from, to] = known.equal_range(hash);
      const auto same = std::find_if(from, to, [&](const auto& entry) {
        const Color& color = colors_[entry.second];
        return color.capacity == capacities_[link] && color.users == users[link];
      });
      if (same != to && reduce_) {
        color_of_[link] = same->second;
        continue;
      }
      color_of_[link] = static_cast<std::uint32_t>(colors_.size());
      known.emplace(hash, color_of_[link]);
      Color& color = colors_.emplace_back(Color{capacities_[link], std::move(users[link]), false, 0});
      color.own = never_shared(color);
    }
  }
  // Skips links that never stop a flow: a link is slack if all its flows cross a no faster link at least as
  // often. A NIC below an oversubscribed uplink is one.
  void number_links() {
    std::vector<std::uint32_t> others;
    for (Color& color : colors_) {
      if (color.own) continue;
      const auto fewest = std::ranges::min_element(
          color.users, {}, [&](const Use& u) { return flows_[u.flow].members.front().size(); });
      others = colors_of(flows_[fewest->flow].members.front());
      color.slack = reduce_ && std::any_of(others.begin(), others.end(), [&](std::uint32_t other) {
                      return &colors_[other] != &color && stops_before(colors_[other], color);
                    });
      if (color.slack) continue;
      color.link = static_cast<LinkId>(out_.table_.capacities.size());
      out_.table_.capacities.push_back(color.capacity);
    }
  }
  // Whether `color` is full whenever `slack` is, on the way of the same flows.
  static bool stops_before(const Color& color, const Color& slack) {
    if (color.capacity > slack.capacity || color.users.size() < slack.users.size()) return false;
    auto mine = color.users.begin();
    for (const Use& use : slack.users) {
      mine = std::find_if(mine, color.users.end(), [&](const Use& u) { return u.flow >= use.flow; });
      if (mine == color.users.end() || mine->flow != use.flow || mine->times < use.times) return false;
    }
    return true;
  }
  // Whether two users of the color cannot run at once: one rank takes part in all of them.
  [[nodiscard]] bool never_shared(const Color& color) const {
    const Flow& first = flows_[color.users.front().flow];
    if (first.overlaps_itself) return false;
    if (color.users.size() == 1) return true;
    std::vector<std::uint32_t> common = first.held, both;
    for (std::size_t i = 1; i < color.users.size() && !common.empty(); ++i) {
      const std::vector<std::uint32_t>& other = flows_[color.users[i].flow].held;
      both.clear();
      std::set_intersection(common.begin(), common.end(), other.begin(), other.end(),
                            std::back_inserter(both));
      common.swap(both);
    }
    return !common.empty();
  }

  void take_route(std::uint32_t f) {
    const Flow& flow = flows_[f];
    std::vector<std::uint32_t> colors = colors_of(flow.members.front());
    for (const auto& member : flow.members) out_.alike_ &= colors_of(member) == colors;
    std::vector<LinkUse> shared;
    OpRoute& route = *flow.out;
    for (const std::uint32_t c : colors) {
      const Color& color = colors_[c];
      const auto use = std::ranges::lower_bound(color.users, f, {}, &Use::flow);
      if (color.own)
        route.limit = std::min(route.limit, color.capacity / static_cast<double>(use->times));
      else if (!color.slack)
        shared.push_back({color.link, use->times});
    }
    route.flows = !shared.empty();
    if (route.flows) route.route = out_.table_.add(shared);
  }
  [[nodiscard]] std::vector<std::uint32_t> colors_of(const std::vector<LinkUse>& member) const {
    std::vector<std::uint32_t> colors;
    for (const LinkUse& use : member) colors.push_back(color_of_[use.link]);
    std::sort(colors.begin(), colors.end());
    colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
    return colors;
  }

  // Puts lanes into one set if they share a link, a lockstep group or a barrier.
  void find_lane_sets() {
    std::vector<int>& set = out_.lane_sets_ = positions<int>(program_.lanes.size());
    const auto join = [&](int a, int b) {
      const int from = set[at(std::max(a, b))], to = set[at(std::min(a, b))];
      if (from != to)
        for (int& p : set)
          if (p == std::max(from, to)) p = std::min(from, to);
    };
    const bool barriers = std::any_of(program_.lanes.begin(), program_.lanes.end(), [&](const OpLane& lane) {
      return lane.barrier_group != program_.lanes.front().barrier_group;
    });
    for (std::size_t l = 1; l < set.size(); ++l) {
      const OpLane& lane = program_.lanes[l];
      if (barriers) join(0, static_cast<int>(l));
      for (std::size_t other = 0; lane.lockstep != kNoLockstep && other < l; ++other)
        if (program_.lanes[other].lockstep == lane.lockstep)
          join(static_cast<int>(other), static_cast<int>(l));
    }
    for (const Color& color : colors_) {
      int before = -1;
      for (const Use& use : color.users) {
        const int lane = flows_[use.flow].lane;
        if (lane >= 0 && before >= 0 && lane != before) join(before, lane);
        if (lane >= 0) before = lane;
      }
    }
  }

  NetworkRoutes& out_;
  const OpProgram& program_;
  const RankGrid& grid_;
  const Fabric& fabric_;
  std::vector<double> capacities_;
  int tensor_ = 1;  // real
  bool reduce_ = true;
  std::vector<std::vector<int>> replicas_;  // GPUs of each (stage, TP coordinate), by replica
  std::vector<Flow> flows_;
  std::vector<std::vector<int>> rings_;  // rings of the flow under construction
  std::vector<std::uint32_t> color_of_;  // by link of the fabric
  std::vector<Color> colors_;
};

NetworkRoutes::NetworkRoutes(const OpProgram& program, const RankGrid& grid, const Fabric& fabric,
                             bool reduce) {
  Builder(*this, program, grid, fabric).build(reduce);
}

const OpRoute& NetworkRoutes::collective(std::size_t lane, std::size_t stage, SyncGroup sync,
                                         std::size_t group, OpName name) const {
  switch (sync) {
    case SyncGroup::context: {
      const Stage& here = lanes_[lane][stage];
      return (name == OpName::cp_all_to_all && !here.inside.empty() ? here.inside : here.context)[group];
    }
    case SyncGroup::tensor:
      return lanes_[lane][stage].tensor[group];
    case SyncGroup::expert:
      return experts_[at(lockstep_of_[lane])][stage][group];
    default:
      return replicas_[at(lockstep_of_[lane])][stage][group];
  }
}

const OpRoute& NetworkRoutes::transfer(std::size_t lane, std::size_t from, std::size_t stage,
                                       std::size_t rank) const {
  return lanes_[lane][stage].transfers[from][rank];
}

}  // namespace equipoise
