// Runs every stage as far as it can go; a stage that has advanced wakes those that may wait for it. An op's
// times are maxima and sums over its inputs alone, so the order in which stages are visited is invisible.
#include "sim/schedule/timing.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

constexpr double kNotYet = -1;

class ScheduleExecutor {
 public:
  ScheduleExecutor(const Schedule& schedule, const OpDurations& durations, Hops hops)
      : schedule_(schedule),
        durations_(durations),
        hops_(hops),
        stages_(at(schedule.stages)),
        positions_(schedule.bidirectional ? stages_ : stages_ * at(schedule.virtual_stages)),
        next_(stages_, 0),
        free_at_(stages_, 0) {
    const std::size_t slots = positions_ * at(schedule.micro_batches);
    forward_end_.assign(slots, kNotYet);
    kept_end_.assign(slots, kNotYet);
    backward_end_.assign(slots, kNotYet);
    result_.stages.resize(stages_);
    result_.busy.assign(stages_, 0);
    result_.recompute.assign(stages_, 0);
    result_.peak_kept = peak_kept(schedule);
  }

  TimedSchedule run() {
    std::vector<std::size_t> awake;
    std::vector<char> queued(stages_, 1);
    for (std::size_t s = stages_; s-- > 0;) awake.push_back(s);
    while (!awake.empty()) {
      const std::size_t s = awake.back();
      awake.pop_back();
      queued[s] = 0;
      if (!advance(s)) continue;
      for (const std::size_t neighbour : {(s + 1) % stages_, (s + stages_ - 1) % stages_}) {
        if (queued[neighbour] != 0) continue;
        queued[neighbour] = 1;
        awake.push_back(neighbour);
      }
    }
    for (std::size_t s = 0; s < stages_; ++s)
      if (next_[s] < schedule_.ops[s].size()) result_.stalled.push_back(explain(s));
    return std::move(result_);
  }

 private:
  // Where an op's input comes from: the end of another op, and whether it travels between ranks.
  struct Input {
    double ready = 0;
    bool hop = false;
    [[nodiscard]] bool missing() const { return ready == kNotYet; }
  };

  // Place of an op in the chain of positions_ layer blocks that a micro-batch goes through.
  [[nodiscard]] std::size_t position(std::size_t stage, const ScheduleOp& op) const {
    if (schedule_.bidirectional) return op.virtual_stage == 0 ? stage : stages_ - 1 - stage;
    return at(op.virtual_stage) * stages_ + stage;
  }
  [[nodiscard]] std::size_t stage_at(std::size_t place, const ScheduleOp& op) const {
    return schedule_.bidirectional && op.virtual_stage == 1 ? stages_ - 1 - place : place % stages_;
  }
  [[nodiscard]] std::size_t slot(const ScheduleOp& op, std::size_t place) const {
    return at(op.micro_batch) * positions_ + place;
  }

  [[nodiscard]] Input input_of(std::size_t stage, const ScheduleOp& op) const {
    const std::size_t place = position(stage, op);
    const std::size_t here = slot(op, place);
    const bool first = place == 0;
    const bool last = place + 1 == positions_;
    switch (op.kind) {
      case OpKind::F:
      case OpKind::D:
        return first ? Input{} : Input{forward_end_[here - 1], stages_ > 1};
      case OpKind::R:
        return first ? Input{forward_end_[here], false} : Input{kept_end_[here - 1], stages_ > 1};
      case OpKind::B:
        if (last || kept_end_[here] == kNotYet) return {kept_end_[here], false};
        return {backward_end_[here + 1], stages_ > 1};
      case OpKind::W:
        return {backward_end_[here], false};
    }
    return {};
  }

  // Whether the op's result goes to another rank.
  [[nodiscard]] bool sends(std::size_t stage, const ScheduleOp& op) const {
    if (stages_ == 1 || op.kind == OpKind::W) return false;
    const std::size_t place = position(stage, op);
    return op.kind == OpKind::B ? place > 0 : place + 1 < positions_;
  }

  void finish(std::size_t stage, const ScheduleOp& op, double end) {
    const std::size_t here = slot(op, position(stage, op));
    if (op.kind == OpKind::F || op.kind == OpKind::D) forward_end_[here] = end;
    if (op.kind == OpKind::F || op.kind == OpKind::R) kept_end_[here] = end;
    if (op.kind == OpKind::B) backward_end_[here] = end;
  }

  // Runs ops of the stage until one has to wait; whether any ran.
  bool advance(std::size_t stage) {
    const std::vector<ScheduleOp>& ops = schedule_.ops[stage];
    const std::size_t before = next_[stage];
    for (std::size_t& i = next_[stage]; i < ops.size();) {
      const std::size_t count = ops[i].with_next && i + 1 < ops.size() ? 2 : 1;  // ops issued together
      double start = free_at_[stage], duration = 0;
      for (std::size_t o = i; o < i + count; ++o) {
        const Input input = input_of(stage, ops[o]);
        if (input.missing()) return i > before;
        start = std::max(start, input.ready + (input.hop ? hops_.seconds : 0));
        duration += durations_[stage][o];
      }
      const double end = start + duration;
      result_.busy[stage] += duration;
      result_.makespan = std::max(result_.makespan, end);
      free_at_[stage] = end;
      for (std::size_t o = i; o < i + count; ++o) {
        finish(stage, ops[o], end);
        result_.stages[stage].push_back({ops[o], start, end, count > 1 ? durations_[stage][o] : 0});
        if (ops[o].kind == OpKind::R) result_.recompute[stage] += duration;
        if (hops_.blocking && sends(stage, ops[o])) free_at_[stage] = end + hops_.seconds;
      }
      i += count;
    }
    return next_[stage] > before;
  }

  [[nodiscard]] std::string explain(std::size_t stage) const {
    const std::size_t first = next_[stage];
    const bool second =
        schedule_.ops[stage][first].with_next && !input_of(stage, schedule_.ops[stage][first]).missing();
    const ScheduleOp& op = schedule_.ops[stage][first + (second ? 1 : 0)];
    const std::size_t place = position(stage, op);
    std::string what = "its own forward";
    std::size_t where = stage;
    if (op.kind == OpKind::W) what = "its own backward";
    if (op.kind == OpKind::B && kept_end_[slot(op, place)] != kNotYet) {
      what = "the backward";
      where = stage_at(place + 1, op);
    } else if (op.kind != OpKind::B && op.kind != OpKind::W && place > 0) {
      what = op.kind == OpKind::R ? "the recomputing forward" : "the forward";
      where = stage_at(place - 1, op);
    }
    return concatenated("stage ", stage, ": ", describe_op(op, schedule_.virtual_stages), " waits for ", what,
                        " on stage ", where);
  }

  const Schedule& schedule_;
  const OpDurations& durations_;
  Hops hops_;
  std::size_t stages_;
  std::size_t positions_;  // stages * virtual stages
  // By micro-batch and position: ends of F or D, of F or R, of B.
  std::vector<double> forward_end_;
  std::vector<double> kept_end_;
  std::vector<double> backward_end_;
  // By stage.
  std::vector<std::size_t> next_;
  std::vector<double> free_at_;
  TimedSchedule result_;
};

}  // namespace

bool splits_backward(const Schedule& schedule) {
  for (const std::vector<ScheduleOp>& ops : schedule.ops)
    for (const ScheduleOp& op : ops)
      if (op.kind == OpKind::W) return true;
  return false;
}

std::vector<int> peak_kept(const Schedule& schedule) {
  const bool splits = splits_backward(schedule);
  std::vector<int> peaks;
  for (const std::vector<ScheduleOp>& ops : schedule.ops) {
    int kept = 0;
    int peak = 0;
    for (const ScheduleOp& op : ops) {
      if (op.kind == OpKind::F || op.kind == OpKind::R) peak = std::max(peak, ++kept);
      if (releases(op, splits)) --kept;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::string describe_op(const ScheduleOp& op, int virtual_stages) {
  std::string text(letter_of(op.kind));
  text += " of micro-batch " + std::to_string(op.micro_batch);
  if (virtual_stages > 1) text += ", virtual stage " + std::to_string(op.virtual_stage);
  return text;
}

OpDurations op_durations(const Schedule& schedule, std::span<const double> forward, double backward_ratio) {
  assert(forward.size() == at(schedule.micro_batches));
  const double half = splits_backward(schedule) ? 0.5 : 1.0;
  OpDurations durations(schedule.ops.size());
  for (std::size_t s = 0; s < schedule.ops.size(); ++s) {
    durations[s].reserve(schedule.ops[s].size());
    for (const ScheduleOp& op : schedule.ops[s]) {
      const int parts = schedule.bidirectional ? 1 : schedule.virtual_stages;  // of a rank's layers
      const double one = forward[at(op.micro_batch)] / parts;
      const bool backward = op.kind == OpKind::B || op.kind == OpKind::W;
      durations[s].push_back(backward ? one * backward_ratio * (op.whole ? 1.0 : half) : one);
    }
  }
  return durations;
}

double bubble_ratio(const TimedSchedule& timed) {
  if (timed.makespan <= 0) return 0;
  double useful = 0;
  for (std::size_t s = 0; s < timed.busy.size(); ++s) useful += timed.busy[s] - timed.recompute[s];
  return 1 - useful / (as_double(timed.busy.size()) * timed.makespan);
}

TimedSchedule time_schedule(const Schedule& schedule, const OpDurations& durations, Hops hops) {
  return ScheduleExecutor(schedule, durations, hops).run();
}

namespace {

constexpr std::size_t kMostProblems = 20;
constexpr std::size_t kOpKinds = 5;

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

  // Sizes and ranges: whatever follows may index freely.
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

  // Position of an op on the stage under check, -1 if it is not there.
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
    for (const std::string& stall : time_schedule(schedule_, durations).stalled) report("deadlock: " + stall);
  }

  const ScheduleInput& input_;
  const Schedule& schedule_;
  bool split_ = false;
  std::array<std::vector<int>, kOpKinds> positions_;  // by kind, then slot: position on the stage under check
  std::vector<char> whole_;                           // by slot: its B is whole
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> schedule_problems(const ScheduleInput& input, const Schedule& schedule) {
  return ScheduleValidator(input, schedule).run();
}

}  // namespace equipoise
