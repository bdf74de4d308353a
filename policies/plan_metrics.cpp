#include "policies/plan_metrics.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <iterator>

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

Arrivals::Arrivals(const Batches& batches) {
  const auto before = [](const Begin& x, const Begin& y) {
    return x.document != y.document ? x.document < y.document : x.begin < y.begin;
  };
  const auto collect = [&](bool all) {
    Begin last{};
    bool rises = true;
    begins_.clear();
    for (std::size_t b = 0; b < batches.size(); ++b)
      for (const GlobalBatch batch = batches[b]; const Slice& s : batch.slices) {
        const Begin own{s.document, s.begin, static_cast<std::int64_t>(b)};
        rises = rises && (begins_.empty() || !before(own, last));
        if (all || begins_.empty() || begins_.back().batch != own.batch) begins_.push_back(own);
        last = own;
      }
    return rises;
  };
  if (collect(false)) return;
  collect(true);
  std::ranges::stable_sort(begins_, before);
  const auto repeated = std::ranges::unique(begins_, {}, &Begin::batch);
  begins_.erase(repeated.begin(), repeated.end());
}

// Whether the slice lies between begin i and the next.
bool Arrivals::holds(std::size_t i, const Slice& slice) const {
  const auto after = [&](const Begin& begin) {
    return begin.document != slice.document ? begin.document < slice.document : begin.begin <= slice.begin;
  };
  return i < begins_.size() && after(begins_[i]) && (i + 1 == begins_.size() || !after(begins_[i + 1]));
}

std::int64_t Arrivals::batch_of(const Slice& slice, std::int64_t near) const {
  if (const auto i = static_cast<std::size_t>(near); holds(i, slice)) return begins_[i].batch;
  const auto before = [](const Slice& s, const Begin& begin) {
    return s.document != begin.document ? s.document < begin.document : s.begin < begin.begin;
  };
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), slice, before);
  assert(next != begins_.begin());
  return std::prev(next)->batch;
}

std::int64_t Arrivals::delay(const Slice& slice, std::size_t k) const {
  const auto step = static_cast<std::int64_t>(k);
  return std::max<std::int64_t>(0, step - batch_of(slice, step));
}

// Calls visit(slice) for every slice of a step.
template <class Visit>
static void each_slice(const Step& step, Visit&& visit) {
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices) visit(slice);
}

StepDelays Arrivals::delays(const Step& step, std::size_t k) const {
  StepDelays delays;
  each_slice(step, [&](const Slice& slice) {
    const std::int64_t waited = delay(slice, k);
    delays.sum += static_cast<double>(waited) * static_cast<double>(slice.tokens());
    delays.tokens += static_cast<double>(slice.tokens());
    delays.longest = std::max(delays.longest, waited);
  });
  return delays;
}

StepOfPlan step_of_plan(const Step& step, std::size_t k, const Arrivals* arrivals) {
  return {step_metrics(step), arrivals != nullptr ? arrivals->delays(step, k) : StepDelays{}, step.tail};
}

static void add(StepDelays& sum, const StepDelays& delays) {
  sum.sum += delays.sum;
  sum.tokens += delays.tokens;
  sum.longest = std::max(sum.longest, delays.longest);
}

PlanMetrics plan_metrics(const Plan& plan, std::span<const StepOfPlan> steps) {
  Mean attention_imbalance, abr, dbr, pr, cr, ave_t, carried, tokens;
  StepDelays all, full;
  std::int64_t held = 0;
  const CountsInMeans counts_in_means(steps);
  for (const StepOfPlan& step : steps) {
    const StepMetrics& m = step.metrics;
    const bool counts = counts_in_means(step);
    if (counts || plan.sees_whole_set) {  // also for the last iteration of a group
      abr.add(m.abr);
      dbr.add(m.dbr);
      cr.add(m.cr);
    }
    add(all, step.delays);
    if (counts)
      add(full, step.delays);
    else
      held = std::max(held, step.delays.longest);
    if (!counts) continue;
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
  if (!(all.tokens > 0)) return metrics;
  metrics.token_delay_mean = all.sum / all.tokens;
  metrics.token_delay_max = static_cast<double>(all.longest);
  metrics.token_delay_held = static_cast<double>(held);
  if (full.tokens > 0 && plan.queue_emptied.value_or(true))
    metrics.token_delay_steady = full.sum / full.tokens;
  return metrics;
}

PlanMetrics plan_metrics(const Batches& batches, const Plan& plan, int threads) {
  std::optional<Arrivals> arrivals;
  if (!plan.sees_whole_set) arrivals.emplace(batches);
  std::vector<StepOfPlan> steps(plan.steps.size());
  parallel_for(threads, steps.size(), [&](int, std::size_t k) {
    steps[k] = step_of_plan(plan.steps[k], k, arrivals ? &*arrivals : nullptr);
  });
  return plan_metrics(plan, steps);
}

std::vector<std::int64_t> tokens_by_delay(const Batches& batches, const Plan& plan) {
  std::vector<std::int64_t> tokens;
  if (plan.sees_whole_set) return tokens;
  const Arrivals arrivals(batches);
  for (std::size_t k = 0; k < plan.steps.size(); ++k)
    each_slice(plan.steps[k], [&](const Slice& slice) {
      const auto delay = static_cast<std::size_t>(arrivals.delay(slice, k));
      if (tokens.size() <= delay) tokens.resize(delay + 1);
      tokens[delay] += slice.tokens();
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
  const CountsInMeans counts(plan.steps);
  std::size_t first = 0;
  for (const Step& step : plan.steps) {
    std::size_t count = 0;
    for (const Lane& lane : step.lanes) count += lane.micro_batches.size();
    if (counts(step)) mean.add(imbalance_degree(latencies.subspan(first, count)));
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
