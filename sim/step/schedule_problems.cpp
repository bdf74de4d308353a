#include "sim/step/schedule_problems.h"

#include <algorithm>
#include <array>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/step/schedule_timing.h"

namespace equipoise {

namespace {

constexpr std::size_t kMostProblems = 20;

class ScheduleValidator {
 public:
  ScheduleValidator(const ScheduleInput& input, const Schedule& schedule)
      : input_(input), schedule_(schedule) {}

  std::vector<std::string> run() {
    if (!check_shape()) return std::move(problems_);
    split_ = splits_backward(schedule_);
    for (std::size_t s = 0; s < schedule_.ops.size(); ++s) check_stage(s);
    if (problems_.empty()) check_deadlock();
    return std::move(problems_);
  }

 private:
  void report(const auto&... problem) {
    if (problems_.size() < kMostProblems) problems_.push_back(concatenated(problem...));
  }

  // Checks sizes and ranges first, so that the later checks can index freely.
  bool check_shape() {
    std::int64_t expected = 0;
    for (const std::int32_t size : input_.group_sizes) expected += size;
    const auto stages = at(input_.stages);
    if (schedule_.stages != input_.stages ||
        schedule_.virtual_stages != (schedule_.bidirectional ? 2 : input_.virtual_stages))
      report("stages or virtual stages differ from the input's");
    if (schedule_.micro_batches != expected)
      report("holds ", schedule_.micro_batches, " micro-batches, the input has ", expected);
    if (schedule_.ops.size() != stages || schedule_.kept_bound.size() != stages)
      report("ops or kept_bound are not listed for each of the ", stages, " stages");
    for (std::size_t s = 0; s < schedule_.ops.size(); ++s)
      for (const ScheduleOp& op : schedule_.ops[s])
        if (op.micro_batch < 0 || op.micro_batch >= schedule_.micro_batches || op.virtual_stage < 0 ||
            op.virtual_stage >= schedule_.virtual_stages || at(op.kind) >= kOpKinds)
          report("stage ", s, ": an op is out of range: ", describe_op(op, 2));
    return problems_.empty();
  }

  [[nodiscard]] std::size_t slot(int micro_batch, int virtual_stage) const {
    return at(micro_batch) * at(schedule_.virtual_stages) + at(virtual_stage);
  }

  void check_stage(std::size_t stage) {
    const std::size_t slots = slot(schedule_.micro_batches, 0);
    for (std::vector<int>& of_kind : positions_) of_kind.assign(slots, -1);
    whole_.assign(slots, 0);
    int index = 0;
    int kept = 0;
    for (const ScheduleOp& op : schedule_.ops[stage]) {
      int& position = positions_[at(op.kind)][slot(op.micro_batch, op.virtual_stage)];
      if (position >= 0) report(where(stage, op) + " runs twice");
      position = index++;
      if (op.kind == OpKind::F || op.kind == OpKind::R) ++kept;
      if (kept > schedule_.kept_bound[stage])
        report(where(stage, op), " makes ", kept, " kept activations, promised were at most ",
               schedule_.kept_bound[stage]);
      if (releases(op, split_)) --kept;
      if (op.whole && op.kind == OpKind::B) whole_[slot(op.micro_batch, op.virtual_stage)] = 1;
      if (schedule_.bidirectional && op.virtual_stage != direction_of(op.micro_batch))
        report(where(stage, op) + " runs in the other direction");
    }
    check_pairs(stage);
    for (int v = 0; v < schedule_.virtual_stages; ++v) {
      int first = 0;
      for (const int size : input_.group_sizes) {
        check_group(stage, v, first, size);
        first += size;
      }
    }
  }

  void check_pairs(std::size_t stage) {
    const std::vector<ScheduleOp>& ops = schedule_.ops[stage];
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!ops[i].with_next) continue;
      if (i + 1 == ops.size())
        report(where(stage, ops[i]) + " is the first of a pair without a second");
      else if (ops[i].kind != OpKind::F || ops[i + 1].kind != OpKind::B || ops[i + 1].with_next)
        report(where(stage, ops[i]) + " makes a pair with " +
               describe_op(ops[i + 1], schedule_.virtual_stages) + "; a pair is an F and then a B");
      else if (ops[i].micro_batch == ops[i + 1].micro_batch)
        report(where(stage, ops[i]) + " makes a pair with its own micro-batch's B, which waits for it");
    }
  }

  // Position of an op on the stage under check; -1 if it has none there.
  [[nodiscard]] int position(OpKind kind, int micro_batch, int virtual_stage) const {
    return positions_[at(kind)][slot(micro_batch, virtual_stage)];
  }

  [[nodiscard]] std::string where(std::size_t stage, const ScheduleOp& op) const {
    return "stage " + std::to_string(stage) + ": " + describe_op(op, schedule_.virtual_stages);
  }

  void check_group(std::size_t stage, int v, int first, int size) {
    if (schedule_.bidirectional && v != direction_of(first)) return;
    for (int i = first; i < first + size; ++i) {
      check_micro_batch(stage, v, i);
      if (i == first) continue;
      if (first_forward(i, v) < first_forward(i - 1, v))
        report(where(stage, {OpKind::F, i, v}) + " runs before that of the chunk whose KV it reads");
      if (position(OpKind::B, i, v) > position(OpKind::B, i - 1, v))
        report(where(stage, {OpKind::B, i - 1, v}) +
               " runs before that of the later chunk whose KV gradients it needs");
    }
  }

  [[nodiscard]] int first_forward(int micro_batch, int v) const {
    return std::max(position(OpKind::F, micro_batch, v), position(OpKind::D, micro_batch, v));
  }

  void check_micro_batch(std::size_t stage, int v, int i) {
    const int forward = position(OpKind::F, i, v);
    const int dropped = position(OpKind::D, i, v);
    const int recompute = position(OpKind::R, i, v);
    const int backward = position(OpKind::B, i, v);
    const int weight = position(OpKind::W, i, v);
    if ((forward >= 0) == (dropped >= 0))
      report(where(stage, {OpKind::F, i, v}) +
             (forward >= 0 ? " runs although D does too" : " is missing, and so is D"));
    if ((dropped >= 0) != (recompute >= 0))
      report(where(stage, {OpKind::R, i, v}) + (dropped >= 0 ? " is missing after D" : " runs without a D"));
    if (recompute >= 0 && recompute < dropped) report(where(stage, {OpKind::R, i, v}) + " runs before its D");
    if (backward < 0)
      report(where(stage, {OpKind::B, i, v}) + " is missing");
    else if (backward < std::max(forward, recompute))
      report(where(stage, {OpKind::B, i, v}) + " runs before its F or R");
    if (!split_) return;
    if (whole_[slot(i, v)] != 0) {
      if (weight >= 0) report(where(stage, {OpKind::W, i, v}) + " runs although its B is whole");
    } else if (weight < 0)
      report(where(stage, {OpKind::W, i, v}) + " is missing");
    else if (weight < backward)
      report(where(stage, {OpKind::W, i, v}) + " runs before its B");
  }

  void check_deadlock() {
    OpDurations durations(schedule_.ops.size());
    for (std::size_t s = 0; s < durations.size(); ++s) durations[s].assign(schedule_.ops[s].size(), 1.0);
    try {
      time_schedule(schedule_, durations);
    } catch (const EngineError& stall) {
      report("deadlock: ", stall.what());
    }
  }

  const ScheduleInput& input_;
  const Schedule& schedule_;
  bool split_ = false;
  std::array<std::vector<int>, kOpKinds> positions_;  // by kind, then slot: position on the stage under check
  std::vector<char> whole_;                           // by slot: whether its B is whole
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> schedule_problems(const ScheduleInput& input, const Schedule& schedule) {
  return ScheduleValidator(input, schedule).run();
}

}  // namespace equipoise
