#include "sim/memory/derived_sizes.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "policies/base/index.h"

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

}  // namespace

Schedule lane_schedule(const SchedulePolicy& policy, const Layout& layout, std::int64_t micro_batches,
                       bool pairs) {
  const std::int64_t round = layout.bidirectional ? 2 : layout.virtual_pipeline > 1 ? layout.pipeline : 1;
  const std::int64_t least = layout.bidirectional ? std::int64_t{2} * layout.pipeline : 1;
  const std::int64_t wanted = (std::max(least, micro_batches) + round - 1) / round * round;
  const auto of = [&](std::int64_t count) {
    const std::vector<std::int32_t> groups(at(count), 1);
    ScheduleInput input{layout.pipeline, layout.virtual_pipeline, groups};
    input.pairs = pairs;
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
  return context == 1 ? tokens : 2 * ((tokens + chunks - 1) / chunks);
}

double uniform_peak(const MemoryModel& memory, const Schedule& schedule, std::int64_t rank_tokens,
                    int context, int recompute_layers) {
  MicroBatch like;
  like.recompute_layers = recompute_layers;
  const auto count = at(schedule.micro_batches);
  const std::vector<MicroBatch> micro_batches(count, like);
  const std::vector<std::int64_t> tokens(count, rank_tokens);
  const std::vector<std::int64_t> gathered(
      count, memory.gathered_tokens(context, rank_tokens, rank_tokens * context));
  return memory.lane_peak(schedule, {micro_batches, tokens, gathered, context}).parts.total();
}

std::int64_t largest_micro_batch(const MemoryModel& memory, const Schedule& schedule, int context,
                                 std::int64_t limit) {
  return largest(limit, [&](std::int64_t tokens) {
    return uniform_peak(memory, schedule, tokens_of_rank(tokens, context), context) <=
           memory.capacity_bytes();
  });
}

std::int64_t largest_bucket(const MemoryModel& memory, const Schedule& schedule, int context) {
  return largest(kLongest / context, [&](std::int64_t tokens) {
    return uniform_peak(memory, schedule, tokens, context) <= memory.capacity_bytes();
  });
}

int layers_between_probes(int c_min, double m1, int c_max, double m2, int layers) {
  const double per_layer = (m2 - m1) / (c_max - c_min);
  if (!(per_layer > 0)) return m1 >= 0 ? 0 : layers;  // checkpointing frees nothing
  const double needed = std::ceil(c_max - m2 / per_layer);
  return static_cast<int>(std::clamp(needed, 0.0, static_cast<double>(layers)));
}

int layers_to_checkpoint(const MemoryModel& memory, const Schedule& schedule, std::int64_t rank_tokens,
                         int context) {
  const auto free_bytes = [&](int layers) {
    return memory.capacity_bytes() - uniform_peak(memory, schedule, rank_tokens, context, layers);
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

}  // namespace equipoise
