// Micro-batch costs made by hand: one layer a virtual stage, every op as long as the test says.
#pragma once

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "sim/schedule/schedule.h"
#include "sim/step/lane_engine.h"
#include "sim/step/schedule_timing.h"
#include "tests/sim/models.h"

namespace equipoise::testing {

inline Layout pipeline_of(int stages, int virtual_pipeline = 1) {
  Layout layout;
  layout.pipeline = stages;
  layout.virtual_pipeline = virtual_pipeline;
  layout.recompute = Recompute::none;
  return layout;
}

// A layer takes `forward` and `backward` on each of `ranks` CP ranks; a hop takes `hop`. Split backwards take
// half of `backward` in each half. Nothing else costs anything.
inline MicroBatchCost hand_cost(Picoseconds forward, Picoseconds backward, int ranks = 1,
                                Picoseconds hop = 0) {
  const auto c = static_cast<std::size_t>(ranks);
  MicroBatchCost cost;
  cost.ranks = ranks;
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    for (LayerTimeline* t : {&cost.forward[k], &cost.backward[k], &cost.full[k], &cost.input_gradient[k]})
      t->reset(ranks);
    for (int r = 0; r < ranks; ++r) {
      cost.forward[k].add_local(r, forward);
      cost.backward[k].add_local(r, backward);
      cost.input_gradient[k].add_local(r, backward / 2);
    }
    cost.full[k] = cost.again[k] = cost.forward[k];
    cost.full[k].append(cost.backward[k]);
    cost.weight_gradient[k].assign(c, backward - backward / 2);
    cost.compute_forward[k].assign(c, forward);
    cost.compute_again[k] = cost.compute_forward[k];
    cost.compute_backward[k].assign(c, backward);
  }
  for (EndCost* end : {&cost.embed_forward, &cost.embed_backward, &cost.head_forward, &cost.head_backward}) {
    end->total.assign(c, 0);
    end->compute.assign(c, 0);
  }
  for (auto* send : {&cost.send_next, &cost.send_previous, &cost.send_wrap}) send->assign(c, hop);
  for (std::size_t mask = 0; mask < kMixers; ++mask) {
    cost.attention_forward[mask].assign(c, forward);
    cost.attention_backward[mask].assign(c, backward);
  }
  return cost;
}

// A lane of hand-made micro-batches; groups of dependent chunks as in ScheduleInput.
struct HandLane {
  std::vector<MicroBatch> micro_batches;
  std::vector<MicroBatchCost> costs;
  std::vector<std::int32_t> groups;
};

inline HandLane hand_lane(const std::vector<double>& forward, std::vector<std::int32_t> groups = {},
                          int backward_ratio = 2, Picoseconds hop = 0, int virtual_stages = 1) {
  HandLane lane;
  lane.groups = std::move(groups);
  if (lane.groups.empty()) lane.groups.assign(forward.size(), 1);
  for (const double f : forward) {
    const auto time = static_cast<Picoseconds>(f) / virtual_stages;
    lane.micro_batches.emplace_back();
    lane.costs.push_back(hand_cost(time, backward_ratio * time, 1, hop));
  }
  return lane;
}

struct HandRun {
  Schedule schedule;
  LaneResult result;
  LaneAccounts accounts;
  std::vector<StageOp> ops;
  double bubble = 0;
};

inline HandRun run_lane(LaneEngine& engine, std::string_view schedule, const HandLane& lane, int stages,
                        const StepOptions& options = {}, int virtual_stages = 1, Picoseconds start = 0) {
  HandRun run;
  run.schedule = schedule_policy(schedule).make(
      {stages, virtual_stages, lane.groups, options.keep, options.strict_keep});
  run.result =
      engine.run(run.schedule, lane.micro_batches, lane.costs, options, start, 0, run.accounts, &run.ops);
  run.bubble =
      1 - static_cast<double>(run.result.useful) / (stages * static_cast<double>(run.result.makespan));
  return run;
}

inline HandRun run_lane(std::string_view schedule, const HandLane& lane, int stages,
                        const StepOptions& options = {}) {
  LaneEngine engine(model_of(stages), pipeline_of(stages));
  return run_lane(engine, schedule, lane, stages, options);
}

// What a stage ran, in order: "F1 B1", micro-batches from 1 as the papers write them.
inline std::string order_of(const std::vector<StageOp>& ops, int stage) {
  std::string text;
  for (const StageOp& op : ops)
    if (op.stage == stage) {
      if (!text.empty()) text += ' ';
      text += "FBDRW"[static_cast<std::size_t>(op.op.kind)];
      text += std::to_string(op.op.micro_batch + 1);
    }
  return text;
}

}  // namespace equipoise::testing
