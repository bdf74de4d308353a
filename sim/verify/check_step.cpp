#include "sim/verify/check_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"

namespace equipoise {
namespace {

constexpr std::int64_t kMostCheckedTasks = 3'000'000;  // the graph takes about 250 bytes per task meanwhile

std::string place(std::size_t lane, std::size_t stage, const ScheduleOp& op) {
  return "lane " + std::to_string(lane) + ", stage " + std::to_string(stage) + ", " +
         std::string(letter_of(op.kind)) + " of micro-batch " + std::to_string(op.micro_batch);
}

// Names the first op whose times differ from the graph's, or the step's end; empty if all are equal.
std::string wrong_time(const StepToCheck& step, const LoweredProgram& lowered, const EngineResult& graph) {
  for (std::size_t l = 0; l < step.program.lanes.size(); ++l) {
    const OpLane& lane = step.program.lanes[l];
    const std::size_t ranks = at(lane.context) * at(step.program.tensor);
    for (std::size_t s = 0; s < lane.stages.size(); ++s)
      for (std::size_t i = 0; i < lane.stages[s].size() * ranks; ++i) {
        const std::size_t op = i / ranks;
        const LoweredProgram::Stage& tasks = lowered.lanes[l][s];
        // The second op of a pair starts with the first.
        const bool starts =
            ends_pair(lane.stages[s], op) || step.result.lanes[l].start[s][i] == graph.end[tasks.begin[i]];
        if (!starts || step.result.lanes[l].end[s][i] != graph.end[tasks.end[i]])
          return place(l, s, lane.stages[s][op].op) + " on rank " + std::to_string(i % ranks) +
                 (starts ? " ends" : " starts") + " at another time";
      }
  }
  if (step.result.makespan == graph.makespan) return "";
  return "the step takes " + std::to_string(to_seconds(step.result.makespan)) + " s, by the graph " +
         std::to_string(to_seconds(graph.makespan)) + " s";
}

void check_times(const StepToCheck& step, std::vector<Check>& checks) {
  const std::string what = "timeline, by the longest path of a task graph";
  if (const std::int64_t tasks = step.program.tasks(); tasks > kMostCheckedTasks) {
    checks.push_back({what, std::nullopt,
                      "a step of " + std::to_string(tasks) + " tasks; up to " +
                          std::to_string(kMostCheckedTasks) + " are checked"});
    return;
  }
  const LoweredProgram lowered = lower(step.program, step.options, step.result);
  const std::string fault = wrong_time(step, lowered, run(lowered.graph));
  checks.push_back({what, fault.empty(), fault});
}

// Names the first op that is missing, runs twice or runs before what it needs. Lanes in lockstep also run ops
// of micro-batches without documents, which are numbered after the lane's own and need no counterpart.
std::string wrong_order(const StepToCheck& step) {
  for (std::size_t l = 0; l < step.program.lanes.size(); ++l) {
    const OpLane& lane = step.program.lanes[l];
    const std::size_t ranks = at(lane.context) * at(step.program.tensor);
    for (std::size_t s = 0; s < lane.stages.size(); ++s) {
      std::set<std::tuple<int, int, OpKind>> done;  // virtual stage, micro-batch
      const auto have = [&](const ScheduleOp& op, OpKind kind) {
        return done.contains({op.virtual_stage, op.micro_batch, kind});
      };
      for (std::size_t i = 0; i < lane.stages[s].size(); ++i) {
        const ScheduledOp& scheduled = lane.stages[s][i];
        const ScheduleOp& op = scheduled.op;
        if (!done.insert({op.virtual_stage, op.micro_batch, op.kind}).second)
          return place(l, s, op) + " runs twice";
        const bool own = at(op.micro_batch) < step.step.lanes[l].micro_batches.size();
        if (own && op.kind == OpKind::R && !have(op, OpKind::D))
          return place(l, s, op) + " has nothing to run again";
        if (own && op.kind == OpKind::B && !have(op, OpKind::F) && !have(op, OpKind::R))
          return place(l, s, op) + " runs before its forward";
        if (own && op.kind == OpKind::W && !have(op, OpKind::B))
          return place(l, s, op) + " runs before its B";
        if (scheduled.input_stage == kNoInput) continue;
        const auto from = at(scheduled.input_stage), input = at(scheduled.input_op);
        for (std::size_t r = 0; r < ranks; ++r)
          if (step.result.lanes[l].end[from][input * ranks + r] >
              step.result.lanes[l].start[s][i * ranks + r])
            return place(l, s, op) + " starts before " + place(l, from, lane.stages[from][input].op) +
                   " ends";
      }
      for (const auto& [virtual_stage, micro_batch, kind] : done)
        if (at(micro_batch) < step.step.lanes[l].micro_batches.size() && kind != OpKind::B &&
            !done.contains({virtual_stage, micro_batch, OpKind::B}))
          return place(l, s, {kind, micro_batch, virtual_stage}) + " has no backward";
    }
  }
  return "";
}

// What one micro-batch has on a virtual stage, in bytes.
struct Holding {
  double activations = 0, softmax = 0, kv = 0, kv_gradients = 0;
  [[nodiscard]] double total() const { return activations + softmax + kv + kv_gradients; }
};

// What a stage holds, as a list by virtual stage and micro-batch. Every op says what it leaves behind.
class Holdings {
 public:
  Holdings(const MemoryModel& model, const LaneLoad& load, std::size_t stage, bool splits)
      : model_(model),
        load_(load),
        stage_(stage),
        splits_(splits),
        fixed_(model.fixed(static_cast<int>(stage)).total()) {}

  // The most that is held during the op, in its first or its last layer. A pair's forward runs with its
  // backward, the next op, and is counted there.
  double run(const ScheduleOp& op) {
    const int v = op.virtual_stage * model_.stages() + static_cast<int>(stage_);
    const Footprint own = model_.footprint(v, load_, at(op.micro_batch));
    begin(op, v);
    const Key key{op.virtual_stage, op.micro_batch};
    if (op.with_next) {
      pair_ = {held_, own, key};
      leave(op, v, own);
      return 0;
    }
    const Forward forward = std::exchange(pair_, std::nullopt).value_or(Forward{held_, {}, key});
    const auto& before = forward.before;
    leave(op, v, own);
    const int layers = std::max(1, model_.layers(v));
    double most = 0;
    for (const int layer : {0, layers - 1}) {
      double bytes = fixed_ + own.gathered_kv + own.buffers + forward.own.gathered_kv + forward.own.buffers +
                     std::max(own.logits, forward.own.logits);
      for (const auto& [place, after] : held_) {
        const auto found = before.find(place);
        const Holding was = found == before.end() ? Holding{} : found->second;
        // Additions count from the beginning of their layer; removals count from its end.
        const auto now = [&](double from, double to) {
          return from + (to - from) * (to > from ? layer + 1 : layer) / layers;
        };
        bytes += now(was.activations, after.activations) + now(was.kv, after.kv) +
                 now(was.kv_gradients, after.kv_gradients);
        // Its own softmax is in own.logits, or does not exist yet.
        if (place != key && place != forward.key) bytes += after.softmax;
      }
      most = std::max(most, bytes);
    }
    std::erase_if(held_, [](const auto& entry) { return entry.second.total() == 0; });
    return most;
  }

 private:
  using Key = std::pair<int, std::int32_t>;
  struct Forward {
    std::map<Key, Holding> before;  // what was held before it
    Footprint own;
    Key key;
  };
  [[nodiscard]] const Chunk& chunk(std::int32_t micro_batch) const {
    return load_.micro_batches[at(micro_batch)].chunk;
  }
  [[nodiscard]] bool ahead(const ScheduleOp& op) const {
    return load_.recompute_ahead && model_.stages() == 1 && chunk(op.micro_batch).count > 1;
  }

  // ChunkFlow without a pipeline: the group's k-th R has run before its k-th B.
  void begin(const ScheduleOp& op, int v) {
    if (!ahead(op)) return;
    const Chunk& own = chunk(op.micro_batch);
    if (op.kind == OpKind::D) dropped_ = own.index + 1;
    if (op.kind == OpKind::F && own.index == 0) dropped_ = 0;
    const int k = own.count - own.index;
    if (op.kind != OpKind::B || k > dropped_) return;
    const std::int32_t next = op.micro_batch - own.index + dropped_ - k;
    const Footprint of_next = model_.footprint(v, load_, at(next));
    held_[{op.virtual_stage, next}].activations = of_next.activations;
    held_[{op.virtual_stage, next}].softmax = of_next.softmax;
  }

  void leave(const ScheduleOp& op, int v, const Footprint& own) {
    Holding& mine = held_[{op.virtual_stage, op.micro_batch}];
    const Chunk& place = chunk(op.micro_batch);
    switch (op.kind) {
      case OpKind::D:
        mine.kv = own.kv;
        return;
      case OpKind::F:
        mine.kv = own.kv;
        [[fallthrough]];
      case OpKind::R:
        mine.activations = own.activations;
        mine.softmax = own.softmax;
        return;
      case OpKind::W:
        mine.activations = 0;
        return;
      case OpKind::B:
        if (!splits_ || op.whole) mine.activations = 0;
        mine.softmax = 0;
        mine.kv = mine.kv_gradients = 0;
        if (place.index + 1 < place.count) return;
        // The last chunk's backward reaches the keys of all chunks before it.
        for (std::int32_t i = 1; i <= place.index; ++i)
          held_[{op.virtual_stage, op.micro_batch - i}].kv_gradients =
              model_.footprint(v, load_, at(op.micro_batch - i)).kv;
    }
  }

  const MemoryModel& model_;
  const LaneLoad& load_;
  std::size_t stage_;
  bool splits_;
  double fixed_;
  int dropped_ = 0;
  std::map<Key, Holding> held_;
  std::optional<Forward> pair_;  // whose backward comes next
};

// The most that any stage of a lane holds. `tokens` belongs to its ranks, of which the fullest counts.
double most_held(const StepToCheck& step, std::size_t l, const LaneTokens& tokens) {
  std::vector<MicroBatch> micro_batches = step.step.lanes[l].micro_batches;
  micro_batches.resize(tokens.gathered.size());  // lanes in lockstep also have empty ones
  const std::size_t ranks = tokens.rank_tokens.size() / tokens.gathered.size();
  std::vector<std::int64_t> fullest;
  for (auto rank = tokens.rank_tokens.begin(); rank != tokens.rank_tokens.end();
       rank += static_cast<std::ptrdiff_t>(ranks))
    fullest.push_back(*std::max_element(rank, rank + static_cast<std::ptrdiff_t>(ranks)));
  const LaneLoad load{micro_batches, fullest, tokens.gathered, step.step.lanes[l].context,
                      step.recompute_ahead};
  const auto& stages = step.program.lanes[l].stages;
  bool splits = false;
  for (const auto& stage : stages)
    for (const ScheduledOp& scheduled : stage) splits = splits || scheduled.op.kind == OpKind::W;
  double most = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Holdings held(step.memory, load, s, splits);
    for (const ScheduledOp& scheduled : stages[s]) most = std::max(most, held.run(scheduled.op));
  }
  return most;
}

std::string wrong_memory(const StepToCheck& step) {
  double most = 0;
  for (std::size_t l = 0; l < step.work.lane_tokens.size(); ++l)
    if (!step.work.lane_tokens[l].gathered.empty())
      most = std::max(most, most_held(step, l, step.work.lane_tokens[l]));
  const double told = step.work.peak.parts.total();
  if (std::abs(told - most) <= 1e-9 * std::max(told, most)) return "";
  return std::to_string(told / kGiB) + " GiB, counted again " + std::to_string(most / kGiB) + " GiB";
}

}  // namespace

std::vector<Check> check_step(const StepToCheck& step) {
  std::vector<Check> checks;
  const auto add = [&](const char* what, const std::string& fault) {
    checks.push_back({what, fault.empty(), fault});
  };
  add("schedule, op by op", wrong_order(step));
  check_times(step, checks);
  add("memory, counted again", wrong_memory(step));
  return checks;
}

}  // namespace equipoise
