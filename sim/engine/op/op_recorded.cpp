#include "sim/engine/op/op_recorded.h"

#include <algorithm>
#include <utility>

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

RecordedSink::RecordedSink(const OpProgram& program, const OpResult& result, int lane, int stage,
                           int scheduled, OpSink& sink)
    : lane_(program.lanes[at(lane)]),
      scheduled_(lane_.stages[at(stage)][at(scheduled)]),
      times_(*result.recorded),
      sink_(sink),
      rows_(lane_, scheduled_),
      first_(times_.lanes[at(lane)][at(stage)].first[at(scheduled)]),
      ranks_(at(lane_.context) * at(program.tensor)),
      pair_(ranks_, 0),
      exchange_(ranks_) {
  const Picoseconds* const begins = result.lanes[at(lane)].start[at(stage)].data() + at(scheduled) * ranks_;
  clock_.assign(begins, begins + ranks_);
}

void RecordedSink::on_op(const OpEvent& event) {
  const OpBlock& block = lane_.blocks[lane_.runs[scheduled_.first_run + event.run].block];
  const OpStep& step = block.steps[event.step];
  const std::size_t rank = at(event.rank);
  const std::size_t index = first_ + rows_.of(event.run, event.repetition, event.step) * ranks_ + rank;
  OpEvent told = event;
  told.arrived = clock_[rank];
  told.start = times_.start[index];
  told.end = times_.end[index];
  Exchange& exchange = exchange_[rank];
  if (step.over > 0)
    exchange = {step.over, told.end};
  else if (step.with_next)
    pair_[rank] = told.end;
  else if (!step.background)
    clock_[rank] = std::max(told.end, std::exchange(pair_[rank], 0));
  if (step.over == 0 && exchange.under > 0 && --exchange.under == 0)
    clock_[rank] = std::max(clock_[rank], exchange.end);
  sink_.on_op(told);
}

}  // namespace equipoise
