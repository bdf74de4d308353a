#include "sim/report/plan_json.h"

#include <nlohmann/json.hpp>

#include "policies/base/index.h"

namespace equipoise {

using nlohmann::json;

namespace {

json slices_json(const std::vector<Slice>& slices) {
  json list = json::array();
  for (const Slice& s : slices) list.push_back({s.document, s.begin, s.end});
  return list;
}

// Checkpointed layers of the stage that has the most.
int layers_of_stage(const MicroBatch& m, const RecomputedLayers* recomputed) {
  if (recomputed != nullptr) return recomputed->of_fullest_stage(m.recompute_layers);
  return m.recompute_layers == kStudyRecompute ? 0 : m.recompute_layers;
}

json micro_batch_json(const MicroBatch& m, const RecomputedLayers* recomputed) {
  json node;
  node["slices"] = slices_json(m.slices);
  node["tokens"] = m.tokens();
  node["recompute_layers"] = layers_of_stage(m, recomputed);
  if (m.recompute_layers != kStudyRecompute) node["recompute_layers_of_model"] = m.recompute_layers;
  if (m.chunk.sequence >= 0)
    node["chunk"] = {{"sequence", m.chunk.sequence}, {"index", m.chunk.index}, {"count", m.chunk.count}};
  if (!m.placement.empty()) node["placement"] = m.placement;
  if (m.pad_each_to > 0) node["pad_each_to"] = m.pad_each_to;
  if (m.pack_length > 0) node["pack_length"] = m.pack_length;
  return node;
}

json value(const Metric& metric) {
  return metric ? json(*metric) : json(nullptr);
}

}  // namespace

json plan_json(const Plan& plan, const json& metrics, const RecomputedLayers* recomputed) {
  json steps = json::array();
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    json lanes = json::array();
    for (std::size_t l = 0; l < step.lanes.size(); ++l) {
      const Lane& lane = step.lanes[l];
      json micro_batches = json::array();
      for (const MicroBatch& m : lane.micro_batches) micro_batches.push_back(micro_batch_json(m, recomputed));
      json node = {{"lane", l}, {"context", lane.context}, {"micro_batches", std::move(micro_batches)}};
      if (lane.barrier_group != 0) node["barrier_group"] = lane.barrier_group;
      lanes.push_back(std::move(node));
    }
    steps.push_back({{"step", i},
                     {"lanes", std::move(lanes)},
                     {"carried", slices_json(step.carried)},
                     {"tail", step.tail},
                     {"measured", {{"pack_ms", step.pack_ms}}}});
  }
  json node = {{"schema", "equipoise.plan/1"},
               {"policy", plan.policy},
               {"recompute", "study"},  // of micro-batches without recompute_layers_of_model
               {"steps", std::move(steps)},
               {"metrics", metrics}};
  if (plan.sees_whole_set) node["sees_whole_set"] = true;
  if (!plan.dropped.empty()) node["dropped"] = slices_json(plan.dropped);
  if (!plan.notes.empty()) node["notes"] = plan.notes;
  if (!plan.solver.empty()) {
    json reports = json::array();
    for (const SolverReport& r : plan.solver)
      reports.push_back({{"step", r.step},
                         {"objective", r.over_steps ? "sum over steps" : "largest"},
                         {"incumbent", r.incumbent},
                         {"bound", r.bound},
                         {"gap", r.gap()},
                         {"optimal", r.optimal},
                         {"measured", {{"seconds", r.seconds}}}});
    node["solver"] = std::move(reports);
  }
  return node;
}

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
