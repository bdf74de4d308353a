#include "sim/metrics/columns.h"

#include <nlohmann/json.hpp>

#include "policies/base/index.h"

namespace equipoise {

using nlohmann::json;

namespace {

json value(const Metric& metric) {
  return metric ? json(*metric) : json(nullptr);
}

}  // namespace

json metrics_json(const Metrics& m) {
  json exposed;
  for (const Stream s : {Stream::tp, Stream::cp, Stream::pp, Stream::dp, Stream::ep})
    exposed[name_of(s)] = value(m.exposed_comm_ratio[at(s)]);
  return {{"step_seconds", value(m.step_seconds)},
          {"speedup", value(m.speedup)},
          {"speedup_low", value(m.speedup_low)},
          {"speedup_high", value(m.speedup_high)},
          {"tokens_per_second_per_gpu", value(m.tokens_per_second_per_gpu)},
          {"gpu_hours_per_billion_tokens", value(m.gpu_hours_per_billion_tokens)},
          {"mfu", value(m.mfu)},
          {"bubble_ratio", value(m.bubble_ratio)},
          {"imbalance_degree", value(m.imbalance_degree)},
          {"attention_imbalance", value(m.attention_imbalance)},
          {"gpu_compute_imbalance", value(m.gpu_compute_imbalance)},
          {"gpu_compute_slowest_over_fastest", value(m.gpu_compute_slowest_over_fastest)},
          {"gpu_attention_imbalance", value(m.gpu_attention_imbalance)},
          {"gpu_attention_slowest_over_fastest", value(m.gpu_attention_slowest_over_fastest)},
          {"abr", value(m.abr)},
          {"dbr", value(m.dbr)},
          {"pr", value(m.pr)},
          {"cr", value(m.cr)},
          {"ave_t", value(m.ave_t)},
          {"cp_imbalance", value(m.cp_imbalance)},
          {"kv_useful_ratio", value(m.kv_useful_ratio)},
          {"token_delay_mean", value(m.token_delay_mean)},
          {"token_delay_max", value(m.token_delay_max)},
          {"carried_tokens", value(m.carried_tokens)},
          {"peak_memory_bytes", value(m.peak_memory_bytes)},
          {"recompute_ratio", value(m.recompute_ratio)},
          {"exposed_comm_ratio", std::move(exposed)},
          {"steps", m.steps},
          {"tail_steps", m.tail_steps},
          {"total_seconds", m.seconds > 0 ? json(m.seconds) : json(nullptr)},
          {"total_tokens", m.tokens > 0 ? json(static_cast<std::int64_t>(m.tokens)) : json(nullptr)}};
}

json metrics_json(const PlanMetrics& m, std::optional<double> imbalance) {
  return {{"imbalance_degree", value(imbalance)},
          {"attention_imbalance", value(m.attention_imbalance)},
          {"abr", value(m.abr)},
          {"dbr", value(m.dbr)},
          {"pr", value(m.pr)},
          {"cr", value(m.cr)},
          {"ave_t", value(m.ave_t)},
          {"token_delay_mean", value(m.token_delay_mean)},
          {"token_delay_max", value(m.token_delay_max)},
          {"carried_tokens", value(m.carried_tokens)}};
}

}  // namespace equipoise
