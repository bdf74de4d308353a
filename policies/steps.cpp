#include "policies/steps.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/rounding.h"
#include "policies/base/text.h"
#include "policies/least_loaded.h"
#include "policies/loader.h"

namespace equipoise {
namespace {

void require_positive(std::int64_t value, const char* name) {
  if (value <= 0) throw UserError(name, ": expected a number >= 1, found ", value);
}

bool fills_batches(const PackOptions& options) {
  return options.documents_per_step > 0 && options.global_tokens > 0;
}

// The excess of tokens over the mean global batch, as a share of it.
double excess(const PackOptions& options, std::int64_t packs, double tokens) {
  return static_cast<double>(packs) * tokens / static_cast<double>(options.global_tokens) - 1;
}

std::vector<std::uint32_t> in_creation_order(const Packs& packs) {
  return positions<std::uint32_t>(packs.size());
}

Plan plan_of_list(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> ids,
                  const PackOptions& options) {
  const std::int64_t length = pack_length(options);
  const PackStep shape{static_cast<int>(empty_step(options).lanes.size()), options.context, kStudyRecompute,
                       length};
  double tokens = 0;  // mean tokens of a pack; each slice is in one pack
  for (const Slice& slice : slices) tokens += static_cast<double>(slice.tokens());
  tokens /= static_cast<double>(std::max<std::size_t>(1, packs.size()));
  const auto per_step = static_cast<std::size_t>(packs_of_iteration(options, length, shape.lanes, tokens));
  Plan plan;
  add(plan.notes, unequal_batch(options, static_cast<std::int64_t>(per_step), tokens));
  plan.steps.reserve(packs.size() / per_step + 1);
  for (std::size_t first = 0; first < ids.size(); first += per_step) {
    const std::size_t count = std::min(per_step, ids.size() - first);
    plan.steps.push_back(step_of_packs(slices, packs, ids.subspan(first, count), shape));
    plan.steps.back().tail = count < per_step;
  }
  return plan;
}

double fullest(const Bins& bins, const PackOptions& options) {
  double most = 0;
  for (const std::vector<Slice>& bin : bins) {
    const std::vector<double> use = budget_use(bin, options);
    if (bin.size() > 1) most = std::max(most, sum_of(use));
  }
  return most;
}

}  // namespace

std::int64_t micro_batches_of_step(const PackOptions& options) {
  if (options.micro_batches > 0) return options.micro_batches;
  require_positive(options.sequences_per_step, "sequences_per_step");
  require_positive(options.micro_batch_size, "micro_batch_size");
  if (options.documents_per_step > 0 && options.global_tokens > 0) {
    const std::int64_t lanes = std::max(1, options.lanes);
    const std::int64_t of_lane =  // a checked product, which may overflow
        options.global_tokens / window_tokens(options) / options.micro_batch_size / lanes + 1;
    const std::int64_t sequences = options.sequences_per_step / options.micro_batch_size;
    return lanes * std::max(of_lane, (sequences + lanes - 1) / lanes);
  }
  if (options.sequences_per_step % options.micro_batch_size != 0)
    throw UserError("micro_batch_size: ", options.micro_batch_size, " does not divide sequences_per_step ",
                    options.sequences_per_step);
  return options.sequences_per_step / options.micro_batch_size;
}

std::int64_t window_tokens(const PackOptions& options) {
  require_positive(options.context_window, "context_window");
  return options.context_window;
}

std::int64_t micro_batch_capacity(const PackOptions& options) {
  require_positive(options.micro_batch_size, "micro_batch_size");
  // Where there are fewer micro-batches than windows, they share the windows, as plain's do.
  const std::int64_t shared =
      options.micro_batches > 0
          ? (options.sequences_per_step + options.micro_batches - 1) / options.micro_batches
          : 0;
  return window_tokens(options) * std::max(options.micro_batch_size, shared);
}

std::int64_t pack_length(const PackOptions& options) {
  const std::int64_t own = options.of<PackLengthOptions>().pack_length;
  const std::int64_t length = own > 0 ? own : options.context_window;
  require_positive(length, "pack_length");
  if (length > kLongestSize)
    throw UserError("pack_length: expected at most ", kLongestSize, ", found ", length);
  return length;
}

std::int64_t tokens_of_iteration(const PackOptions& options) {
  if (options.global_tokens > 0) return options.global_tokens;
  require_positive(options.context_window, "context_window");
  require_positive(options.sequences_per_step, "sequences_per_step");
  return options.context_window * options.sequences_per_step;
}

std::int64_t mean_global_tokens(const Batches& batches, const PackOptions& options) {
  double documents = 0, tokens = 0;
  for (const GlobalBatch& batch : batches) {
    documents += static_cast<double>(batch.slices.size());
    for (const Slice& slice : batch.slices) tokens += static_cast<double>(slice.tokens());
  }
  if (documents == 0) return 0;
  return std::llround(tokens / documents * static_cast<double>(options.documents_per_step));
}

std::int64_t packs_of_iteration(const PackOptions& options, std::int64_t length, std::int64_t lanes,
                                double tokens) {
  if (!fills_batches(options) || tokens <= 0)
    return std::max<std::int64_t>(1, tokens_of_iteration(options) / length);
  const double wanted = static_cast<double>(options.global_tokens) / tokens;
  const std::int64_t round = lanes * options.lane_round;
  const std::int64_t even = std::llround(wanted / static_cast<double>(round)) * round;
  if (std::abs(excess(options, even, tokens)) <= kEqualBatch) return even;
  if (options.lane_round > 1) return std::max(even, round);
  return std::max<std::int64_t>(1, std::llround(wanted));
}

std::optional<Note> unequal_batch(const PackOptions& options, std::int64_t packs, double tokens) {
  if (!fills_batches(options) || tokens <= 0 || std::abs(excess(options, packs, tokens)) <= kEqualBatch)
    return {};
  const double percent = 100 * excess(options, packs, tokens);
  return Note{percent > 0 ? "more_per_iteration" : "fewer_per_iteration",
              "",
              {{"packs", packs}, {"percent", std::abs(percent)}, {"documents", options.documents_per_step}}};
}

std::int64_t grid_gpus(const PackOptions& options) {
  if (options.gpus > 0) return options.gpus;
  require_positive(options.lanes, "lanes");
  require_positive(options.context, "context");
  return static_cast<std::int64_t>(options.lanes) * options.context;
}

std::size_t waiting_lanes(const PackOptions& options) {
  const int lanes = std::max(1, options.lanes), waiting = std::clamp(options.waiting_lanes, 1, lanes);
  return static_cast<std::size_t>(lanes % waiting == 0 ? waiting : lanes);
}

void pack_carried(std::string_view policy, std::int64_t limit, Plan& plan,
                  const std::function<void()>& append) {
  while (!plan.steps.empty() && !plan.steps.back().carried.empty()) {
    const std::size_t held = plan.steps.back().carried.size();
    append();
    const std::vector<Slice>& left = plan.steps.back().carried;
    if (left.size() >= held) throw UnplaceableDocument(left.front(), policy, limit);
  }
}

Step empty_step(const PackOptions& options) {
  require_positive(options.lanes, "lanes");
  require_positive(options.context, "context");
  Step step;
  step.lanes.resize(static_cast<std::size_t>(options.lanes));
  for (Lane& lane : step.lanes) lane.context = options.context;
  return step;
}

Packs gather_packs(std::span<const std::uint32_t> order, std::span<const std::uint32_t> pack_of,
                   std::size_t count) {
  Packs packs;
  packs.begin.assign(count + 1, 0);
  for (const std::uint32_t pack : pack_of) ++packs.begin[pack + 1];
  std::partial_sum(packs.begin.begin(), packs.begin.end(), packs.begin.begin());
  packs.item.resize(order.size());
  std::vector<std::uint32_t> next(packs.begin.begin(), packs.begin.end() - 1);
  for (std::size_t i = 0; i < order.size(); ++i) packs.item[next[pack_of[i]]++] = order[i];
  return packs;
}

SliceList whole_set(const PackingProblem& problem) {
  std::size_t count = 0;
  for (const GlobalBatch& batch : problem.batches) count += batch.slices.size();
  SliceList set;
  set.slices.reserve(count);
  for (const GlobalBatch& batch : problem.batches)
    set.slices.insert(set.slices.end(), batch.slices.begin(), batch.slices.end());
  set.lengths = lengths_of(set.slices);
  return set;
}

Step step_of_packs(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> chosen,
                   const PackStep& shape) {
  const auto lanes = static_cast<std::size_t>(shape.lanes);
  Step step;
  step.lanes.resize(lanes);
  for (Lane& lane : step.lanes) {
    lane.context = shape.context;
    lane.micro_batches.reserve((chosen.size() + lanes - 1) / lanes);
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::span<const std::uint32_t> items = packs.of(chosen[i]);
    if (i + 2 < chosen.size())  // slices are scattered in memory, so they are prefetched
      for (const std::uint32_t item : packs.of(chosen[i + 2])) __builtin_prefetch(&slices[item]);
    MicroBatch& micro_batch = step.lanes[i % lanes].micro_batches.emplace_back();
    micro_batch.recompute_layers = shape.recompute_layers;
    micro_batch.pack_length = shape.length;
    micro_batch.slices.reserve(items.size());
    for (const std::uint32_t item : items) micro_batch.slices.push_back(slices[item]);
  }
  return step;
}

Plan plan_of_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options) {
  return plan_of_list(slices, packs, in_creation_order(packs), options);
}

Plan plan_of_mixed_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options,
                         SplitMix64& random) {
  std::vector<std::uint32_t> ids = in_creation_order(packs);
  if (options.shuffle && options.of<PackLengthOptions>().pack_order == PackOrder::shuffled)
    shuffle(ids, random);
  return plan_of_list(slices, packs, ids, options);
}

Room room_by_pack_length(const PackOptions& options, std::int64_t tokens) {
  return room_by<&PackLengthOptions::pack_length>("pack_length", tokens, options);
}

std::vector<double> budget_use(std::span<const Slice> slices, const PackOptions& options) {
  const TokenBudget& budget = options.of<TokenBudget>();
  std::vector<double> use(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto tokens = static_cast<double>(slices[i].tokens());
    const double cost = budget.linear_cost * tokens + budget.quadratic_cost * tokens * tokens;
    use[i] = cost > 0 ? cost : tokens;
  }
  return use;
}

Bins bins_of(std::span<const Slice> slices, const Packs& packs) {
  Bins bins(packs.size());
  for (std::size_t b = 0; b < bins.size(); ++b)
    bins[b] = each_of(packs.of(b), [&](std::uint32_t i) { return slices[i]; });
  return bins;
}

Bins bins_of_step(const GlobalBatch& batch, const PackingProblem& problem,
                  const std::function<Bins(std::span<const double>, std::size_t)>& fill) {
  const PackOptions& options = problem.options;
  const TokenBudget& own = options.of<TokenBudget>();
  const std::vector<double> use = budget_use(batch.slices, options);
  const bool weighs = own.linear_cost > 0 || own.quadratic_cost > 0;
  const std::vector<double> weights = weighs ? use : work_of(batch.slices, problem.workload);
  if (own.tokens_per_micro_batch == 0)
    return fill(weights, static_cast<std::size_t>(micro_batches_of_step(options)));
  const auto budget = static_cast<double>(own.tokens_per_micro_batch);
  const auto round = static_cast<std::size_t>(std::int64_t{options.lanes} * options.lane_round);
  double least = 0;  // a document above the budget fills one bin alone
  for (const double u : use) least += std::min(u, budget);
  for (std::size_t count = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(least / budget)));;
       ++count) {
    count = rounded_up(count, round);
    Bins bins = fill(weights, count);
    if (fullest(bins, options) <= budget || count >= batch.slices.size()) return bins;
  }
}

void add_step(const PackingProblem& problem, Step step, Plan& plan) {
  if (problem.sink != nullptr && plan.steps.size() >= problem.sink->block) {
    problem.sink->take(plan.steps);
    plan.steps.clear();
  }
  plan.steps.push_back(std::move(step));
}

Step step_of_bins(std::vector<std::vector<Slice>>&& bins, const PackOptions& options) {
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  for (std::size_t b = 0; b < bins.size(); ++b)
    step.lanes[b % lanes].micro_batches.emplace_back().slices = std::move(bins[b]);
  return step;
}

Step step_of_bins_by_weight(std::vector<std::vector<Slice>>&& bins, std::span<const double> weights,
                            const PackOptions& options) {
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  std::vector<std::size_t> lane_of(bins.size());
  std::vector<std::size_t> places(lanes);
  LeastLoaded<double> load(lanes);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    places[lane] = bins.size() / lanes + (lane < bins.size() % lanes ? 1 : 0);
    step.lanes[lane].micro_batches.reserve(places[lane]);
    if (places[lane] == 0) load.close(lane);
  }
  for (const std::uint32_t b : heaviest_first(weights)) {
    const std::size_t lane = load.least();
    lane_of[b] = lane;
    load.add(lane, weights[b]);
    if (--places[lane] == 0) load.close(lane);
  }
  for (std::size_t b = 0; b < bins.size(); ++b)
    step.lanes[lane_of[b]].micro_batches.emplace_back().slices = std::move(bins[b]);
  return step;
}

}  // namespace equipoise
