#include "policies/plan_metrics.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "policies/base/index.h"
#include "policies/base/parallel.h"

namespace equipoise {
namespace {

double squared(std::int64_t tokens) {
  const auto t = static_cast<double>(tokens);
  return t * t;
}

// The sum of len^2. A dependent chunk sees the slices before it, so it counts what it adds to its group's
// len^2.
double attention_of(const MicroBatch& micro_batch) {
  double sum = 0;
  for (const Slice& s : micro_batch.slices) {
    if (micro_batch.chunk.count > 1) {
      sum +=
          squared(s.end - micro_batch.chunk.group_begin) - squared(s.begin - micro_batch.chunk.group_begin);
    } else {
      sum += squared(s.tokens());
    }
  }
  return sum;
}

std::int64_t padded_tokens(const MicroBatch& micro_batch) {
  if (micro_batch.pad_each_to > 0)
    return micro_batch.pad_each_to * static_cast<std::int64_t>(micro_batch.slices.size());
  return micro_batch.pack_length > 0 ? micro_batch.pack_length : micro_batch.tokens();
}

std::int64_t distributed_tokens(const MicroBatch& micro_batch) {
  if (micro_batch.placement.empty()) return micro_batch.tokens();
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < micro_batch.slices.size(); ++i)
    if (micro_batch.placement[i] == kDistributed) sum += micro_batch.slices[i].tokens();
  return sum;
}

// sum_i (max - x_i) / (max * n) = 1 - mean / max.
std::optional<double> bubble_share(const std::vector<double>& of_device) {
  const double largest = *std::max_element(of_device.begin(), of_device.end());
  if (!(largest > 0)) return std::nullopt;
  double missing = 0;
  for (const double x : of_device) missing += largest - x;
  return missing / (largest * static_cast<double>(of_device.size()));
}

// The work of a step's devices. A lane's work is spread evenly over its CP ranks. The lanes of a round take
// devices in order; the next round (a barrier group) begins with the first device again.
class Devices {
 public:
  void begin_lane(const Lane& lane, bool same_round) {
    first_ = same_round ? first_ + count_ : 0;
    count_ = at(lane.context);
    if (attention_.size() >= first_ + count_) return;
    attention_.resize(first_ + count_);
    tokens_.resize(first_ + count_);
  }
  void add(double attention, std::int64_t tokens) {
    const auto degree = static_cast<double>(count_);
    for (std::size_t d = first_; d < first_ + count_; ++d) {
      attention_[d] += attention / degree;
      tokens_[d] += static_cast<double>(tokens) / degree;
    }
  }
  [[nodiscard]] std::optional<double> abr() const { return bubble_share(attention_); }
  [[nodiscard]] std::optional<double> dbr() const { return bubble_share(tokens_); }

 private:
  std::vector<double> attention_, tokens_;
  std::size_t first_ = 0, count_ = 0;  // devices of the current lane
};

struct Mean {
  double sum = 0;
  std::int64_t count = 0;
  void add(const std::optional<double>& value) {
    if (!value) return;
    sum += *value;
    ++count;
  }
  [[nodiscard]] std::optional<double> value() const {
    if (count == 0) return std::nullopt;
    return sum / static_cast<double>(count);
  }
};

// Whether the step counts in means: full steps do, or all steps of a plan without full ones.
class Counted {
 public:
  explicit Counted(const Plan& plan)
      : all_(std::all_of(plan.steps.begin(), plan.steps.end(), [](const Step& s) { return s.tail; })) {}
  bool operator()(const Step& step) const { return all_ || !step.tail; }

 private:
  bool all_;
};

// The arrival of each slice. A slice is found by its document, which indexes a table unless ids are
// scattered, and among the few slices of the document by its first token.
class Arrivals {
 public:
  explicit Arrivals(std::span<const GlobalBatch> batches) {
    for (std::size_t b = 0; b < batches.size(); ++b)
      for (const Slice& s : batches[b].slices)
        list_.push_back({s.document, s.begin, static_cast<std::int64_t>(b)});
    const auto before = [](const Arrival& x, const Arrival& y) {
      return x.document != y.document ? x.document < y.document : x.begin < y.begin;
    };
    if (!std::is_sorted(list_.begin(), list_.end(), before)) std::sort(list_.begin(), list_.end(), before);
    if (list_.empty()) return;
    lowest_ = list_.front().document;
    const auto range = static_cast<std::size_t>(list_.back().document - lowest_) + 1;
    if (range > kMostPlaces * list_.size()) return;
    first_.assign(range, list_.size());
    for (std::size_t i = list_.size(); i-- > 0;) first_[at(list_[i].document - lowest_)] = i;
  }

  // The batch of the slice that contains this one.
  [[nodiscard]] std::int64_t batch_of(const Slice& slice) const {
    assert(slice.document >= lowest_);
    std::size_t i = first_of(slice.document);
    assert(i < list_.size() && list_[i].begin <= slice.begin);
    while (i + 1 < list_.size() && list_[i + 1].document == slice.document &&
           list_[i + 1].begin <= slice.begin)
      ++i;
    return list_[i].batch;
  }

 private:
  struct Arrival {
    std::int64_t document, begin, batch;
  };
  static constexpr std::size_t kMostPlaces = 16;  // the most table entries per slice

  [[nodiscard]] std::size_t first_of(std::int64_t document) const {
    if (!first_.empty()) return first_[at(document - lowest_)];
    const auto found = std::ranges::lower_bound(list_, document, {}, &Arrival::document);
    return static_cast<std::size_t>(found - list_.begin());
  }

  std::vector<Arrival> list_;
  std::int64_t lowest_ = 0;
  std::vector<std::size_t> first_;  // index of each document's first slice; empty: ids are scattered
};

// Calls visit(delay in iterations, tokens) for every slice of step k.
template <class Visit>
void each_delay(const Arrivals& arrivals, const Plan& plan, std::size_t k, Visit&& visit) {
  for (const Lane& lane : plan.steps[k].lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices)
        visit(std::max<std::int64_t>(0, static_cast<std::int64_t>(k) - arrivals.batch_of(slice)),
              slice.tokens());
}

void add_delays(std::span<const GlobalBatch> batches, const Plan& plan, int threads, PlanMetrics& metrics) {
  struct Delays {
    double sum = 0, tokens = 0;  // sums of whole numbers, exact in any order
    std::int64_t largest = 0;
    void add(const Delays& other) {
      sum += other.sum;
      tokens += other.tokens;
      largest = std::max(largest, other.largest);
    }
  };
  const Arrivals arrivals(batches);
  const Counted counted(plan);
  std::vector<Delays> of_step(plan.steps.size());
  parallel_for(threads, of_step.size(), [&](int, std::size_t k) {
    Delays delays;
    each_delay(arrivals, plan, k, [&](std::int64_t delay, std::int64_t tokens) {
      delays.sum += static_cast<double>(delay) * static_cast<double>(tokens);
      delays.tokens += static_cast<double>(tokens);
      delays.largest = std::max(delays.largest, delay);
    });
    of_step[k] = delays;
  });
  Delays all, full;
  std::int64_t held = 0;
  for (std::size_t k = 0; k < of_step.size(); ++k) {
    all.add(of_step[k]);
    if (counted(plan.steps[k]))
      full.add(of_step[k]);
    else
      held = std::max(held, of_step[k].largest);
  }
  if (!(all.tokens > 0)) return;
  metrics.token_delay_mean = all.sum / all.tokens;
  metrics.token_delay_max = static_cast<double>(all.largest);
  metrics.token_delay_held = static_cast<double>(held);
  if (full.tokens > 0 && plan.queue_emptied.value_or(true))
    metrics.token_delay_steady = full.sum / full.tokens;
}

}  // namespace

StepMetrics step_metrics(const Step& step) {
  StepMetrics metrics;
  Devices devices;
  double largest = 0;
  double attention = 0;
  std::int64_t micro_batches = 0;
  std::int64_t padded = 0;
  std::int64_t distributed = 0;
  bool pads = false;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    devices.begin_lane(step.lanes[l],
                       l > 0 && step.lanes[l].barrier_group == step.lanes[l - 1].barrier_group);
    for (const MicroBatch& micro_batch : step.lanes[l].micro_batches) {
      const double own = attention_of(micro_batch);
      const std::int64_t tokens = micro_batch.tokens();
      largest = std::max(largest, own);
      attention += own;
      ++micro_batches;
      metrics.tokens += tokens;
      devices.add(own, tokens);
      padded += padded_tokens(micro_batch);
      pads = pads || micro_batch.pad_each_to > 0 || micro_batch.pack_length > 0;
      if (step.lanes[l].context > 1) distributed += distributed_tokens(micro_batch);
    }
  }
  for (const Slice& s : step.carried) metrics.carried_tokens += s.tokens();
  if (step.lanes.empty()) return metrics;
  const auto tokens = static_cast<double>(metrics.tokens);
  if (attention > 0) metrics.attention_imbalance = largest * static_cast<double>(micro_batches) / attention;
  metrics.abr = devices.abr();
  metrics.dbr = devices.dbr();
  if (pads) metrics.pr = 1 - tokens / static_cast<double>(padded);
  if (metrics.tokens > 0) metrics.cr = static_cast<double>(distributed) / tokens;
  metrics.ave_t = tokens / static_cast<double>(step.lanes.size());
  return metrics;
}

PlanMetrics plan_metrics(std::span<const GlobalBatch> batches, const Plan& plan, int threads) {
  Mean attention_imbalance, abr, dbr, pr, cr, ave_t, carried, tokens;
  const Counted counted(plan);
  std::vector<StepMetrics> of_step(plan.steps.size());
  parallel_for(threads, of_step.size(), [&](int, std::size_t k) {
    if (counted(plan.steps[k]) || plan.sees_whole_set) of_step[k] = step_metrics(plan.steps[k]);
  });
  for (std::size_t k = 0; k < of_step.size(); ++k) {
    const StepMetrics& m = of_step[k];
    if (counted(plan.steps[k]) || plan.sees_whole_set) {  // also for the last iteration of a group
      abr.add(m.abr);
      dbr.add(m.dbr);
      cr.add(m.cr);
    }
    if (!counted(plan.steps[k])) continue;
    attention_imbalance.add(m.attention_imbalance);
    pr.add(m.pr);
    ave_t.add(m.ave_t);
    tokens.add(static_cast<double>(m.tokens));
    carried.add(static_cast<double>(m.carried_tokens));
  }
  PlanMetrics metrics;
  metrics.attention_imbalance = attention_imbalance.value();
  metrics.abr = abr.value();
  metrics.dbr = dbr.value();
  metrics.pr = pr.value();
  metrics.cr = cr.value();
  metrics.ave_t = ave_t.value();
  metrics.tokens_per_step = tokens.value();
  const std::int64_t lost = sum_of(plan.dropped, &Slice::tokens);
  metrics.lost_tokens = static_cast<double>(lost);
  if (plan.queue_emptied) metrics.queue_emptied = *plan.queue_emptied ? 1 : 0;
  if (plan.sees_whole_set) return metrics;
  metrics.carried_tokens = carried.value();
  add_delays(batches, plan, threads, metrics);
  return metrics;
}

std::vector<std::int64_t> tokens_by_delay(std::span<const GlobalBatch> batches, const Plan& plan) {
  std::vector<std::int64_t> tokens;
  if (plan.sees_whole_set) return tokens;
  const Arrivals arrivals(batches);
  for (std::size_t k = 0; k < plan.steps.size(); ++k)
    each_delay(arrivals, plan, k, [&](std::int64_t delay, std::int64_t count) {
      const auto index = static_cast<std::size_t>(delay);
      if (tokens.size() <= index) tokens.resize(index + 1);
      tokens[index] += count;
    });
  return tokens;
}

std::optional<double> imbalance_degree(std::span<const double> latencies) {
  double sum = 0;
  double largest = 0;
  for (const double x : latencies) {
    sum += x;
    largest = std::max(largest, x);
  }
  if (!(sum > 0)) return std::nullopt;
  return largest * static_cast<double>(latencies.size()) / sum;
}

std::optional<double> imbalance_degree(const Plan& plan, std::span<const double> latencies) {
  Mean mean;
  const Counted counted(plan);
  std::size_t first = 0;
  for (const Step& step : plan.steps) {
    std::size_t count = 0;
    for (const Lane& lane : step.lanes) count += lane.micro_batches.size();
    if (counted(step)) mean.add(imbalance_degree(latencies.subspan(first, count)));
    first += count;
  }
  return mean.value();
}

std::vector<double> micro_batch_workloads(const Plan& plan, const Workload& workload) {
  std::vector<std::int64_t> tokens;
  std::vector<std::size_t> end;
  for (const Step& step : plan.steps) {
    for (const Lane& lane : step.lanes) {
      for (const MicroBatch& micro_batch : lane.micro_batches) {
        for (const Slice& s : micro_batch.slices) tokens.push_back(s.tokens());
        end.push_back(tokens.size());
      }
    }
  }
  std::vector<double> work(tokens.size());
  workload.of(tokens, work);
  std::vector<double> sums;
  sums.reserve(end.size());
  std::size_t i = 0;
  for (const std::size_t stop : end) {
    double sum = 0;
    for (; i < stop; ++i) sum += work[i];
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace equipoise
