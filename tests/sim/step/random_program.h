// Random op programs for property tests: lanes of different CP degree, 1F1B over random blocks, uneven
// layers, gradient buckets under the last backward, an optimizer after them.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/base/random.h"
#include "sim/step/op_program.h"

namespace equipoise {

struct ProgramShape {
  int stages = 4;
  int tensor = 1;
  int lanes = 3;
  int micro_batches = 5;
  int most_context = 3;
  int most_layers = 3;
  bool barriers = false;
  bool blocking_sends = false;
};

inline ProgramShape random_shape(std::uint64_t seed) {
  SplitMix64 random(seed * 77 + 1);
  ProgramShape shape;
  shape.stages = static_cast<int>(random.next() % 4 + 1);
  shape.tensor = static_cast<int>(random.next() % 3 + 1);
  shape.lanes = static_cast<int>(random.next() % 4 + 1);
  shape.micro_batches = static_cast<int>(random.next() % 5 + 1);
  shape.barriers = shape.lanes > 1 && random.next() % 3 == 0;
  shape.blocking_sends = random.next() % 3 == 0;
  return shape;
}

class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, const ProgramShape& shape, Picoseconds scale = 1)
      : random_(seed), shape_(shape), scale_(scale) {}

  OpProgram make() {
    OpProgram program;
    program.stages = shape_.stages;
    program.tensor = shape_.tensor;
    layers_.clear();
    for (int s = 0; s < shape_.stages; ++s)
      layers_.push_back(static_cast<int>(below(static_cast<std::uint64_t>(shape_.most_layers)) + 1));
    for (int l = 0; l < shape_.lanes; ++l) {
      OpLane lane;
      lane.context = static_cast<int>(below(static_cast<std::uint64_t>(shape_.most_context)) + 1);
      lane.barrier_group = shape_.barriers ? l % 2 : 0;
      lane.first_replica = program.replicas - 1;
      program.replicas += lane.context;
      fill(lane);
      program.lanes.push_back(std::move(lane));
    }
    for (int s = 0; s < shape_.stages; ++s) {
      StageEnd end;
      for (int k = 0; k < layers_[static_cast<std::size_t>(s)]; ++k) end.buckets.push_back(duration());
      end.steps = {{OpName::optimizer}, {OpName::dp_all_gather, Stream::dp}};
      end.durations = {duration(), duration()};
      program.ends.push_back(end);
    }
    --program.replicas;
    return program;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_.next() % n; }
  Picoseconds duration() { return static_cast<Picoseconds>(below(1000)) * scale_; }

  OpBlock block(int context, int steps) {
    OpBlock made;
    for (int s = 0; s < steps; ++s) {
      OpStep step;
      const std::uint64_t what = below(6);
      step.name = what == 0 ? OpName::cp_all_gather : what == 1 ? OpName::tp_all_gather : OpName::attention;
      step.stream = what == 0 ? Stream::cp : what == 1 ? Stream::tp : Stream::compute;
      step.sync = what == 0 ? SyncGroup::context : what == 1 ? SyncGroup::tensor : SyncGroup::none;
      const bool with_before = s > 0 && made.steps.back().with_next;
      if (with_before) step = {OpName::attention};
      step.with_next = !with_before && step.stream != Stream::compute && s + 1 < steps && below(2) == 0;
      const Picoseconds shared = duration();
      for (int c = 0; c < context; ++c)
        made.durations.push_back(step.sync == SyncGroup::none ? duration() : shared);
      made.steps.push_back(step);
    }
    return made;
  }

  void fill(OpLane& lane) {
    const int m = shape_.micro_batches;
    for (int b = 0; b < 2 * m; ++b) lane.blocks.push_back(block(lane.context, 6));
    lane.stages.resize(static_cast<std::size_t>(shape_.stages));
    for (int s = 0; s < shape_.stages; ++s) {
      const int warm_up = std::min(shape_.stages - 1 - s, m);
      int f = 0;
      for (; f < warm_up; ++f) add(lane, s, OpKind::F, f);
      for (int b = 0; b < m; ++b) {
        if (f < m) add(lane, s, OpKind::F, f++);
        add(lane, s, OpKind::B, b);
      }
    }
    const auto find = [&](int stage, OpKind kind, int mb) {
      const auto& scheduled_ops = lane.stages[static_cast<std::size_t>(stage)];
      for (std::size_t i = 0; i < scheduled_ops.size(); ++i)
        if (scheduled_ops[i].op.kind == kind && scheduled_ops[i].op.micro_batch == mb)
          return static_cast<std::int32_t>(i);
      return kNoInput;
    };
    for (int s = 0; s < shape_.stages; ++s)
      for (ScheduledOp& scheduled : lane.stages[static_cast<std::size_t>(s)]) {
        const int from = scheduled.op.kind == OpKind::F ? s - 1 : s + 1;
        if (from < 0 || from >= shape_.stages) continue;
        scheduled.input_stage = from;
        scheduled.input_op = find(from, scheduled.op.kind, scheduled.op.micro_batch);
        scheduled.transfer = static_cast<std::int64_t>(lane.transfers.size());
        if (shape_.blocking_sends)
          lane.stages[static_cast<std::size_t>(from)][static_cast<std::size_t>(scheduled.input_op)]
              .blocking_send = scheduled.transfer;
        for (int c = 0; c < lane.context; ++c) lane.transfers.push_back(duration());
      }
  }

  void add(OpLane& lane, int stage, OpKind kind, int mb) {
    const bool last_backward = kind == OpKind::B && mb + 1 == shape_.micro_batches;
    ScheduledOp scheduled;
    scheduled.op = {kind, mb, 0};
    scheduled.first_run = static_cast<std::uint32_t>(lane.runs.size());
    scheduled.run_count = 1;
    lane.runs.push_back({static_cast<std::uint32_t>(2 * mb + (kind == OpKind::B ? 1 : 0)),
                         static_cast<std::uint32_t>(layers_[static_cast<std::size_t>(stage)]),
                         last_backward ? 0 : kNoBucket});
    lane.stages[static_cast<std::size_t>(stage)].push_back(scheduled);
  }

  SplitMix64 random_;
  ProgramShape shape_;
  Picoseconds scale_;
  std::vector<int> layers_;
};

}  // namespace equipoise
