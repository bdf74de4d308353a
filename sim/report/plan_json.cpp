#include "sim/report/plan_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "sim/metrics/metrics.h"
#include "sim/report/words/note_json.h"

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
  if (recomputed != nullptr) return recomputed->of_fullest_stage(m);
  return m.recompute_layers == kStudyRecompute ? 0 : m.recompute_layers;
}

json micro_batch_json(const MicroBatch& m, const RecomputedLayers* recomputed) {
  json node;
  node["slices"] = slices_json(m.slices);
  node["tokens"] = m.tokens();
  node["recompute_layers"] = layers_of_stage(m, recomputed);
  if (m.recompute_layers != kStudyRecompute) node["recompute_layers_of_model"] = m.recompute_layers;
  if (!m.recompute_by_stage.empty()) node["recompute_by_stage"] = m.recompute_by_stage;
  if (m.chunk.sequence >= 0)
    node["chunk"] = {{"sequence", m.chunk.sequence}, {"index", m.chunk.index}, {"count", m.chunk.count}};
  if (!m.placement.empty()) node["placement"] = m.placement;
  if (m.pad_each_to > 0) node["pad_each_to"] = m.pad_each_to;
  if (m.pack_length > 0) node["pack_length"] = m.pack_length;
  return node;
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
               {"recompute", "study"},  // for micro-batches without recompute_layers_of_model
               {"steps", std::move(steps)},
               {"metrics", metrics}};
  if (!plan.schedule.empty()) node["schedule"] = plan.schedule;
  if (plan.sees_whole_set) node["sees_whole_set"] = true;
  if (plan.queue_emptied) node["queue_emptied"] = *plan.queue_emptied;
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

json packed_json(const Packed& packed) {
  json metrics = metrics_json(packed.metrics, packed.imbalance);
  json node = plan_json(packed.plan, metrics, nullptr);
  node["measured"] = {{"pack_ms", packed.pack_ms}};
  return node;
}

// JSON values take many times the memory of their text, so only one policy's plan is held as values.
std::string plans_json_text(const Study& study, const StudyResult& result) {
  std::string text = R"({"plans":[)";
  for (const PolicyResult& p : result.policies) {
    std::optional<RecomputedLayers> recomputed;  // a row that did not run may have no layout
    if (!p.plan.steps.empty()) recomputed.emplace(study.model, p.layout);
    json node = plan_json(p.plan, metrics_json(p.metrics), recomputed ? &*recomputed : nullptr);
    node["name"] = p.run.label;
    if (&p != &result.policies.front()) text += ',';
    text += node.dump();
  }
  return text + R"(],"schema":"equipoise.plans/1"})" + '\n';
}

}  // namespace equipoise
