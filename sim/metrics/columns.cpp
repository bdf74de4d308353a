#include "sim/metrics/columns.h"

#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {

using nlohmann::json;

namespace {

template <auto Member>
Metric metric(const RowFigures& row) {
  return row.metrics.*Member;
}

template <Stream Axis>
Metric exposed(const RowFigures& row) {
  return row.metrics.exposed_comm_ratio[at(Axis)];
}

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

Metric if_any(double total) {
  return total > 0 ? Metric(total) : Metric();
}

constexpr ResultColumn kColumns[] = {
    {"tokens/s/GPU", "tokens_per_second_per_gpu", metric<&Metrics::tokens_per_second_per_gpu>, 0, "tokens/s",
     "tokens of all steps over their time and the GPUs"},
    {"step s", "step_seconds", metric<&Metrics::step_seconds>, 3, "s", "mean of the full steps"},
    {"tokens/step", "tokens_per_step", metric<&Metrics::tokens_per_step>, 0, "tokens",
     "mean of the full steps; rows are compared at equal global batches", kOfPlan},
    {"speed-up (95 %)", "speedup", metric<&Metrics::speedup>, 2, "",
     "the baseline's seconds per token over this row's, and how much of it is the luck of the documents", 0,
     1, speedup_text},
    {"MFU %", "mfu", metric<&Metrics::mfu>, 1, "",
     "model FLOPs over what the GPUs could do at their peak in that time", 0, 100},
    {"GPU h/B tokens", "gpu_hours_per_billion_tokens", metric<&Metrics::gpu_hours_per_billion_tokens>, 1, "h",
     "GPU-hours for 10^9 tokens, all steps"},
    {"$/B tokens", "dollars_per_billion_tokens", metric<&Metrics::dollars_per_billion_tokens>, 0, "USD",
     "GPU-hours for 10^9 tokens at cluster.dollars_per_gpu_hour", kStated},
    {"J/token", "joules_per_token", metric<&Metrics::joules_per_token>, 3, "J",
     "energy of all GPUs' boards, all steps: cluster.watts, or the profile's power, times the time by kind", kStated},
    {"kWh/step", "kwh_per_step", metric<&Metrics::kwh_per_step>, 3, "kWh", "the same, mean of the full steps", kStated},
    {"W/GPU", "watts_per_gpu", metric<&Metrics::watts_per_gpu>, 0, "W", "the same over time and GPUs", kStated},
    {"imbalance", "imbalance_degree", metric<&Metrics::imbalance_degree>, 3, "",
     "largest over mean forward latency of a step's micro-batches", kOfPlan},
    {"bubble %", "bubble_ratio", metric<&Metrics::bubble_ratio>, 1, "",
     "1 - useful time over stages x makespan of the pipeline, mean over lanes; recompute is not useful. Without a pipeline "
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
    {"mem. free GiB", "",
     [](const RowFigures& row) {
       return row.planned() ? Metric(row.capacity_bytes - row.peak_bytes) : Metric();
     },
     1, "bytes", "of the fullest GPU", 0, 1 / kGiB},
    {"pack ms", "", [](const RowFigures& row) { return row.planned() ? Metric(row.pack_ms) : Metric(); }, 2,
     "ms", "measured: packing of a global batch, mean"},
    {"", "expected_error", metric<&Metrics::expected_error>, 0, "",
     "mean absolute error of step times, as left-out published steps of the nearest family show (framework, size class, "
     "dense or experts, GPU, precision: provenance.expected_error); null where there are none"},
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
     "how far GPUs lie below the one with most attention (sum of squared lengths), mean, as a share of it", kOfPlan},
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
    {"", "steps", [](const RowFigures& row) { return Metric(row.metrics.steps); }, 0, "", "simulated",
     kWhole},
    {"", "tail_steps", [](const RowFigures& row) { return Metric(row.metrics.tail_steps); }, 0, "",
     "of them, those that are not full", kWhole},
    {"", "total_seconds", [](const RowFigures& row) { return if_any(row.metrics.seconds); }, 0, "s",
     "of all steps"},
    {"", "total_tokens", [](const RowFigures& row) { return if_any(row.metrics.tokens); }, 0, "tokens",
     "of all steps", kWhole},
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
