#include "sim/memory/derived_sizes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/rounding.h"

namespace equipoise {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 31;

// Largest value in [0, most] for which `fits`, which holds up to some value and not beyond.
template <class Fits>
std::int64_t largest(std::int64_t most, const Fits& fits) {
  if (fits(most)) return most;
  std::int64_t good = 0, bad = most;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

// Bytes at the peak if every micro-batch has `rank_tokens` tokens on each of `context` ranks and checkpoints
// `recompute_layers` of the model (kStudyRecompute: as the layout says).
double uniform_peak(const MemoryModel& memory, const Schedule& schedule, std::int64_t rank_tokens,
                    int context, int recompute_layers = kStudyRecompute) {
  MicroBatch like;
  like.recompute_layers = recompute_layers;
  const auto count = at(schedule.micro_batches);
  const std::vector<MicroBatch> micro_batches(count, like);
  const std::vector<std::int64_t> tokens(count, rank_tokens);
  const std::vector<std::int64_t> gathered(
      count, memory.gathered_tokens(context, rank_tokens, rank_tokens * context));
  return memory.lane_peak(schedule, {micro_batches, tokens, gathered, context}).parts.total();
}

}  // namespace

Schedule lane_schedule(const SchedulePolicy& policy, const Layout& layout, std::int64_t micro_batches,
                       bool pairs) {
  const std::int64_t round = layout.bidirectional ? 2 : layout.virtual_pipeline > 1 ? layout.pipeline : 1;
  const std::int64_t least = layout.bidirectional ? std::int64_t{2} * layout.pipeline : 1;
  const std::int64_t wanted = rounded_up(std::max(least, micro_batches), round);
  const auto of = [&](std::int64_t count) {
    const std::vector<std::int32_t> groups(at(count), 1);
    ScheduleInput input{layout.pipeline, layout.virtual_pipeline, groups};
    input.pairs = pairs;
    input.in_step = layout.evens_out_stages();
    return policy.make(input);
  };
  std::int64_t count = std::min<std::int64_t>(wanted, std::int64_t{2} * layout.pipeline);
  Schedule schedule = of(count);
  while (count < wanted) {
    count = std::min(wanted, 2 * count);
    Schedule longer = of(count);
    if (longer.kept_bound == schedule.kept_bound) break;
    schedule = std::move(longer);
  }
  return schedule;
}

std::int64_t tokens_of_rank(std::int64_t tokens, int context) {
  const std::int64_t chunks = std::int64_t{2} * context;
  return 2 * ((tokens + chunks - 1) / chunks);
}

std::int64_t largest_micro_batch(const MemoryModel& memory, const Schedule& schedule, int context,
                                 std::int64_t limit) {
  return largest(limit, [&](std::int64_t tokens) {
    return uniform_peak(memory, schedule, tokens_of_rank(tokens, context), context) <= memory.room_bytes();
  });
}

std::int64_t largest_bucket(const MemoryModel& memory, const Schedule& schedule, int context) {
  return largest(kLongest / context, [&](std::int64_t tokens) {
    return uniform_peak(memory, schedule, tokens, context) <= memory.room_bytes();
  });
}

int layers_between_probes(int c_min, double m1, int c_max, double m2, int layers) {
  const double per_layer = (m2 - m1) / (c_max - c_min);
  if (!(per_layer > 0)) return m1 >= 0 ? 0 : layers;  // because checkpointing frees nothing
  const double needed = std::ceil(c_max - m2 / per_layer);
  return static_cast<int>(std::clamp(needed, 0.0, static_cast<double>(layers)));
}

int layers_to_checkpoint(const MemoryModel& memory, const Schedule& schedule, std::int64_t rank_tokens,
                         int context) {
  const auto free_bytes = [&](int layers) {
    return memory.room_bytes() - uniform_peak(memory, schedule, rank_tokens, context, layers);
  };
  if (free_bytes(0) >= 0) return 0;
  // Both probes recompute, so that both hold the layer at work.
  const int c_min = 1, c_max = memory.model_layers();
  const double m1 = free_bytes(c_min), m2 = free_bytes(c_max);
  if (m2 < 0) return -1;
  if (m1 >= 0) return c_min;
  int needed = std::max(c_min, layers_between_probes(c_min, m1, c_max, m2, c_max));
  while (free_bytes(needed) < 0) ++needed;
  while (free_bytes(needed - 1) >= 0) --needed;
  return needed;
}

namespace {

// The numbers C of checkpoint_by_stage, kept in the micro-batches. On small lanes of two layers per stage
// they recompute 13 % more than the best C (tests/sim/memory/test_derived_sizes.cpp).
class Checkpoints {
 public:
  Checkpoints(const MemoryModel& memory, const Schedule& schedule, const LaneLoad& load,
              std::span<MicroBatch> micro_batches)
      : memory_(memory), schedule_(schedule), load_(load), micro_batches_(micro_batches) {
    const int virtual_stages = schedule.stages * schedule.virtual_stages;
    for (MicroBatch& m : micro_batches) m.recompute_by_stage.assign(at(virtual_stages), 0);
    for (int s = 0; s < schedule.stages; ++s) {
      int backwards = 0;
      for (const ScheduleOp& op : schedule.ops[at(s)]) {
        if (op.kind != OpKind::B) continue;
        const auto number = at(backwards++ + schedule.stages - 1 - s);
        if (number >= ops_.size()) ops_.resize(number + 1);
        ops_[number].push_back({at(op.micro_batch), op.virtual_stage * schedule.stages + s});
      }
    }
    layers_.assign(ops_.size(), 0);
    for (int v = 0; v < virtual_stages; ++v) most_ = std::max(most_, memory.layers(v));
  }

  void choose() {
    while (add_where_it_overflows()) {
    }
    const auto order = positions_by(layers_.size(), [&](std::size_t i) { return tokens_of(i); });
    if (fits())
      for (const std::size_t c : order) lower(c);
    else
      for (const std::size_t c : order) set(c, most_);
  }

 private:
  struct Op {
    std::size_t micro_batch = 0;
    int virtual_stage = 0;
  };

  void set(std::size_t c, int layers) {
    layers_[c] = layers;
    for (const Op& op : ops_[c])
      micro_batches_[op.micro_batch].recompute_by_stage[at(op.virtual_stage)] =
          static_cast<std::int16_t>(std::min(layers, memory_.layers(op.virtual_stage)));
  }

  [[nodiscard]] std::int64_t tokens_of(std::size_t c) const {
    std::int64_t tokens = 0;
    for (const Op& op : ops_[c]) tokens += load_.rank_tokens[op.micro_batch];
    return tokens;
  }

  [[nodiscard]] bool fits() const {
    for (int s = 0; s < schedule_.stages; ++s)
      if (memory_.stage_peak(schedule_, load_, s).parts.total() > memory_.room_bytes()) return false;
    return true;
  }

  // Returns false if everything fits, or no more can be recomputed.
  bool add_where_it_overflows() {
    for (int s = 0; s < schedule_.stages; ++s) {
      const MemoryPeak peak = memory_.stage_peak(schedule_, load_, s);
      const double over = peak.parts.total() - memory_.room_bytes();
      if (over <= 0) continue;
      if (const std::size_t c = largest_in_flight(s, peak.op_index); c < layers_.size()) {
        const double freed =
            as_double(largest_) * (memory_.kept_per_token() - memory_.kept_per_token_recomputed());
        const double wanted = freed > 0 ? std::ceil(over / freed) : 1;
        set(c, static_cast<int>(std::min(as_double(most_), layers_[c] + std::max(1.0, wanted))));
        return true;
      }
    }
    return false;
  }

  // Finds the micro-batch with the most tokens that the stage holds at the op and that can recompute more
  // layers. Returns its index, or layers_.size() if there is none, and sets largest_ to its tokens.
  std::size_t largest_in_flight(int stage, int op_index) {
    const std::vector<ScheduleOp>& ops = schedule_.ops[at(stage)];
    std::vector<char> held(micro_batches_.size() * at(schedule_.virtual_stages), 0);
    std::size_t found = layers_.size();
    largest_ = 0;
    int backwards = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      char& is_held = held[at(ops[i].micro_batch) * at(schedule_.virtual_stages) + at(ops[i].virtual_stage)];
      if (ops[i].kind != OpKind::B) {
        const bool keeps = ops[i].kind == OpKind::F || ops[i].kind == OpKind::R;
        if (keeps && static_cast<int>(i) <= op_index) is_held = 1;
        continue;
      }
      const auto c = at(backwards++ + schedule_.stages - 1 - stage);
      const std::int64_t tokens = load_.rank_tokens[at(ops[i].micro_batch)];
      if (static_cast<int>(i) < op_index || is_held == 0) continue;
      if (layers_[c] >= memory_.layers(ops[i].virtual_stage * schedule_.stages + stage)) continue;
      if (tokens <= largest_) continue;
      largest_ = tokens;
      found = c;
    }
    return found;
  }

  // Lowers the number to the fewest layers that fit.
  void lower(std::size_t c) {
    int enough = layers_[c], too_few = -1;
    while (enough - too_few > 1) {
      const int middle = too_few + (enough - too_few) / 2;
      set(c, middle);
      (fits() ? enough : too_few) = middle;
    }
    set(c, enough);
  }

  const MemoryModel& memory_;
  const Schedule& schedule_;
  LaneLoad load_;
  std::span<MicroBatch> micro_batches_;
  std::vector<std::vector<Op>> ops_;  // by number
  std::vector<int> layers_;           // C
  int most_ = 0;                      // most layers of any virtual stage
  std::int64_t largest_ = 0;
};

}  // namespace

void checkpoint_by_stage(const MemoryModel& memory, const Schedule& schedule,
                         std::span<const std::int64_t> rank_tokens, int context,
                         std::span<MicroBatch> micro_batches) {
  std::vector<std::int64_t> gathered;
  for (const std::int64_t tokens : rank_tokens)
    gathered.push_back(memory.gathered_tokens(context, tokens, tokens * context));
  Checkpoints(memory, schedule, {micro_batches, rank_tokens, gathered, context}, micro_batches).choose();
}

}  // namespace equipoise
