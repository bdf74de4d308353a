#include "sim/step/op_inputs.h"

#include "sim/step/inboxes.h"

namespace equipoise {
void add_scheduled_ops(const Schedule& schedule, const VirtualStages& order, bool blocking_sends,
                       OpLane& lane) {
  const int stages = schedule.stages;
  const std::size_t virtual_stages = at(order.count());
  const auto slot = [&](const ScheduleOp& op, int v) {
    return (at(op.micro_batch) * virtual_stages + at(v)) * kInboxes + at(inbox_of(op.kind));
  };
  // By slot, the op of its stage that makes it: the micro-batch's next op of the same kind needs it.
  std::vector<std::int32_t> made_by(at(schedule.micro_batches) * virtual_stages * kInboxes, kNoInput);
  for (int s = 0; s < stages; ++s)
    for (std::size_t i = 0; i < schedule.ops[at(s)].size(); ++i)
      if (const ScheduleOp& op = schedule.ops[at(s)][i]; op.kind != OpKind::W)
        made_by[slot(op, op.virtual_stage * stages + s)] = static_cast<std::int32_t>(i);

  for (int s = 0; s < stages; ++s)
    for (const ScheduleOp& op : schedule.ops[at(s)]) {
      ScheduledOp& scheduled = lane.stages[at(s)].emplace_back();
      scheduled.op = op;
      if (op.kind == OpKind::W) continue;
      const int v = op.virtual_stage * stages + s;
      const int step = op.kind == OpKind::B ? -1 : 1;
      const auto transfer_from = [&](int sender) {
        const Hop hop = order.wraps(sender, step) ? Hop::wrap : step > 0 ? Hop::next : Hop::previous;
        return static_cast<std::int64_t>((at(op.micro_batch) * kHops + at(hop)) * at(lane.context));
      };
      if (step > 0 ? !order.is_first(v) : !order.is_last(v)) {
        const int from = order.further(v, -step);
        scheduled.input_stage = from % stages;
        scheduled.input_op = made_by[slot(op, from)];
        scheduled.transfer = transfer_from(from);
      }
      const bool leaves = step > 0 ? !order.is_last(v) : !order.is_first(v);
      if (blocking_sends && leaves && stages > 1) scheduled.blocking_send = transfer_from(v);
    }
}

}  // namespace equipoise
