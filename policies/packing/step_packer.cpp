#include "policies/packing/step_packer.h"

#include <algorithm>
#include <limits>

#include "policies/base/rounding.h"
#include "policies/packing/wlb.h"

namespace equipoise {

std::size_t spread_documents(std::span<const std::uint32_t> documents, std::span<const double> spread,
                             std::span<const double> whole, double ranks) {
  double others = 0;
  for (const std::uint32_t i : documents) others += whole[i];
  std::size_t best = 0;
  double sum = 0, least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k <= documents.size(); ++k) {
    const double next = k < documents.size() ? whole[documents[k]] : 0;
    const double price = sum + std::max(next, others / ranks);
    if (price < least) {
      least = price;
      best = k;
    }
    if (k == documents.size()) break;
    sum += spread[documents[k]];
    others -= next;
  }
  return best;
}

int least_recompute(const MicroBatch& micro_batch, int ranks, std::span<const std::int64_t> most_tokens) {
  if (most_tokens.empty()) return kStudyRecompute;
  // Memory is that of the fullest rank.
  std::vector<std::int64_t> whole(static_cast<std::size_t>(ranks), 0);
  std::int64_t spread = 0;
  for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) {
    const int rank = micro_batch.placement.empty() ? kDistributed : micro_batch.placement[i];
    (rank == kDistributed ? spread : whole[static_cast<std::size_t>(rank)]) += micro_batch.slices[i].tokens();
  }
  const std::int64_t tokens = spread + ranks * *std::max_element(whole.begin(), whole.end());
  const auto found = std::lower_bound(most_tokens.begin(), most_tokens.end(), tokens);
  return found == most_tokens.end() ? kStudyRecompute : static_cast<int>(found - most_tokens.begin());
}

std::span<const std::int64_t> recompute_at(const EquipoiseOptions& options, int degree) {
  const auto known = options.recompute.find(degree);
  return known == options.recompute.end() ? std::span<const std::int64_t>() : known->second;
}

void recompute_least(Plan& plan, const EquipoiseOptions& options) {
  for (Step& step : plan.steps)
    for (Lane& lane : step.lanes)
      for (MicroBatch& micro_batch : lane.micro_batches)
        if (micro_batch.chunk.count == 1)
          micro_batch.recompute_layers =
              least_recompute(micro_batch, lane.context, recompute_at(options, lane.context));
}

std::vector<std::int64_t> tokens_by_recompute(const PackOptions& options, const PlanPrices& prices) {
  const int context = std::max(1, options.context);
  std::int64_t fit = 0, largest = options.max_tokens;
  if (prices.layers(largest, context) < 0) {
    for (std::int64_t too_many = largest; too_many - fit > 1;) {
      const std::int64_t middle = fit + (too_many - fit) / 2;
      (prices.layers(middle, context) >= 0 ? fit : too_many) = middle;
    }
    largest = fit;
  }
  if (largest < 1) return {};
  const int all = prices.layers(largest, context);
  std::vector<std::int64_t> most;
  fit = 0;
  for (int layers = 0; layers < all; ++layers) {
    std::int64_t too_many = largest;
    while (too_many - fit > 1) {
      const std::int64_t middle = fit + (too_many - fit) / 2;
      (prices.layers(middle, context) <= layers ? fit : too_many) = middle;
    }
    most.push_back(fit);
  }
  if (all > 0) most.push_back(largest);
  return most;
}

void set_recompute(PackOptions& options, const PlanPrices& prices) {
  EquipoiseOptions& own = options.of<EquipoiseOptions>();
  own.recompute.clear();
  const int context = std::max(1, options.context);
  const auto note_degree = [&](int degree) {
    std::vector<std::int64_t> most = tokens_by_recompute(of_degree(options, degree), prices);
    if (!most.empty()) own.recompute[degree] = std::move(most);
  };
  note_degree(context);
  if (own.own_degrees)
    for (const int degree : prices.degrees)
      if (degree != context) note_degree(degree);
}

PipelineClock& LaneShapes::clock(std::size_t micro_batches) {
  const auto known = clocks_.find(micro_batches);
  if (known != clocks_.end()) return known->second;
  return clocks_.emplace(micro_batches, PipelineClock(stages_, chunks_, micro_batches)).first->second;
}

const std::vector<double>& LaneShapes::shares(std::size_t micro_batches, double fixed, double forward,
                                              double most) {
  constexpr double kParts = 64;
  const double fixed_parts = 16 * static_cast<double>(micro_batches);  // a sixteenth of an even share
  const auto rounded = [](double value, double parts) {
    return static_cast<std::int64_t>(std::clamp(value, 0.0, 1.0) * parts + 0.5);
  };
  const std::array<std::int64_t, 4> key = {static_cast<std::int64_t>(micro_batches),
                                           rounded(fixed, fixed_parts), rounded(forward, kParts),
                                           rounded(most, kParts)};
  std::vector<double>& known = shares_[key];
  if (known.empty())
    known = best_shares(clock(micro_batches), static_cast<double>(key[1]) / fixed_parts,
                        static_cast<double>(key[2]) / kParts, static_cast<double>(key[3]) / kParts);
  return known;
}

PackOptions of_degree(const PackOptions& options, int degree) {
  const EquipoiseOptions& given = options.of<EquipoiseOptions>();
  PackOptions other = options;
  const int context = std::max(1, options.context);
  other.context = degree;
  other.lanes = std::max(1, options.lanes) * context / degree;
  other.waiting_lanes = std::max(1, static_cast<int>(waiting_lanes(options)) * context / degree);
  other.max_tokens = tokens_at_degree(max_tokens(options), options, degree);
  EquipoiseOptions& own = other.of<EquipoiseOptions>() = EquipoiseOptions();
  own.start = given.start;
  if (const auto most = recompute_at(given, degree); !most.empty()) {
    own.recompute[degree].assign(most.begin(), most.end());
    other.max_tokens = std::min(other.max_tokens, most.back());
  }
  return other;
}

bool ordered_alike(const Step& step, const PackOptions& options) {
  const std::size_t waiting = options.stages > 1 ? waiting_lanes(options) : 1;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const std::vector<MicroBatch>& first = step.lanes[l / waiting * waiting].micro_batches;
    const std::vector<MicroBatch>& own = step.lanes[l].micro_batches;
    for (std::size_t j = 0; j < std::max(first.size(), own.size()); ++j)
      if ((j < first.size() ? first[j].chunk.count : 1) != (j < own.size() ? own[j].chunk.count : 1))
        return false;
  }
  return true;
}

std::int64_t micro_batches_of_lane(const PackOptions& options, std::int64_t tokens) {
  const std::int64_t lanes = std::max(1, options.lanes);
  const std::int64_t of_step = micro_batches_of_step(options);
  const std::int64_t needed = (tokens + tokens / 32) / (lanes * max_tokens(options)) + 1;
  return rounded_up(std::max((of_step + lanes - 1) / lanes, needed), std::max(1, options.lane_round));
}

std::optional<Step> StepPacker::repacked(const Step& start) {
  const std::size_t waiting = waiting_lanes(options_);
  std::vector<Slice> whole;
  std::vector<std::vector<MicroBatch>> cut(start.lanes.size());
  Behind behind{0, std::vector<double>((cut.size() + waiting - 1) / waiting)};
  std::int64_t tokens = 0, most = 0;
  for (std::size_t l = 0; l < cut.size(); ++l) {
    double work = 0;
    for (const MicroBatch& m : start.lanes[l].micro_batches) {
      tokens += m.tokens();
      if (m.chunk.count == 1) {
        whole.insert(whole.end(), m.slices.begin(), m.slices.end());
        continue;
      }
      cut[l].push_back(m);
      work += workload_.of_micro_batch(m, start.lanes[l].context).total();
    }
    behind.places = std::max(behind.places, cut[l].size());
    behind.work[l / waiting] = std::max(behind.work[l / waiting], work);
    most = std::max(most, static_cast<std::int64_t>(start.lanes[l].micro_batches.size()));
  }
  // However many micro-batches there are, none has room for a document above L_max.
  if (std::ranges::any_of(whole, [&](const Slice& slice) { return slice.tokens() > shape_.max_tokens; }))
    return std::nullopt;
  const std::int64_t round = std::max(1, options_.lane_round);
  std::int64_t fewest = micro_batches_of_lane(options_, tokens);
  if (equipoise_cuts_long(options_)) fewest = std::max(fewest, most);  // as many as its chunks
  if (behind.places > 0) fewest = std::max<std::int64_t>(1, most - static_cast<std::int64_t>(behind.places));
  const std::int64_t more = rounded_up((fewest + 3) / 4, round);
  for (std::int64_t per_lane = fewest; per_lane <= 2 * fewest + more; per_lane += more) {
    if (auto lanes = pack(whole, static_cast<std::size_t>(per_lane), behind)) {
      Step step;
      step.lanes = std::move(*lanes);
      step.carried = start.carried;
      step.tail = start.tail;
      for (std::size_t l = 0; l < cut.size(); ++l) {
        std::vector<MicroBatch>& lane = step.lanes[l].micro_batches;
        lane.insert(lane.end(), cut[l].begin(), cut[l].end());
        lane.resize(static_cast<std::size_t>(rounded_up(static_cast<std::int64_t>(lane.size()), round)));
      }
      return step;
    }
  }
  return std::nullopt;
}

std::pair<double, double> StepPacker::fixed_time() const {
  const int ranks = std::max(1, options_.context);
  MicroBatch one;
  one.slices = {{0, 0, 1}};
  const PassTimes least = workload_.of_micro_batch(one, ranks);
  const std::int64_t token[] = {1};
  double of_token[] = {0};
  workload_.spread(token, ranks, of_token);
  return {std::max(0.0, least.total() - of_token[0]),
          least.total() > 0 ? least.forward / least.total() : 1.0 / 3};
}

double StepPacker::seconds(const Step& step) {
  const std::size_t waiting = waiting_lanes(options_);
  const PassTimes shared = shared_per_token();
  double slowest = 0;
  for (std::size_t first = 0; first < step.lanes.size(); first += waiting) {
    const std::size_t end = std::min(step.lanes.size(), first + waiting);
    std::vector<SharedPlace> places;
    for (std::size_t l = first; l < end; ++l) {
      const Lane& lane = step.lanes[l];
      if (places.size() < lane.micro_batches.size())
        places.resize(lane.micro_batches.size(), {shared, end - first});
      for (std::size_t j = 0; j < lane.micro_batches.size(); ++j)
        if (const MicroBatch& micro_batch = lane.micro_batches[j]; !micro_batch.slices.empty())
          places[j].add(workload_.of_micro_batch(micro_batch, lane.context), micro_batch.tokens());
    }
    const std::vector<PassTimes> times = each_of(places, &SharedPlace::times);
    if (!times.empty()) slowest = std::max(slowest, lane_shapes_.clock(times.size()).makespan(times));
  }
  return slowest;
}

}  // namespace equipoise
