#include "sim/metrics/metrics.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/random.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

constexpr double kSecondsPerHour = 3600;

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

struct Spread {
  Mean over_mean, over_fastest;
  void add(const GpuSpread& of_step) {
    if (of_step.mean > 0) over_mean.add(of_step.max / of_step.mean);
    if (of_step.min > 0) over_fastest.add(of_step.max / of_step.min);
  }
};

// Idle time of a lane's stages, less what has a name: transfers between stages, and ZeRO's collectives inside
// the pipeline (exposed_seconds[dp] holds those and what follows the pipeline).
double waiting_seconds(const StepTimes& r) {
  const double transfers = r.exposed_seconds[at(Stream::pp)];
  const double inside = r.exposed_seconds[at(Stream::dp)] - to_seconds(r.gradient_wait);
  return std::max(0.0, r.losses.idle_seconds - transfers - std::max(0.0, inside));
}

Metric latency_imbalance(const Step& step, const StepTimes& times) {
  std::vector<double> latencies;
  std::size_t places = 0;
  for (const Lane& lane : step.lanes) places += lane.micro_batches.size();
  latencies.reserve(places);
  for (const Picoseconds t : times.forward_latency) latencies.push_back(to_seconds(t));
  latencies.resize(std::max(places, latencies.size()), 0);  // lanes that had nothing to do
  return imbalance_degree(latencies);
}

}  // namespace

Metrics metrics_of(const MetricInputs& in) {
  Metrics m;
  static_cast<PlanMetrics&>(m) = plan_metrics(in.batches, in.plan, in.threads);

  const bool any_full = std::ranges::any_of(in.plan.steps, [](const Step& s) { return !s.tail; });
  Mean step_seconds, bubble, imbalance, cp, kv, recompute, padding, cr;
  Spread compute, attention;
  Mean waiting, lanes_wait, recompute_alone;
  std::array<Mean, kStreams> exposed;
  double flops = 0;
  for (std::size_t i = 0; i < in.steps.size(); ++i) {
    const StepWork& work = in.steps[i].work;
    const StepTimes& times = in.steps[i].times;
    const double seconds = to_seconds(times.makespan);
    m.seconds += seconds;
    m.tokens += static_cast<double>(work.tokens);
    flops += in.model.training_flops(static_cast<double>(work.tokens), work.causal_pairs, work.window_pairs);
    ++m.steps;
    m.tail_steps += in.plan.steps[i].tail;
    if (in.plan.steps[i].tail && any_full) continue;
    if (seconds <= 0) continue;
    step_seconds.add(seconds);
    bubble.add(times.losses.bubble_ratio);
    imbalance.add(latency_imbalance(in.plan.steps[i], times));
    compute.add(times.compute);
    attention.add(times.attention);
    cp.add(times.cp_imbalance);
    if (work.kv_sent_tokens > 0) kv.add(work.kv_useful_tokens / work.kv_sent_tokens);
    recompute.add(times.recompute_seconds / seconds);
    recompute_alone.add(std::max(0.0, times.recompute_seconds - times.recompute_exposed_seconds) / seconds);
    waiting.add(waiting_seconds(times) / seconds);
    lanes_wait.add(times.losses.lanes_wait_seconds / seconds);
    if (work.computed_tokens > 0)
      padding.add(1.0 - static_cast<double>(work.tokens) / static_cast<double>(work.computed_tokens));
    if (work.tokens > 0)
      cr.add(static_cast<double>(work.distributed_tokens) / static_cast<double>(work.tokens));
    for (std::size_t s = 0; s < kStreams; ++s) exposed[s].add(times.exposed_seconds[s] / seconds);
  }
  m.step_seconds = step_seconds.value();
  m.bubble_ratio = bubble.value();
  m.imbalance_degree = imbalance.value();
  m.gpu_compute_imbalance = compute.over_mean.value();
  m.gpu_compute_slowest_over_fastest = compute.over_fastest.value();
  m.gpu_attention_imbalance = attention.over_mean.value();
  m.gpu_attention_slowest_over_fastest = attention.over_fastest.value();
  m.cp_imbalance = cp.value();
  m.kv_useful_ratio = kv.value();
  m.recompute_ratio = recompute.value();
  m.losses = {waiting.value(), lanes_wait.value(), recompute_alone.value()};
  m.cr = cr.value();  // from what ran: dacp decides placements while sharding
  // Packs count padding to their pack length (the plan's own figure), other runs what was computed.
  if (!m.pr) m.pr = padding.value();
  for (std::size_t s = 1; s < kStreams; ++s) m.exposed_comm_ratio[s] = exposed[s].value();
  if (m.seconds > 0) {
    const double gpus = static_cast<double>(in.layout.gpus());
    m.tokens_per_second_per_gpu = m.tokens / m.seconds / gpus;
    if (m.tokens > 0) m.gpu_hours_per_billion_tokens = m.seconds * gpus / kSecondsPerHour / (m.tokens / 1e9);
    m.mfu = flops / (m.seconds * gpus * in.peak_flops);
  }
  return m;
}

PowerDraw power_of(const Profile& profile) {
  PowerDraw watts;
  if (!profile.json().contains("power")) return watts;
  const std::string where = profile.origin() + ": power";
  const nlohmann::json& node = object_field(profile.json(), "power", profile.origin() + ": file");
  refuse_unknown_keys(
      node, {"attention_W", "gemm_W", "memory_W", "communication_W", "idle_W", "provenance"}, where);
  watts.attention = positive_field(node, "attention_W", where);
  watts.gemm = positive_field(node, "gemm_W", where);
  watts.memory = positive_field(node, "memory_W", where);
  watts.communication = positive_field(node, "communication_W", where);
  watts.idle = positive_field(node, "idle_W", where);
  const nlohmann::json& provenance = object_field(node, "provenance", where);
  for (const char* key : {"kind", "source"}) (void)text_field(provenance, key, where + ".provenance");
  return watts;
}

namespace {

// Of a GPU, mean over all of them.
double joules_of(const StepTimes& times, const PowerDraw& watts, double gemm_share) {
  const double beside = std::max(0.0, times.compute.mean - times.attention.mean);
  const double optimizer = to_seconds(times.optimizer);
  double exposed = 0;
  for (std::size_t s = 1; s < kStreams; ++s) exposed += times.exposed_seconds[s];
  const double busy = times.attention.mean + beside + optimizer + exposed;
  return watts.attention * times.attention.mean + watts.gemm * gemm_share * beside +
         watts.memory * ((1 - gemm_share) * beside + optimizer) + watts.communication * exposed +
         watts.idle * std::max(0.0, to_seconds(times.makespan) - busy);
}

}  // namespace

void add_energy(const MetricInputs& in, const PowerDraw& watts, double gemm_share, Metrics& m) {
  const bool any_full = std::ranges::any_of(in.plan.steps, [](const Step& s) { return !s.tail; });
  Mean of_step;
  double joules = 0;
  for (std::size_t i = 0; i < in.steps.size(); ++i) {
    const double of_gpu = joules_of(in.steps[i].times, watts, gemm_share);
    joules += of_gpu;
    if (in.steps[i].times.makespan > 0 && !(in.plan.steps[i].tail && any_full)) of_step.add(of_gpu);
  }
  const auto gpus = static_cast<double>(in.layout.gpus());
  constexpr double kJoulesPerKwh = 1000 * kSecondsPerHour;
  if (of_step.value()) m.kwh_per_step = *of_step.value() * gpus / kJoulesPerKwh;
  if (m.tokens > 0) m.joules_per_token = joules * gpus / m.tokens;
  if (m.seconds > 0) m.watts_per_gpu = joules / m.seconds;
}

// --- Speed-ups

namespace {

constexpr std::size_t kFewestBlocks = 4;
constexpr std::size_t kMostBlocks = 20;
constexpr std::size_t kDraws = 2000;
constexpr std::size_t kOutside = kDraws / 40;  // draws beyond each end of a 95% interval

}  // namespace

std::vector<Picoseconds> block_times(std::span<const StepResult> steps, std::size_t blocks) {
  __extension__ typedef __int128 Wide;  // tokens x blocks x picoseconds
  std::int64_t tokens = 0;
  for (const StepResult& step : steps) tokens += step.work.tokens;
  std::vector<Picoseconds> times(blocks, 0);
  const auto count = static_cast<Wide>(blocks);
  std::size_t block = 0;
  std::int64_t before = 0;  // tokens of the steps so far
  for (const StepResult& step : steps) {
    Picoseconds given = 0;  // of the step's time
    // Block b ends after tokens * (b + 1) / blocks tokens; the last takes whatever is left.
    while (block + 1 < blocks) {
      const Wide inside = static_cast<Wide>(tokens) * static_cast<Wide>(block + 1) - before * count;
      if (inside >= step.work.tokens * count) break;
      const auto until = static_cast<Picoseconds>(step.times.makespan * inside / (step.work.tokens * count));
      times[block++] += until - given;
      given = until;
    }
    times[block] += step.times.makespan - given;
    before += step.work.tokens;
  }
  return times;
}

void compare(const Metrics& baseline, std::span<const StepResult> baseline_steps, std::size_t batches,
             std::span<const StepResult> steps, Metrics& metrics) {
  if (metrics.tokens <= 0 || baseline.tokens <= 0 || metrics.seconds <= 0 || baseline.seconds <= 0) return;
  metrics.speedup = (baseline.seconds / baseline.tokens) / (metrics.seconds / metrics.tokens);
  if (batches < kFewestBlocks) return;
  const std::size_t blocks = std::min(batches, kMostBlocks);
  const std::vector<Picoseconds> theirs = block_times(baseline_steps, blocks),
                                 own = block_times(steps, blocks);
  const double per_token = metrics.tokens / baseline.tokens;  // 1 unless one of them dropped documents
  SplitMix64 random;
  std::vector<double> drawn;
  for (std::size_t draw = 0; draw < kDraws; ++draw) {
    Picoseconds of_theirs = 0, of_own = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto block = static_cast<std::size_t>(random.next() % blocks);
      of_theirs += theirs[block];
      of_own += own[block];
    }
    if (of_own > 0) drawn.push_back(static_cast<double>(of_theirs) / static_cast<double>(of_own) * per_token);
  }
  if (drawn.size() < kDraws) return;
  std::sort(drawn.begin(), drawn.end());
  metrics.speedup_low = drawn[kOutside - 1];
  metrics.speedup_high = drawn[kDraws - kOutside];
}

}  // namespace equipoise
