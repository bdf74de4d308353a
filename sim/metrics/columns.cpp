#include "sim/metrics/columns.h"

#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/number_text.h"

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

Metric if_any(double total) {
  return total > 0 ? Metric(total) : Metric();
}

constexpr ResultColumn kColumns[] = {
    {.title = "tokens/s/GPU",
     .key = "tokens_per_second_per_gpu",
     .value = metric<&Metrics::tokens_per_second_per_gpu>,
     .unit = "tokens/s",
     .help = "tokens of all steps over their time and the GPUs"},
    {.title = "step s",
     .key = "step_seconds",
     .value = metric<&Metrics::step_seconds>,
     .digits = 3,
     .unit = "s",
     .help = "mean of the full steps"},
    {.title = "speed-up (95 %)",
     .key = "speedup",
     .value = metric<&Metrics::speedup>,
     .digits = 2,
     .help =
         "the baseline's seconds per token over this row's, and how much of it is the luck of the documents",
     .text = speedup_text},
    {.title = "MFU %",
     .key = "mfu",
     .value = metric<&Metrics::mfu>,
     .scale = 100,
     .digits = 1,
     .help = "model FLOPs over what the GPUs could do at their peak in that time"},
    {.title = "GPU h/B tokens",
     .key = "gpu_hours_per_billion_tokens",
     .value = metric<&Metrics::gpu_hours_per_billion_tokens>,
     .digits = 1,
     .unit = "h",
     .help = "GPU-hours for 10^9 tokens, all steps"},
    {.title = "imbalance",
     .key = "imbalance_degree",
     .value = metric<&Metrics::imbalance_degree>,
     .digits = 3,
     .help = "largest over mean forward latency of a step's micro-batches",
     .of_plan = true},
    {.title = "bubble %",
     .key = "bubble_ratio",
     .value = metric<&Metrics::bubble_ratio>,
     .scale = 100,
     .digits = 1,
     .help =
         "1 - useful time over stages x makespan of the pipeline, mean over lanes; recompute is not useful"},
    {.title = "CP imb.",
     .key = "cp_imbalance",
     .value = metric<&Metrics::cp_imbalance>,
     .digits = 3,
     .help = "slowest over mean rank of a CP group"},
    {.title = "GPU imb.",
     .key = "gpu_compute_imbalance",
     .value = metric<&Metrics::gpu_compute_imbalance>,
     .digits = 3,
     .help = "slowest over mean of all GPUs, their compute"},
    {.title = "delay",
     .key = "token_delay_mean",
     .value = metric<&Metrics::token_delay_mean>,
     .digits = 2,
     .unit = "iterations",
     .help = "how long a token waits for its step, mean over tokens",
     .of_plan = true},
    {.title = "mem. free GiB",
     .value =
         [](const RowFigures& row) {
           return row.planned() ? Metric(row.capacity_bytes - row.peak_bytes) : Metric();
         },
     .scale = 1 / kGiB,
     .digits = 1,
     .unit = "bytes",
     .help = "of the fullest GPU"},
    {.title = "pack ms",
     .value = [](const RowFigures& row) { return row.planned() ? Metric(row.pack_ms) : Metric(); },
     .digits = 2,
     .unit = "ms",
     .help = "measured: packing of a global batch, mean"},
    {.key = "speedup_low", .value = metric<&Metrics::speedup_low>, .help = "95 % interval of speedup"},
    {.key = "speedup_high", .value = metric<&Metrics::speedup_high>, .help = "95 % interval of speedup"},
    {.key = "attention_imbalance",
     .value = metric<&Metrics::attention_imbalance>,
     .help = "largest over mean of the micro-batches' sums of squared lengths",
     .of_plan = true},
    {.key = "gpu_compute_slowest_over_fastest",
     .value = metric<&Metrics::gpu_compute_slowest_over_fastest>,
     .help = "of all GPUs, their compute; null where the fastest has none"},
    {.key = "gpu_attention_imbalance",
     .value = metric<&Metrics::gpu_attention_imbalance>,
     .help = "slowest over mean of all GPUs, their attention (WLB-LLM's Fig. 1 and 4)"},
    {.key = "gpu_attention_slowest_over_fastest",
     .value = metric<&Metrics::gpu_attention_slowest_over_fastest>,
     .help = "of all GPUs, their attention; null where the fastest has none"},
    {.key = "abr",
     .value = metric<&Metrics::abr>,
     .help = "how far lanes lie below the one with most attention, mean, as a share of it",
     .of_plan = true},
    {.key = "dbr", .value = metric<&Metrics::dbr>, .help = "the same of their tokens", .of_plan = true},
    {.key = "pr", .value = metric<&Metrics::pr>, .help = "share of padding", .of_plan = true},
    {.key = "cr",
     .value = metric<&Metrics::cr>,
     .help = "share of tokens spread over more than one CP rank",
     .of_plan = true},
    {.key = "ave_t",
     .value = metric<&Metrics::ave_t>,
     .unit = "tokens",
     .help = "mean tokens of a lane",
     .of_plan = true},
    {.key = "kv_useful_ratio",
     .value = metric<&Metrics::kv_useful_ratio>,
     .help = "share of the K and V that CP sends which somebody needs"},
    {.key = "token_delay_max",
     .value = metric<&Metrics::token_delay_max>,
     .unit = "iterations",
     .help = "longest wait of a token",
     .of_plan = true},
    {.key = "carried_tokens",
     .value = metric<&Metrics::carried_tokens>,
     .unit = "tokens",
     .help = "that wait for a later step, mean over steps",
     .of_plan = true},
    {.key = "peak_memory_bytes",
     .value = metric<&Metrics::peak_memory_bytes>,
     .unit = "bytes",
     .help = "of the fullest GPU"},
    {.key = "recompute_ratio",
     .value = metric<&Metrics::recompute_ratio>,
     .help = "recompute over step time"},
    {.key = "exposed_comm_ratio.tp",
     .value = exposed<Stream::tp>,
     .help = "share of a step: communication of tensor parallelism that compute does not hide"},
    {.key = "exposed_comm_ratio.cp", .value = exposed<Stream::cp>, .help = "the same of context parallelism"},
    {.key = "exposed_comm_ratio.pp",
     .value = exposed<Stream::pp>,
     .help = "how long a stage waits for an input on its way"},
    {.key = "exposed_comm_ratio.dp",
     .value = exposed<Stream::dp>,
     .help = "gradients and parameters, after the pipeline and, with ZeRO-2 and 3, inside it"},
    {.key = "exposed_comm_ratio.ep", .value = exposed<Stream::ep>, .help = "exchanges of experts"},
    {.key = "steps",
     .value = [](const RowFigures& row) { return Metric(row.metrics.steps); },
     .help = "simulated",
     .whole = true},
    {.key = "tail_steps",
     .value = [](const RowFigures& row) { return Metric(row.metrics.tail_steps); },
     .help = "of them, those that are not full",
     .whole = true},
    {.key = "total_seconds",
     .value = [](const RowFigures& row) { return if_any(row.metrics.seconds); },
     .unit = "s",
     .help = "of all steps"},
    {.key = "total_tokens",
     .value = [](const RowFigures& row) { return if_any(row.metrics.tokens); },
     .unit = "tokens",
     .help = "of all steps",
     .whole = true},
};

json json_of(const ResultColumn& column, const RowFigures& row) {
  const Metric value = column.value(row);
  if (!value) return nullptr;
  return column.whole ? json(static_cast<std::int64_t>(*value)) : json(*value);
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
    if (column.of_plan) put(node, column.key, json_of(column, {known}));
  return node;
}

}  // namespace equipoise
