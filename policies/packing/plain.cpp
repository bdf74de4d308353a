// Plain-4D (the baseline of WLB-LLM): the loader's windows as they are. Window i of a step goes to lane
// i mod lanes; micro_batch_size consecutive windows of a lane are one micro-batch. Nothing is balanced and
// nothing waits. O(slices).
//
// Every step has N micro-batches, so those of a short last batch may be empty. Document batches have no
// windows: their concatenation is cut into windows here, the last one short.
//
// With a token budget there are no windows but whole documents in arrival order (TRL's and slime's batching).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

std::vector<std::vector<Slice>> windows_of(const GlobalBatch& batch, std::int64_t window) {
  std::vector<std::vector<Slice>> windows;
  for (std::size_t w = 0; w + 1 < batch.window_begin.size(); ++w) {
    const auto first = batch.slices.begin();
    windows.emplace_back(first + static_cast<std::ptrdiff_t>(batch.window_begin[w]),
                         first + static_cast<std::ptrdiff_t>(batch.window_begin[w + 1]));
  }
  if (!batch.window_begin.empty()) return windows;

  std::int64_t room = 0;
  for (Slice rest : batch.slices) {
    while (rest.tokens() > 0) {
      if (room == 0) {
        windows.emplace_back();
        room = window;
      }
      const std::int64_t taken = std::min(room, rest.tokens());
      windows.back().push_back({rest.document, rest.begin, rest.begin + taken});
      rest.begin += taken;
      room -= taken;
    }
  }
  return windows;
}

// Whole slices in arrival order, as many a micro-batch as the budget holds.
Step step_within_budget(const GlobalBatch& batch, const PackOptions& options) {
  const auto budget = static_cast<double>(options.of<TokenBudget>().tokens_per_micro_batch);
  const std::vector<double> use = budget_use(batch.slices, options);
  Bins bins;
  double room = 0;
  for (std::size_t i = 0; i < use.size(); ++i) {
    if (bins.empty() || use[i] > room) {
      bins.emplace_back();
      room = budget;
    }
    bins.back().push_back(batch.slices[i]);
    room -= use[i];
  }
  const auto round = static_cast<std::size_t>(std::int64_t{options.lanes} * options.lane_round);
  bins.resize(std::max<std::size_t>(1, (bins.size() + round - 1) / round) * round);
  return step_of_bins(std::move(bins), options);
}

}  // namespace

Plan plan_plain(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  if (options.of<TokenBudget>().tokens_per_micro_batch > 0) {
    Plan plan;
    for (const GlobalBatch& batch : problem.batches) plan.steps.push_back(step_within_budget(batch, options));
    return plan;
  }
  const std::int64_t micro_batches = micro_batches_of_step(options);
  const std::int64_t window = window_tokens(options);
  const auto lanes = static_cast<std::int64_t>(options.lanes);

  Plan plan;
  plan.steps.reserve(problem.batches.size());
  for (const GlobalBatch& batch : problem.batches) {
    std::vector<std::vector<Slice>> windows = windows_of(batch, window);
    Step step = empty_step(options);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const std::int64_t count = micro_batches / lanes + (lane < micro_batches % lanes ? 1 : 0);
      step.lanes[at(lane)].micro_batches.resize(static_cast<std::size_t>(count));
    }
    // Where the micro-batches of a step were given by the user, its windows share them evenly.
    const auto windows_here = static_cast<std::int64_t>(windows.size());
    const std::int64_t per_micro_batch =
        std::max(options.micro_batch_size,
                 (windows_here + micro_batches - 1) / std::max<std::int64_t>(micro_batches, 1));
    for (std::int64_t i = 0; i < windows_here; ++i) {
      std::vector<MicroBatch>& lane = step.lanes[at(i % lanes)].micro_batches;
      const auto place = static_cast<std::size_t>(i / lanes / per_micro_batch);
      if (place >= lane.size()) lane.resize(place + 1);
      std::vector<Slice>& slices = lane[place].slices;
      std::vector<Slice>& from = windows[at(i)];
      if (slices.empty()) {
        slices = std::move(from);
      } else {
        slices.insert(slices.end(), from.begin(), from.end());
      }
    }
    plan.steps.push_back(std::move(step));
  }
  return plan;
}

}  // namespace equipoise
