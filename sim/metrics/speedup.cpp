#include "sim/metrics/speedup.h"

#include <algorithm>
#include <cstdint>

#include "policies/base/random.h"

namespace equipoise {
namespace {

constexpr std::size_t kFewestBlocks = 4;
constexpr std::size_t kMostBlocks = 20;
constexpr std::size_t kDraws = 2000;
constexpr std::size_t kOutside = kDraws / 40;  // draws beyond each end of a 95% interval

}  // namespace

std::vector<Picoseconds> block_times(std::span<const StepResult> steps, std::size_t blocks) {
  __extension__ typedef __int128 Wide;  // tokens x blocks x picoseconds
  std::int64_t tokens = 0;
  for (const StepResult& step : steps) tokens += step.work.tokens;
  std::vector<Picoseconds> times(blocks, 0);
  const auto count = static_cast<Wide>(blocks);
  std::size_t block = 0;
  std::int64_t before = 0;  // tokens of the steps so far
  for (const StepResult& step : steps) {
    Picoseconds given = 0;  // of the step's time
    // Block b ends after tokens * (b + 1) / blocks tokens; the last takes whatever is left.
    while (block + 1 < blocks) {
      const Wide inside = static_cast<Wide>(tokens) * static_cast<Wide>(block + 1) - before * count;
      if (inside >= step.work.tokens * count) break;
      const auto until = static_cast<Picoseconds>(step.times.makespan * inside / (step.work.tokens * count));
      times[block++] += until - given;
      given = until;
    }
    times[block] += step.times.makespan - given;
    before += step.work.tokens;
  }
  return times;
}

void compare(const Metrics& baseline, std::span<const StepResult> baseline_steps, std::size_t batches,
             std::span<const StepResult> steps, Metrics& metrics) {
  if (metrics.tokens <= 0 || baseline.tokens <= 0 || metrics.seconds <= 0 || baseline.seconds <= 0) return;
  metrics.speedup = (baseline.seconds / baseline.tokens) / (metrics.seconds / metrics.tokens);
  if (batches < kFewestBlocks) return;
  const std::size_t blocks = std::min(batches, kMostBlocks);
  const std::vector<Picoseconds> theirs = block_times(baseline_steps, blocks),
                                 own = block_times(steps, blocks);
  const double per_token = metrics.tokens / baseline.tokens;  // 1 unless one of them dropped documents
  SplitMix64 random;
  std::vector<double> drawn;
  for (std::size_t draw = 0; draw < kDraws; ++draw) {
    Picoseconds of_theirs = 0, of_own = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto block = static_cast<std::size_t>(random.next() % blocks);
      of_theirs += theirs[block];
      of_own += own[block];
    }
    if (of_own > 0) drawn.push_back(static_cast<double>(of_theirs) / static_cast<double>(of_own) * per_token);
  }
  if (drawn.size() < kDraws) return;
  std::sort(drawn.begin(), drawn.end());
  metrics.speedup_low = drawn[kOutside - 1];
  metrics.speedup_high = drawn[kDraws - kOutside];
}

}  // namespace equipoise
