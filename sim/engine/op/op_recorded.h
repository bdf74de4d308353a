// Tells the ops of a scheduled op at times that were recorded elsewhere (RecordedTimes) instead of those that
// their durations give.
#pragma once

#include <vector>

#include "sim/engine/op/op_lowering.h"

namespace equipoise {

class RecordedSink final : public OpSink {
 public:
  // Passes the events of a replay of this scheduled op on to `sink`.
  RecordedSink(const OpProgram& program, const OpResult& result, int lane, int stage, int scheduled,
               OpSink& sink);
  void on_op(const OpEvent& event) override;
  void on_repetition(std::uint32_t run, std::uint32_t repetition) override {
    sink_.on_repetition(run, repetition);
  }

 private:
  const OpLane& lane_;
  const ScheduledOp& scheduled_;
  const RecordedTimes& times_;
  OpSink& sink_;
  RowNumber rows_;
  std::size_t first_, ranks_;
  std::vector<Picoseconds> clock_, pair_;  // by rank: ready for its next op; the first of a pair ends
  struct Exchange {
    std::uint32_t under = 0;  // steps that are still to run under it
    Picoseconds end = 0;
  };
  std::vector<Exchange> exchange_;  // by rank
};

}  // namespace equipoise
