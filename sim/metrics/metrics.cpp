#include "sim/metrics/metrics.h"

#include <algorithm>

namespace equipoise {
namespace {

// Mean over full steps of a value that some steps may lack.
class Mean {
 public:
  void add(Metric value) {
    if (!value) return;
    sum_ += *value;
    ++count_;
  }
  [[nodiscard]] Metric value() const { return count_ == 0 ? Metric{} : Metric{sum_ / count_}; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

Metric latency_imbalance(const Step& step, const StepResult& result) {
  std::vector<double> latencies;
  std::size_t places = 0;
  for (const Lane& lane : step.lanes) places += lane.micro_batches.size();
  latencies.reserve(places);
  for (const Picoseconds t : result.forward_latency) latencies.push_back(to_seconds(t));
  latencies.resize(std::max(places, latencies.size()), 0);  // lanes that had nothing to do
  return imbalance_degree(latencies);
}

}  // namespace

Metrics measure(const MetricInputs& in) {
  Metrics m;
  const PlanMetrics plan = plan_metrics(in.batches, in.plan);
  m.attention_imbalance = plan.attention_imbalance;
  m.abr = plan.abr;
  m.dbr = plan.dbr;
  m.cr = plan.cr;
  m.ave_t = plan.ave_t;
  m.carried_tokens = plan.carried_tokens;
  m.token_delay_mean = plan.token_delay_mean;
  m.token_delay_max = plan.token_delay_max;

  const bool any_full =
      std::any_of(in.plan.steps.begin(), in.plan.steps.end(), [](const Step& s) { return !s.tail; });
  Mean step_seconds, bubble, imbalance, gpu, cp, kv, recompute, padding, cr;
  std::array<Mean, kStreams> exposed;
  double flops = 0;
  for (std::size_t i = 0; i < in.steps.size(); ++i) {
    const StepResult& r = in.steps[i];
    const double seconds = to_seconds(r.step);
    m.seconds += seconds;
    m.tokens += static_cast<double>(r.tokens);
    flops += in.model.training_flops(static_cast<double>(r.tokens), r.causal_pairs);
    ++m.steps;
    m.tail_steps += in.plan.steps[i].tail;
    if (in.plan.steps[i].tail && any_full) continue;
    if (seconds <= 0) continue;
    step_seconds.add(seconds);
    bubble.add(r.bubble_ratio);
    imbalance.add(latency_imbalance(in.plan.steps[i], r));
    if (r.compute_mean > 0) gpu.add(r.compute_max / r.compute_mean);
    cp.add(r.cp_imbalance);
    if (r.kv_sent_tokens > 0) kv.add(r.kv_useful_tokens / r.kv_sent_tokens);
    recompute.add(r.recompute_seconds / seconds);
    if (r.computed_tokens > 0)
      padding.add(1.0 - static_cast<double>(r.tokens) / static_cast<double>(r.computed_tokens));
    if (r.tokens > 0) cr.add(static_cast<double>(r.distributed_tokens) / static_cast<double>(r.tokens));
    for (std::size_t s = 0; s < kStreams; ++s) exposed[s].add(r.exposed_seconds[s] / seconds);
  }
  m.step_seconds = step_seconds.value();
  m.bubble_ratio = bubble.value();
  m.imbalance_degree = imbalance.value();
  m.gpu_compute_imbalance = gpu.value();
  m.cp_imbalance = cp.value();
  m.kv_useful_ratio = kv.value();
  m.recompute_ratio = recompute.value();
  m.cr = cr.value();  // from what ran: dacp decides placements while sharding
  // Packs count padding to their pack length (the plan's own figure), other runs what was computed.
  m.pr = plan.pr ? plan.pr : padding.value();
  for (std::size_t s = 1; s < kStreams; ++s) m.exposed_comm_ratio[s] = exposed[s].value();
  if (m.seconds > 0) {
    const double gpus = static_cast<double>(in.layout.gpus());
    m.tokens_per_second_per_gpu = m.tokens / m.seconds / gpus;
    m.mfu = flops / (m.seconds * gpus * in.peak_flops);
  }
  return m;
}

void compare(const Metrics& baseline, std::span<const StepResult> steps, std::span<const char> tail,
             Metrics& metrics) {
  if (metrics.tokens <= 0 || baseline.tokens <= 0 || metrics.seconds <= 0) return;
  const double per_token = baseline.seconds / baseline.tokens;
  metrics.speedup = per_token / (metrics.seconds / metrics.tokens);
  std::vector<double> each;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (!tail[i] && steps[i].tokens > 0)
      each.push_back(per_token / (to_seconds(steps[i].step) / static_cast<double>(steps[i].tokens)));
  if (each.size() < 2) return;
  std::sort(each.begin(), each.end());
  const auto quantile = [&each](double p) {
    return each[static_cast<std::size_t>(p * static_cast<double>(each.size() - 1) + 0.5)];
  };
  metrics.speedup_low = quantile(0.05);
  metrics.speedup_high = quantile(0.95);
}

}  // namespace equipoise
