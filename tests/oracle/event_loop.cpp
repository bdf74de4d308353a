#include "tests/oracle/event_loop.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <string>
#include <tuple>

namespace equipoise {
namespace {

constexpr std::uint32_t kNoFlow = 0xffffffffU;

struct Event {
  Picoseconds at = 0;
  TaskId task = kNoTask;
  std::uint32_t version = 0;  // of a flow's rate: older predictions of its end are void
};

struct FiresLater {
  bool operator()(const Event& a, const Event& b) const {
    return std::tie(a.at, a.task, a.version) > std::tie(b.at, b.task, b.version);
  }
};

class EventLoop {
 public:
  EventLoop(const TaskGraph& graph, const LinkTraffic& traffic)
      : graph_(graph),
        traffic_(traffic),
        durations_(graph.durations()),
        share_(traffic.capacities()),
        pending_(graph.predecessor_counts().begin(), graph.predecessor_counts().end()),
        flow_of_(graph.tasks(), kNoFlow),
        flows_(traffic.flows().size()) {
    result_.start.assign(graph.tasks(), 0);
    result_.end.assign(graph.tasks(), 0);
    for (std::uint32_t f = 0; f < traffic.flows().size(); ++f) prepare(f);
  }

  EngineResult run() {
    for (TaskId t = 0; t < graph_.tasks(); ++t)
      if (pending_[t] == 0) start(t);
    share_rates();
    while (!events_.empty()) {
      now_ = events_.top().at;
      while (!events_.empty() && events_.top().at == now_) {
        const Event event = events_.top();
        events_.pop();
        if (!is_void(event)) finish(event.task);
      }
      share_rates();
    }
    if (ended_ != graph_.tasks()) {
      for (TaskId t = 0; t < graph_.tasks(); ++t) pending_[t] = std::min<std::uint32_t>(pending_[t], 1);
      throw EngineError(describe_stall(graph_, pending_));
    }
    return std::move(result_);
  }

 private:
  struct Flow {
    FairShare::Flow shared;
    double left = 0;   // picoseconds of work at its own pace
    double speed = 0;  // share of that pace it gets
    Picoseconds since = 0;
    std::uint32_t version = 0;
  };

  void prepare(std::uint32_t f) {
    const LinkTraffic::Flow& given = traffic_.flows()[f];
    if (given.task >= graph_.tasks())
      throw EngineError("traffic of task " + std::to_string(given.task) + ", which does not exist");
    if (flow_of_[given.task] != kNoFlow)
      throw EngineError("traffic given twice for " + graph_.describe(given.task));
    if (!(given.bytes >= 0) || std::isinf(given.bytes))
      throw EngineError(graph_.describe(given.task) + " moves " + std::to_string(given.bytes) + " bytes");
    for (const LinkUse& use : traffic_.uses(given))
      if (use.link >= traffic_.capacities().size() || use.times < 1)
        throw EngineError(graph_.describe(given.task) + " uses a link that does not exist");
    // Tasks that take no time or move nothing load no link.
    if (durations_[given.task] == 0 || given.bytes == 0 || given.count == 0) return;
    flow_of_[given.task] = f;
    Flow& flow = flows_[f];
    flow.shared.links = traffic_.uses(given);
    flow.shared.cap = given.bytes / (static_cast<double>(durations_[given.task]) / kPicosecondsPerSecond);
  }

  [[nodiscard]] bool is_void(const Event& event) const {
    const std::uint32_t f = flow_of_[event.task];
    return f != kNoFlow && flows_[f].version != event.version;
  }

  void start(TaskId task) {
    result_.start[task] = now_;
    const std::uint32_t f = flow_of_[task];
    if (f == kNoFlow) {
      Picoseconds end = 0;
      if (__builtin_add_overflow(now_, durations_[task], &end))
        throw EngineError("simulated time passed what the clock can hold (106 days)");
      events_.push({end, task, 0});
      return;
    }
    flows_[f].left = static_cast<double>(durations_[task]);
    flows_[f].speed = 0;
    flows_[f].since = now_;
    active_.insert(std::lower_bound(active_.begin(), active_.end(), f), f);
    changed_ = true;
  }

  void finish(TaskId task) {
    result_.end[task] = now_;
    result_.makespan = now_;  // not the last event, which may be an end that was predicted and is void
    ++ended_;
    if (const std::uint32_t f = flow_of_[task]; f != kNoFlow) {
      ++flows_[f].version;
      active_.erase(std::lower_bound(active_.begin(), active_.end(), f));
      changed_ = true;
    }
    for (const TaskId next : graph_.successors(task))
      if (--pending_[next] == 0) start(next);
  }

  // New rates for all active flows; those whose rate changed get a new end.
  void share_rates() {
    if (!changed_) return;
    changed_ = false;
    sharing_.clear();
    for (const std::uint32_t f : active_) sharing_.push_back(&flows_[f].shared);
    share_.share(sharing_);
    for (const std::uint32_t f : active_) {
      Flow& flow = flows_[f];
      const double speed = flow.shared.rate / flow.shared.cap;
      if (speed == flow.speed) continue;
      flow.left = std::max(0.0, flow.left - flow.speed * static_cast<double>(now_ - flow.since));
      flow.speed = speed;
      flow.since = now_;
      ++flow.version;
      const double takes = std::ceil(flow.left / speed);
      if (!(takes < kLongestSeconds * kPicosecondsPerSecond - static_cast<double>(now_)))
        throw EngineError(graph_.describe(traffic_.flows()[f].task) +
                          " would never end: its share of a link is " + std::to_string(flow.shared.rate) +
                          " bytes/s");
      events_.push({now_ + static_cast<Picoseconds>(takes), traffic_.flows()[f].task, flow.version});
    }
  }

  const TaskGraph& graph_;
  const LinkTraffic& traffic_;
  std::span<const Picoseconds> durations_;
  FairShare share_;
  std::vector<std::uint32_t> pending_;
  std::vector<std::uint32_t> flow_of_;  // by task
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> active_;  // rising
  std::vector<FairShare::Flow*> sharing_;
  std::priority_queue<Event, std::vector<Event>, FiresLater> events_;
  EngineResult result_;
  Picoseconds now_ = 0;
  std::size_t ended_ = 0;
  bool changed_ = false;
};

}  // namespace

void LinkTraffic::add(TaskId task, std::span<const LinkUse> links, double bytes) {
  flows_.push_back(
      {task, static_cast<std::uint32_t>(uses_.size()), static_cast<std::uint32_t>(links.size()), bytes});
  uses_.insert(uses_.end(), links.begin(), links.end());
}

EngineResult run_with_contention(const TaskGraph& graph, const LinkTraffic& traffic) {
  return EventLoop(graph, traffic).run();
}

}  // namespace equipoise
