#include "sim/metrics/metrics.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/random.h"
#include "policies/base/text.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

constexpr double kSecondsPerHour = 3600;

// The mean over full steps of a value that some steps may lack.
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

// Idle time of a lane's stages without the parts that have a name: transfers between stages, and ZeRO's
// collectives inside the pipeline (exposed_seconds[dp] has those and what follows the pipeline).
double waiting_seconds(const TimeSums& r) {
  const double transfers = r.exposed_seconds[at(Stream::pp)];
  const double inside = r.exposed_seconds[at(Stream::dp)] - to_seconds(r.gradient_wait);
  return std::max(0.0, r.losses.idle_seconds - transfers - std::max(0.0, inside));
}

}  // namespace

Metrics metrics_of(const MetricInputs& in) {
  Metrics m;
  static_cast<PlanMetrics&>(m) = plan_metrics(in.plan, each_of(in.steps, &StepFigures::plan));

  const CountsInMeans counts(in.steps);
  Mean step_seconds, bubble, imbalance, cp, kv, recompute, padding, cr;
  Spread compute, attention;
  Mean waiting, lanes_wait, recompute_alone;
  std::array<Mean, kStreams> exposed;
  double flops = 0;
  for (const StepFigures& step : in.steps) {
    const WorkSums& work = step.work;
    const TimeSums& times = step.times;
    const double seconds = to_seconds(times.makespan);
    m.seconds += seconds;
    m.tokens += static_cast<double>(work.tokens);
    flops += in.model.training_flops(static_cast<double>(work.tokens), work.causal_pairs, work.window_pairs);
    ++m.steps;
    m.tail_steps += step.plan.tail;
    if (!counts(step) || seconds <= 0) continue;
    step_seconds.add(seconds);
    bubble.add(times.losses.bubble_ratio);
    imbalance.add(step.latency_imbalance);
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
  m.cr = cr.value();  // from the run, since dacp decides placements while sharding
  // Packs count padding up to their pack length (the plan's own figure); other runs count what was computed.
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
  refuse_unknown_keys(node, {"attention_W", "gemm_W", "memory_W", "communication_W", "idle_W", "provenance"},
                      where);
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

// The energy of a GPU, as a mean over all of them.
double joules_of(const TimeSums& times, const PowerDraw& watts, double gemm_share) {
  const double other = std::max(0.0, times.compute.mean - times.attention.mean);
  const double optimizer = to_seconds(times.optimizer);
  double exposed = 0;
  for (std::size_t s = 1; s < kStreams; ++s) exposed += times.exposed_seconds[s];
  const double busy = times.attention.mean + other + optimizer + exposed;
  return watts.attention * times.attention.mean + watts.gemm * gemm_share * other +
         watts.memory * ((1 - gemm_share) * other + optimizer) + watts.communication * exposed +
         watts.idle * std::max(0.0, to_seconds(times.makespan) - busy);
}

}  // namespace

void add_energy(const MetricInputs& in, const PowerDraw& watts, double gemm_share, Metrics& m) {
  const CountsInMeans counts(in.steps);
  Mean of_step;
  double joules = 0;
  for (const StepFigures& step : in.steps) {
    const double of_gpu = joules_of(step.times, watts, gemm_share);
    joules += of_gpu;
    if (step.times.makespan > 0 && counts(step)) of_step.add(of_gpu);
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
constexpr std::size_t kOutside = kDraws / 40;  // draws beyond each end of a 95 % interval

}  // namespace

std::vector<Picoseconds> block_times(std::span<const StepFigures> steps, std::size_t blocks) {
  __extension__ typedef __int128 Wide;  // tokens x blocks x picoseconds
  std::int64_t tokens = 0;
  for (const StepFigures& step : steps) tokens += step.work.tokens;
  std::vector<Picoseconds> times(blocks, 0);
  const auto count = static_cast<Wide>(blocks);
  std::size_t block = 0;
  std::int64_t before = 0;  // tokens in earlier steps
  for (const StepFigures& step : steps) {
    Picoseconds given = 0;  // part of the step's time that earlier blocks received
    // Block b ends after tokens * (b + 1) / blocks tokens, and the last takes the rest.
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

SpeedUp speed_up(const Run& run, const Run& other, std::size_t batches) {
  const Metrics &mine = run.metrics, &base = other.metrics;
  if (mine.tokens <= 0 || base.tokens <= 0 || mine.seconds <= 0 || base.seconds <= 0) return {};
  const double ratio = (base.seconds / base.tokens) / (mine.seconds / mine.tokens);
  if (batches < kFewestBlocks || run.steps.empty() || other.steps.empty()) return {ratio, {}, {}};
  const std::size_t blocks = std::min(batches, kMostBlocks);
  const std::vector<Picoseconds> theirs = block_times(other.steps, blocks),
                                 own = block_times(run.steps, blocks);
  const double per_token = mine.tokens / base.tokens;  // equals 1 unless one of them dropped documents
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
  if (drawn.size() < kDraws) return {ratio, {}, {}};
  std::sort(drawn.begin(), drawn.end());
  return {ratio, drawn[kOutside - 1], drawn[kDraws - kOutside]};
}

// --- The table of columns.

using nlohmann::json;

namespace {

template <auto Member>
constexpr RowFigure metric = {[](const RowFigures& row) -> Metric { return row.metrics.*Member; },
                              [](Metrics& metrics, double value) { metrics.*Member = value; }};

template <Stream Axis>
constexpr RowFigure exposed = {
    [](const RowFigures& row) { return row.metrics.exposed_comm_ratio[at(Axis)]; },
    [](Metrics& metrics, double value) { metrics.exposed_comm_ratio[at(Axis)] = value; }};

template <auto Member>
constexpr RowFigure count = {
    [](const RowFigures& row) { return Metric(row.metrics.*Member); },
    [](Metrics& metrics, double value) { metrics.*Member = static_cast<int>(std::clamp(value, 0.0, 1e9)); }};

std::string speedup_text(const RowFigures& row) {
  const Metrics& m = row.metrics;
  if (!m.speedup) return "-";
  std::string text = fixed(*m.speedup, 2) + "x";
  if (m.speedup_low && m.speedup_high)
    text += " (" + fixed(*m.speedup_low, 2) + "-" + fixed(*m.speedup_high, 2) + ")";
  return text;
}

std::string delay_text(const RowFigures& row) {
  const Metrics& m = row.metrics;
  if (!m.token_delay_mean || !m.token_delay_max) return "-";
  return fixed(*m.token_delay_mean, 2) + " (" +
         (m.token_delay_steady ? fixed(*m.token_delay_steady, 2) : "-") + ", " +
         fixed(*m.token_delay_max, 0) + ")";
}

std::string free_memory_text(const RowFigures& row) {
  if (!row.planned()) return "-";
  return fixed((row.capacity_bytes - row.peak_bytes) / kGiB, 1) + (row.memory_tight ? " tight" : "");
}

template <auto Member>
constexpr RowFigure total = {
    [](const RowFigures& row) { return row.metrics.*Member > 0 ? Metric(row.metrics.*Member) : Metric(); },
    [](Metrics& metrics, double value) { metrics.*Member = value; }};

constexpr ResultColumn kColumns[] = {
    {"GPUs", "gpus", total<&Metrics::gpus>, 0, "", "of the whole run; a column where cases of a sweep differ",
     kWhole | kDiffering},
    {"tokens/s/GPU", "tokens_per_second_per_gpu", metric<&Metrics::tokens_per_second_per_gpu>, 0, "tokens/s",
     "tokens of all steps over their time and the GPUs"},
    {"step s", "step_seconds", metric<&Metrics::step_seconds>, 3, "s", "mean of the full steps"},
    {"tokens/step", "tokens_per_step", metric<&Metrics::tokens_per_step>, 0, "tokens",
     "mean of the full steps; rows are compared at equal global batches", kOfPlan},
    {"speed-up (95 %)", "speedup", metric<&Metrics::speedup>, 2, "",
     "the baseline's seconds per token over this row's, and how much of it is the sampling error of the "
     "documents",
     0, 1, speedup_text},
    {"MFU %", "mfu", metric<&Metrics::mfu>, 1, "",
     "model FLOPs over what the GPUs could do at their peak in that time", 0, 100},
    {"GPU h/B tokens", "gpu_hours_per_billion_tokens", metric<&Metrics::gpu_hours_per_billion_tokens>, 1, "h",
     "GPU-hours for 10^9 tokens, all steps"},
    {"$/B tokens", "dollars_per_billion_tokens", metric<&Metrics::dollars_per_billion_tokens>, 0, "USD",
     "GPU-hours for 10^9 tokens at cluster.dollars_per_gpu_hour", kStated},
    {"J/token", "joules_per_token", metric<&Metrics::joules_per_token>, 3, "J",
     "energy of all GPUs' boards, all steps: cluster.watts, or the profile's power, times the time by kind",
     kStated},
    {"kWh/step", "kwh_per_step", metric<&Metrics::kwh_per_step>, 3, "kWh", "the same, mean of the full steps",
     kStated},
    {"W/GPU", "watts_per_gpu", metric<&Metrics::watts_per_gpu>, 0, "W", "the same over time and GPUs",
     kStated},
    {"imbalance", "imbalance_degree", metric<&Metrics::imbalance_degree>, 3, "",
     "largest over mean forward latency of a step's micro-batches", kOfPlan},
    {"bubble %", "bubble_ratio", metric<&Metrics::bubble_ratio>, 1, "",
     "1 - useful time over stages x makespan of the pipeline, mean over lanes; recompute is not useful. "
     "Without a pipeline "
     "the table shows the share of recompute instead, and says so",
     0, 100},
    {"CP imb.", "cp_imbalance", metric<&Metrics::cp_imbalance>, 3, "",
     "slowest over mean rank of a CP group"},
    {"GPU imb.", "gpu_compute_imbalance", metric<&Metrics::gpu_compute_imbalance>, 3, "",
     "slowest over mean of all GPUs, their compute"},
    {"delay (steady, max)", "token_delay_mean", metric<&Metrics::token_delay_mean>, 2, "iterations",
     "how long a token waits for its step, mean over tokens; in brackets the mean in steady state and the "
     "longest",
     kOfPlan, 1, delay_text},
    {"lost tokens", "lost_tokens", metric<&Metrics::lost_tokens>, 0, "tokens",
     "dropped or truncated; a column where rows differ", kOfPlan | kWhole | kDiffering},
    {"mem. free GiB",
     "",
     {[](const RowFigures& row) {
       return row.planned() ? Metric(row.capacity_bytes - row.peak_bytes) : Metric();
     }},
     1,
     "bytes",
     "of the fullest GPU; tight: less than cluster.memory_headroom, so that what the model does not see may "
     "not fit",
     0,
     1 / kGiB,
     free_memory_text},
    {"runs in",
     "",
     {[](const RowFigures&) { return Metric(); }},
     0,
     "",
     "whether the study's framework runs the row: yes, of itself or with equipoise.loader; own loader, where "
     "yours feeds it the plan's micro-batches; no, "
     "where it lacks a schedule, an attention or CP degrees (runs_in). A column where a row needs more than "
     "the framework has",
     kUnlessYes,
     1,
     [](const RowFigures& row) { return std::string(row.runs_in); }},
    {"pack ms",
     "",
     {[](const RowFigures& row) {
       return row.planned() && row.pack_ms > 0 ? Metric(row.pack_ms) : Metric();
     }},
     2,
     "ms",
     "measured: packing of a global batch, mean; not the search for what a row leaves open"},
    {"", "expected_error_low", metric<&Metrics::expected_error_low>, 0, "",
     "of step_seconds: measured over predicted, lower end of the 90 % interval that published steps show; "
     "null where none is of these GPUs (expected_error)"},
    {"", "expected_error_high", metric<&Metrics::expected_error_high>, 0, "", "its upper end"},
    {"", "speedup_low", metric<&Metrics::speedup_low>, 0, "", "95 % interval of speedup"},
    {"", "speedup_high", metric<&Metrics::speedup_high>, 0, "", "95 % interval of speedup"},
    {"", "attention_imbalance", metric<&Metrics::attention_imbalance>, 0, "",
     "largest over mean of the micro-batches' sums of squared lengths", kOfPlan},
    {"", "gpu_compute_slowest_over_fastest", metric<&Metrics::gpu_compute_slowest_over_fastest>, 0, "",
     "of all GPUs, their compute; null where the fastest has none"},
    {"", "gpu_attention_imbalance", metric<&Metrics::gpu_attention_imbalance>, 0, "",
     "slowest over mean of all GPUs, their attention (WLB-LLM's Fig. 1 and 4)"},
    {"", "gpu_attention_slowest_over_fastest", metric<&Metrics::gpu_attention_slowest_over_fastest>, 0, "",
     "of all GPUs, their attention; null where the fastest has none"},
    {"", "abr", metric<&Metrics::abr>, 0, "",
     "how far GPUs lie below the one with most attention (sum of squared lengths), mean, as a share of it",
     kOfPlan},
    {"", "dbr", metric<&Metrics::dbr>, 0, "", "the same of their tokens", kOfPlan},
    {"", "pr", metric<&Metrics::pr>, 0, "", "share of padding", kOfPlan},
    {"", "cr", metric<&Metrics::cr>, 0, "", "share of tokens spread over more than one CP rank", kOfPlan},
    {"", "ave_t", metric<&Metrics::ave_t>, 0, "tokens", "mean tokens of a lane", kOfPlan},
    {"", "kv_useful_ratio", metric<&Metrics::kv_useful_ratio>, 0, "",
     "share of the K and V that CP sends which somebody needs"},
    {"", "token_delay_max", metric<&Metrics::token_delay_max>, 0, "iterations", "longest wait of a token",
     kOfPlan},
    {"", "token_delay_steady", metric<&Metrics::token_delay_steady>, 0, "iterations",
     "mean over the tokens of full steps; null where a queue never emptied", kOfPlan},
    {"", "token_delay_held", metric<&Metrics::token_delay_held>, 0, "iterations",
     "longest wait of what was held when the data ended", kOfPlan},
    {"", "queue_emptied", metric<&Metrics::queue_emptied>, 0, "",
     "whether each queue gave up documents before the data ended; null without queues", kOfPlan | kFlag},
    {"", "carried_tokens", metric<&Metrics::carried_tokens>, 0, "tokens",
     "that wait for a later step, mean over steps", kOfPlan},
    {"", "peak_memory_bytes", metric<&Metrics::peak_memory_bytes>, 0, "bytes", "of the fullest GPU"},
    {"", "recompute_ratio", metric<&Metrics::recompute_ratio>, 0, "", "recompute over step time"},
    {"", "exposed_comm_ratio.tp", exposed<Stream::tp>, 0, "",
     "share of a step: communication of tensor parallelism that compute does not hide"},
    {"", "exposed_comm_ratio.cp", exposed<Stream::cp>, 0, "", "the same of context parallelism"},
    {"", "exposed_comm_ratio.pp", exposed<Stream::pp>, 0, "",
     "how long a stage waits for an input on its way"},
    {"", "exposed_comm_ratio.dp", exposed<Stream::dp>, 0, "",
     "gradients and parameters, after the pipeline and, with ZeRO-2 and 3, inside it"},
    {"", "exposed_comm_ratio.ep", exposed<Stream::ep>, 0, "", "exchanges of experts"},
    {"", "steps", count<&Metrics::steps>, 0, "", "simulated", kWhole},
    {"", "tail_steps", count<&Metrics::tail_steps>, 0, "", "of them, those that are not full", kWhole},
    {"", "total_seconds", total<&Metrics::seconds>, 0, "s", "of all steps"},
    {"", "total_tokens", total<&Metrics::tokens>, 0, "tokens", "of all steps", kWhole},
};

json json_of(const ResultColumn& column, const RowFigures& row) {
  const Metric value = column.value(row);
  if (!value) return nullptr;
  if (column.has(kFlag)) return *value != 0;
  return column.has(kWhole) ? json(static_cast<std::int64_t>(*value)) : json(*value);
}

void put(json& node, std::string_view key, json value) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos)
    node[std::string(key)] = std::move(value);
  else
    node[std::string(key.substr(0, dot))][std::string(key.substr(dot + 1))] = std::move(value);
}

}  // namespace

std::string ResultColumn::printed(const RowFigures& row) const {
  if (text != nullptr) return text(row);
  const Metric number = value(row);
  return number ? fixed(*number * scale, digits) : "-";
}

std::span<const ResultColumn> result_columns() {
  return kColumns;
}

json metrics_json(const Metrics& metrics) {
  json node = json::object();
  for (const ResultColumn& column : kColumns)
    if (!column.key.empty()) put(node, column.key, json_of(column, {metrics}));
  return node;
}

Metrics read_metrics(const json& saved) {
  Metrics metrics;
  for (const ResultColumn& column : kColumns) {
    if (column.key.empty() || column.value.set == nullptr) continue;
    std::string path = "/" + std::string(column.key);
    std::ranges::replace(path, '.', '/');
    const json value = saved.value(json::json_pointer(path), json());
    if (!value.is_null())
      column.value.set(metrics, column.has(kFlag) ? (value.get<bool>() ? 1 : 0) : value.get<double>());
  }
  return metrics;
}

json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance) {
  Metrics known;
  static_cast<PlanMetrics&>(known) = metrics;
  known.imbalance_degree = imbalance;
  json node = json::object();
  for (const ResultColumn& column : kColumns)
    if (column.has(kOfPlan)) put(node, column.key, json_of(column, {known}));
  return node;
}

}  // namespace equipoise
