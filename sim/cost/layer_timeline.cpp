#include "sim/cost/layer_timeline.h"

namespace equipoise {

void LayerTimeline::reset(int rank_count) {
  summed_ = false;
  ranks = rank_count;
  local.assign(at(rank_count), 0);
  overlap.clear();
  comm.clear();
  exchanges.clear();
}

void LayerTimeline::add_sync(Picoseconds duration) {
  summed_ = false;
  comm.push_back(duration);
  overlap.resize(overlap.size() + at(ranks), 0);
  local.resize(local.size() + at(ranks), 0);
}

Picoseconds LayerTimeline::left_behind(std::size_t run, std::size_t rank) const {
  Picoseconds sum = 0;
  for (const Exchange& exchange : exchanges)
    if (exchange.run == run) sum += exchange.lead[rank] + exchange.alone(rank);
  return sum;
}

void LayerTimeline::append(const LayerTimeline& next) {
  summed_ = false;
  const auto c = at(ranks);
  const std::size_t joint = comm.size();  // this layer's last run, which continues as the other's first
  for (std::size_t i = 0; i < next.exchanges.size(); ++i) {
    Exchange exchange = next.exchanges[i];
    if (i == 0 && exchange.run == 0)
      for (std::size_t r = 0; r < c; ++r) exchange.lead[r] += local[joint * c + r] - left_behind(joint, r);
    exchange.run += joint;
    exchanges.push_back(std::move(exchange));
  }
  for (std::size_t r = 0; r < c; ++r) local[joint * c + r] += next.local[r];
  local.insert(local.end(), next.local.begin() + static_cast<std::ptrdiff_t>(c), next.local.end());
  overlap.insert(overlap.end(), next.overlap.begin(), next.overlap.end());
  comm.insert(comm.end(), next.comm.begin(), next.comm.end());
}

LayerTimeline::Sums LayerTimeline::make_sums() const {
  Sums made;
  made.overlaps = std::any_of(overlap.begin(), overlap.end(), [](Picoseconds t) { return t != 0; });
  if (made.overlaps) return made;
  const auto c = at(ranks);
  for (std::size_t p = 0; p < syncs(); ++p) {
    const Picoseconds* const run = local.data() + (p + 1) * c;
    Picoseconds slowest = 0, with_next = 0;  // of the run; of the run joined with the next layer's first
    for (std::size_t r = 0; r < c; ++r) {
      slowest = std::max(slowest, run[r]);
      with_next = std::max(with_next, run[r] + local[r]);
    }
    const bool last = p + 1 == syncs();
    made.between += comm[p] + (last ? 0 : slowest);
    made.period += comm[p] + (last ? with_next : slowest);
  }
  return made;
}

void LayerTimeline::sum_up() {
  sums_ = make_sums();
  summed_ = true;
}

static void advance_once(const LayerTimeline& layer, std::span<Picoseconds> clock) {
  const auto c = at(layer.ranks);
  const Picoseconds* local = layer.local.data();
  const Picoseconds* overlap = layer.overlap.data();
  for (std::size_t r = 0; r < c; ++r) clock[r] += local[r];
  for (std::size_t p = 0; p < layer.syncs(); ++p) {
    const Picoseconds done = *std::max_element(clock.begin(), clock.end()) + layer.comm[p];
    local += c;
    for (std::size_t r = 0; r < c; ++r) clock[r] = std::max(done, clock[r] + overlap[r]) + local[r];
    overlap += c;
  }
}

// Layers whose ranks compute under synchronisations. Moving all clocks by one time moves the result by the
// same time. So once a layer takes all ranks equally long, further layers do, too.
static void advance_each(const LayerTimeline& layer, int layers, std::span<Picoseconds> clock) {
  const auto c = at(layer.ranks);
  thread_local std::vector<Picoseconds> before;
  advance_once(layer, clock);
  for (int i = 1; i < layers; ++i) {
    before.assign(clock.begin(), clock.end());
    advance_once(layer, clock);
    const Picoseconds period = clock[0] - before[0];
    bool even = true;
    for (std::size_t r = 1; r < c && even; ++r) even = clock[r] - before[r] == period;
    if (!even) continue;
    for (std::size_t r = 0; r < c; ++r) clock[r] += (layers - 1 - i) * period;
    return;
  }
}

void advance_part(const LayerTimeline& layer, std::size_t part, std::span<Picoseconds> clock) {
  const auto c = at(layer.ranks);
  const bool to_end = part == layer.exchanges.size();
  std::size_t run = part == 0 ? 0 : layer.exchanges[part - 1].run;
  const std::size_t last = to_end ? layer.syncs() : layer.exchanges[part].run;
  const std::size_t from = part == 0 ? layer.syncs() + 1 : run;  // the run that exchanges have shortened
  for (;; ++run) {
    if (run == last && !to_end) {
      for (std::size_t r = 0; r < c; ++r) clock[r] += layer.exchanges[part].lead[r];
      return;
    }
    for (std::size_t r = 0; r < c; ++r)
      clock[r] += layer.local[run * c + r] - (run == from ? layer.left_behind(run, r) : 0);
    if (run == last) return;
    const Picoseconds done = *std::max_element(clock.begin(), clock.end()) + layer.comm[run];
    for (std::size_t r = 0; r < c; ++r) clock[r] = std::max(done, clock[r] + layer.overlap[run * c + r]);
  }
}

void advance(const LayerTimeline& layer, int layers, std::span<Picoseconds> clock) {
  if (layers == 0) return;
  const auto c = at(layer.ranks);
  if (layer.syncs() == 0) {
    for (std::size_t r = 0; r < c; ++r) clock[r] += layers * layer.local[r];
    return;
  }
  const LayerTimeline::Sums sums = layer.sums();
  if (sums.overlaps) return advance_each(layer, layers, clock);
  const Picoseconds* const first = layer.local.data();
  const Picoseconds* const last = first + layer.syncs() * c;
  Picoseconds* const time = clock.data();
  Picoseconds together = 0;
  for (std::size_t r = 0; r < c; ++r) together = std::max(together, time[r] + first[r]);
  together += sums.between + (layers - 1) * sums.period;
  for (std::size_t r = 0; r < c; ++r) time[r] = together + last[r];
}

namespace {

struct PairAlone {
  const LayerTimeline& forward;
  const LayerTimeline& backward;
  std::span<Picoseconds> clock, exposed;
  std::vector<Picoseconds>& exchange_end;

  [[nodiscard]] const LayerTimeline& of(PairSide side) const {
    return side == PairSide::forward ? forward : backward;
  }
  void advance(PairSide side, std::size_t part) const { advance_part(of(side), part, clock); }
  void begin(PairSide side, std::size_t exchange) const {
    for (std::size_t r = 0; r < clock.size(); ++r) {
      const auto& begun = of(side).exchanges[exchange];
      exchange_end[r] = clock[r] + begun.duration[r];
      clock[r] += begun.under[r];
      exposed[r] += begun.taken[r];
    }
  }
  void await() const {
    for (std::size_t r = 0; r < clock.size(); ++r) {
      exposed[r] += std::max<Picoseconds>(0, exchange_end[r] - clock[r]);
      clock[r] = std::max(clock[r], exchange_end[r]);
    }
  }
};

}  // namespace

void advance_pair(const LayerTimeline& forward, const LayerTimeline& backward, std::span<Picoseconds> clock,
                  std::span<Picoseconds> exposed) {
  thread_local std::vector<Picoseconds> exchange_end;
  exchange_end.resize(clock.size());
  walk_layer_pair(forward.exchanges.size(), PairAlone{forward, backward, clock, exposed, exchange_end});
}

}  // namespace equipoise
