#include "sim/step/flow_network.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace equipoise {
namespace {

constexpr std::uint32_t kNotInHeap = 0xffffffffU;

}  // namespace

RouteId RouteTable::add(std::span<const LinkUse> links) {
  uses.insert(uses.end(), links.begin(), links.end());
  first.push_back(static_cast<std::uint32_t>(uses.size()));
  return static_cast<RouteId>(routes() - 1);
}

FlowNetwork::FlowNetwork(const RouteTable& routes) : routes_(routes) {
  users_.resize(routes.capacities.size());
  seen_link_.assign(users_.size(), 0);
  link_place_.assign(users_.size(), 0);
  alone_.reserve(routes.uses.size());
  for (const LinkUse& use : routes.uses)
    alone_.push_back(routes.capacities[use.link] / static_cast<double>(use.times));
}

std::uint32_t FlowNetwork::insert(const Flow& flow) {
  auto slot = static_cast<std::uint32_t>(flows_.size());
  if (free_.empty()) {
    flows_.push_back(flow);
    place_.push_back(kNotInHeap);
    seen_flow_.push_back(0);
  } else {
    slot = free_.back();
    free_.pop_back();
    flows_[slot] = flow;
    place_[slot] = kNotInHeap;
  }
  for (const LinkUse& use : routes_.of(flow.route)) users_[use.link].push_back(slot);
  counts_.most_flows = std::max(counts_.most_flows, flows_.size() - free_.size());
  return slot;
}

void FlowNetwork::start(RouteId route, double cap, double limit, Picoseconds alone, const FlowTag& tag,
                        Picoseconds now) {
  assert(alone > 0 && cap > 0 && limit > 0);
  changed_flows_.push_back(insert({route, tag, cap, limit, static_cast<double>(alone), 0, now, kNever}));
  ++counts_.flows;
}

void FlowNetwork::remove(std::uint32_t flow) {
  for (const LinkUse& use : routes_.of(flows_[flow].route)) {
    std::vector<std::uint32_t>& users = users_[use.link];
    *std::find(users.begin(), users.end(), flow) = users.back();
    users.pop_back();
    if (!users.empty()) changed_links_.push_back(use.link);
  }
  free_.push_back(flow);
}

FlowTag FlowNetwork::pop() {
  const std::uint32_t flow = heap_.front();
  const std::uint32_t last = heap_.back();
  heap_.pop_back();
  if (last != flow) {
    place(last, 0);
    sift(last);
  }
  remove(flow);
  return flows_[flow].tag;
}

void FlowNetwork::sift(std::uint32_t flow) {
  std::size_t at = place_[flow];
  for (; at > 0 && before(flow, heap_[(at - 1) / 2]); at = (at - 1) / 2) place(heap_[(at - 1) / 2], at);
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], flow)) break;
    place(heap_[child], at);
    at = child;
  }
  place(flow, at);
}

// Adds a flow to the part to be solved. A link that no other flow uses only caps it.
void FlowNetwork::visit(std::uint32_t flow) {
  if (seen_flow_[flow] == round_) return;
  seen_flow_[flow] = round_;
  Member member{flow, std::min(flows_[flow].cap, flows_[flow].limit),
                static_cast<std::uint32_t>(member_uses_.size()), 0, 0};
  const double* alone = alone_.data() + routes_.first[flows_[flow].route];
  for (const LinkUse& use : routes_.of(flows_[flow].route)) {
    const double fills = *alone++;
    if (users_[use.link].size() == 1) {
      member.cap = std::min(member.cap, fills);
      continue;
    }
    if (seen_link_[use.link] != round_) {
      seen_link_[use.link] = round_;
      link_place_[use.link] = static_cast<std::uint32_t>(links_.size());
      links_.push_back({routes_.capacities[use.link], 0, 0, false});
      open_links_.push_back(use.link);
    }
    Link& link = links_[link_place_[use.link]];
    link.claims += use.times;
    member_uses_.push_back({link_place_[use.link], use.times});
  }
  member.count = static_cast<std::uint32_t>(member_uses_.size()) - member.first;
  members_.push_back(member);
}

void FlowNetwork::settle(Picoseconds now) {
  if (changed_links_.empty() && changed_flows_.empty()) return;
  ++round_;
  // Disjoint parts could be solved together with the same result. Solving them one by one keeps the cost of a
  // large instant from becoming their product.
  const auto solve_part = [&] {
    while (!open_links_.empty()) {
      const std::uint32_t link = open_links_.back();
      open_links_.pop_back();
      for (const std::uint32_t user : users_[link]) visit(user);
    }
    if (!members_.empty()) solve(now);
    members_.clear();
    member_uses_.clear();
    links_.clear();
  };
  for (const std::uint32_t flow : changed_flows_) {
    visit(flow);
    solve_part();
  }
  for (const std::uint32_t link : changed_links_)
    for (std::size_t i = 0; i < users_[link].size(); ++i) {
      visit(users_[link][i]);
      solve_part();
    }
  changed_links_.clear();
  changed_flows_.clear();
}

// Progressive filling: all rates grow together, and flows stop at a full link or at their cap.
void FlowNetwork::fill_links() {
  growing_.resize(members_.size());
  for (std::uint32_t m = 0; m < growing_.size(); ++m) growing_[m] = m;
  while (!growing_.empty()) {
    double level = std::numeric_limits<double>::infinity();
    for (const Link& link : links_)
      if (link.claims > 0) level = std::min(level, link.left / static_cast<double>(link.claims));
    for (const std::uint32_t m : growing_) level = std::min(level, members_[m].cap);
    for (Link& link : links_)
      link.tight = link.claims > 0 && link.left / static_cast<double>(link.claims) == level;
    const auto stops = [&](std::uint32_t m) {
      Member& member = members_[m];
      const std::span<const LinkUse> uses = std::span(member_uses_).subspan(member.first, member.count);
      if (member.cap > level &&
          std::none_of(uses.begin(), uses.end(), [&](const LinkUse& u) { return links_[u.link].tight; }))
        return false;
      member.rate = level;
      for (const LinkUse& use : uses) links_[use.link].stopped += use.times;
      return true;
    };
    growing_.erase(std::remove_if(growing_.begin(), growing_.end(), stops), growing_.end());
    for (Link& link : links_) {
      if (link.stopped == 0) continue;
      link.left = std::max(0.0, link.left - level * static_cast<double>(link.stopped));
      link.claims -= link.stopped;
      link.stopped = 0;
    }
  }
}

void FlowNetwork::solve(Picoseconds now) {
  ++counts_.solves;
  counts_.solved_flows += static_cast<std::int64_t>(members_.size());
  if (members_.size() == 1)
    members_.front().rate = members_.front().cap;
  else
    fill_links();
  for (const Member& member : members_) set_speed(member.flow, member.rate, now);
}

void FlowNetwork::set_speed(std::uint32_t slot, double rate, Picoseconds now) {
  Flow& flow = flows_[slot];
  const double speed = rate / flow.cap;
  if (speed == flow.speed) return;
  flow.left = std::max(0.0, flow.left - flow.speed * static_cast<double>(now - flow.since));
  flow.speed = speed;
  flow.since = now;
  const double takes = std::ceil(flow.left / speed);
  if (!(takes < kLongestSeconds * kPicosecondsPerSecond - static_cast<double>(now)))
    refuse_time("a flow over a link that it shares", takes / kPicosecondsPerSecond);
  flow.end = now + static_cast<Picoseconds>(takes);
  if (place_[slot] == kNotInHeap) {
    heap_.push_back(slot);
    place_[slot] = static_cast<std::uint32_t>(heap_.size() - 1);
  }
  sift(slot);
}

void FlowNetwork::adopt(FlowNetwork& other) {
  assert(&routes_ == &other.routes_ && changed_flows_.empty() && other.changed_flows_.empty());
  for (const std::uint32_t from : other.heap_) {
    const std::uint32_t slot = insert(other.flows_[from]);
    heap_.push_back(slot);
    place_[slot] = static_cast<std::uint32_t>(heap_.size() - 1);
    sift(slot);
  }
  counts_.flows += other.counts_.flows;
  counts_.solves += other.counts_.solves;
  counts_.solved_flows += other.counts_.solved_flows;
  counts_.most_flows = std::max(counts_.most_flows, other.counts_.most_flows);
  other.heap_.clear();
  other.flows_.clear();
  other.free_.clear();
}

}  // namespace equipoise
