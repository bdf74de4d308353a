#include "policies/packing/equipoise_alternatives.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/sequence_slices.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"

namespace equipoise {

constexpr std::size_t kRaced = 4;  // steps on which rivals with the same documents race

PackingProblem with(const PackingProblem& problem, const PackOptions& options) {
  return {problem.batches, options, problem.workload};
}

static Note chunks_of(std::string_view name, const PackOptions& options) {
  const std::vector<std::int64_t>& sizes = options.of<EquipoiseOptions>().chunk_sizes;
  const auto [least, most] = sizes.empty() ? std::ranges::minmax({options.of<ChunkflowOptions>().chunk_size})
                                           : std::ranges::minmax(sizes);
  if (least == most)
    return {"start_chunks", "", {{"name", name}, {"chunk_size", most}, {"keep", options.keep}}};
  return {
      "start_chunk_sizes", "", {{"name", name}, {"least", least}, {"most", most}, {"keep", options.keep}}};
}

Note start_of(const PackOptions& options) {
  const EquipoiseOptions& own = options.of<EquipoiseOptions>();
  const std::string_view name = kStartNames[static_cast<std::size_t>(own.start)];
  if (own.start == Start::chunkflow) return chunks_of(name, options);
  if (own.start == Start::wlb) {
    const std::vector<std::int64_t>& thresholds = options.of<WlbOptions>().thresholds;
    if (thresholds.empty()) return {"start", "", {{"name", name}, {"over", Notes{}}}};
    return {"start_queues", "", {{"name", name}, {"thresholds", each_of(thresholds, threshold_note)}}};
  }
  const std::int64_t window =
      is_gathered(own.start) ? own.look_ahead : options.of<FixedLengthOptions>().pack_window;
  Notes over;
  if (window > 1) over.push_back({"over_batches", "", {{"batches", window}}});
  if (own.start != Start::sequence_slices) return {"start", "", {{"name", name}, {"over", over}}};
  return {"start_slices",
          "",
          {{"name", name}, {"slices", options.of<SequenceSlicesOptions>().slices}, {"over", over}}};
}

// A key that is equal for equal starts.
static std::string key_of_note(const Note& start) {
  std::string key = start.kind;
  for (const auto& [name, value] : start.numbers) {
    if (const auto* text = std::get_if<std::string>(&value)) key += ' ' + *text;
    if (const auto* count = std::get_if<std::int64_t>(&value)) key += ' ' + std::to_string(*count);
    if (const auto* parts = std::get_if<Notes>(&value)) key += all_joined(*parts, " ", key_of_note);
  }
  return key;
}

// What decides the unchanged start of the options.
static std::string key_of_start(const PackOptions& options) {
  const EquipoiseOptions& own = options.of<EquipoiseOptions>();
  std::string key = key_of_note(start_of(options)) + ' ' + std::to_string(micro_batches_of_step(options)) +
                    (own.recompute.empty() ? " as stated" : " by tokens");
  if (is_gathered(own.start)) key += ' ' + std::to_string(own.max_delay);
  return key;
}

bool start_alike(const PackOptions& one, const PackOptions& other) {
  return key_of_note(start_of(one)) == key_of_note(start_of(other));
}

Alternatives::Alternatives(const PackingProblem& problem, const PlanPrices& prices, LaneShapes& lanes)
    : problem_(problem), prices_(prices), lanes_(lanes) {
  double tokens = 0;
  for (const GlobalBatch& batch : problem.batches)
    for (const Slice& slice : batch.slices) tokens += static_cast<double>(slice.tokens());
  of_batch_ = tokens / static_cast<double>(std::max<std::size_t>(1, problem.batches.size()));
}

bool Alternatives::is_allowed(const Plan& plan, Alternative& made) const {
  const PackOptions& options = made.options;
  const PlanMetrics metrics = plan_metrics(problem_.batches, plan);
  made.delay = metrics.token_delay_mean.value_or(0);
  if (made.delay > options.of<EquipoiseOptions>().max_delay) return false;
  if (metrics.tokens_per_step.value_or(of_batch_) < (1 - kEqualBatch) * of_batch_) return false;
  return std::ranges::all_of(
      plan.steps, [&](const Step& step) { return within(step, options) && ordered_alike(step, options); });
}

void Alternatives::price(const Plan& plan, Alternative& out) {
  out.steps = seconds_of_steps(plan, out.options);
  out.seconds = sum_of(out.steps);
  ++tried_;
}

std::vector<std::int64_t> Alternatives::searched_thresholds(const PackOptions& wlb) {
  if (!holds_what_comes(wlb)) return {};
  const auto seconds = [&](const Plan& plan) {
    Alternative made{wlb};
    if (is_allowed(plan, made)) price(plan, made);
    return made.seconds;
  };
  try {
    const PackingProblem problem = with(problem_, wlb);
    policy_of_start(problem);
    return search_wlb_thresholds(problem, seconds, wlb.of<EquipoiseOptions>().max_delay).thresholds;
  } catch (const UserError&) {  // wlb cannot run here
    return {};
  }
}

bool Alternatives::runs(const PackOptions& options) const {
  if (!prices_.steps_that_fit || problem_.batches.empty()) return false;
  try {
    const PackingProblem first{problem_.batches.first(1), options, problem_.workload};
    return !prices_.steps_that_fit(plan_start(first)).empty();
  } catch (const UserError&) {  // the start cannot run here
    return false;
  }
}

Alternative Alternatives::as_it_is(const PackOptions& options) {
  return fitting(options,
                 [&](Alternative& made) { price_start(plan_start(with(problem_, made.options)), made); });
}

Alternative Alternatives::improved(const PackOptions& options, const Rival& rival) {
  const EquipoiseOptions& own = options.of<EquipoiseOptions>();
  std::string key = key_of_start(options);
  for (const std::int64_t number : {own.moves, std::int64_t{own.place}}) key += ' ' + std::to_string(number);
  for (const StepDegrees& d : own.degrees)
    for (const std::int64_t number : {std::int64_t{d.wide}, std::int64_t{d.narrow}, d.border,
                                      std::int64_t{d.times}, std::int64_t{d.spread}})
      key += ' ' + std::to_string(number);
  const auto [known, is_new] = packed_anew_.try_emplace(std::move(key));
  Alternative& made = known->second;
  if (is_new || was_delayed(made) || (made.lost && rival.steps.empty()))
    made = fitting(options, [&](Alternative& fresh) { pack_anew(fresh, rival); });
  return made;
}

template <class Make>
Alternative Alternatives::fitting(const PackOptions& options, const Make& make) {
  Alternative made{options};
  if (!holds_what_comes(options)) return made;
  try {
    make(made);
    if (made.steps.empty() || made.seconds < kCannotRun || is_as_stated(options)) return made;
    made = {options};
    made.options.of<EquipoiseOptions>().recompute.clear();
    make(made);
  } catch (const UserError&) {  // the start cannot run here
  }
  return made;
}

std::vector<double> Alternatives::seconds_of_steps(const Plan& plan, const PackOptions& options) const {
  if (prices_.steps_that_fit) return prices_.steps_that_fit(plan);
  StepPacker packer(options, {}, problem_.workload, lanes_);
  return each_of(plan.steps, [&](const Step& step) { return packer.seconds(step); });
}

std::vector<std::size_t> Alternatives::ordered_for_race(std::span<const double> rival) {
  std::vector<std::size_t> order(rival.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t s) { return rival[s]; });
  for (std::size_t k = 1; k < std::min(kRaced, order.size()); ++k)
    std::swap(order[k], order[k * (order.size() - 1) / (kRaced - 1)]);
  return order;
}

bool Alternatives::loses(std::span<const std::size_t> raced, const Plan& packed, const Rival& rival,
                         const PackOptions& options) const {
  Plan first;
  for (const std::size_t s : raced) first.steps.push_back(packed.steps[s]);
  const std::vector<double> seconds = seconds_of_steps(first, options);
  double others = 0;
  for (std::size_t k = 0; k < raced.size(); ++k) {
    if (seconds[k] <= rival.steps[raced[k]]) return false;
    others += rival.steps[raced[k]];
  }
  const double sum = sum_of(seconds);
  if (sum == kCannotRun && !is_as_stated(options)) return false;  // it may fit with the study's recompute
  return sum > rival.loses * others;
}

bool Alternatives::pack_all(const PackingProblem& problem, const Rival& rival, PackedStart& packed) const {
  const std::size_t count = packed.plan.steps.size();
  const bool races = rival.steps.size() == count && count > kRaced;
  const std::vector<std::size_t> order = ordered_for_race(races ? rival.steps : std::vector<double>(count));
  const std::span raced = std::span(order).first(races ? kRaced : 0);
  pack_steps(problem, lanes_, raced, packed);
  if (races && loses(raced, packed.plan, rival, problem.options)) return false;
  pack_steps(problem, lanes_, std::span(order).subspan(raced.size()), packed);
  return true;
}

void Alternatives::pack_anew(Alternative& made, const Rival& rival) {
  // Simulated steps decide what a step keeps, else the packer's own clock.
  EquipoiseOptions& own = made.options.of<EquipoiseOptions>();
  own.keeps.assign(prices_.steps_that_fit ? problem_.batches.size() : 0, 0);
  own.made.reset();
  const PackingProblem problem = with(problem_, made.options);
  PackedStart packed(plan_start(problem));
  made.lost = !pack_all(problem, rival, packed);
  if (made.lost) return;
  if (!is_allowed(packed.plan, made)) return;
  price(packed.plan, made);
  Alternative start{made.options};
  price_start(packed.start, start);
  if (!start.steps.empty()) keep_faster(start, packed, made);
  // It may be the result. A plan with fewer moves is made again in less time than it is worth in memory.
  if (own.moves >= problem_.options.of<EquipoiseOptions>().moves)
    own.made = std::make_shared<const Plan>(std::move(packed.plan));
}

void Alternatives::price_start(const Plan& plan, Alternative& out) {
  const auto [known, is_new] = unchanged_.try_emplace(key_of_start(out.options));
  Alternative& start = known->second;
  if (is_new || was_delayed(start)) {
    start = {out.options};
    if (is_allowed(plan, start)) price(plan, start);
  }
  out.delay = start.delay;
  if (was_delayed(out)) return;
  out.steps = start.steps;
  out.seconds = start.seconds;
}

bool Alternatives::is_as_stated(const PackOptions& options) {
  return options.of<EquipoiseOptions>().recompute.empty();
}

bool Alternatives::was_delayed(const Alternative& made) {
  return made.delay > made.options.of<EquipoiseOptions>().max_delay;
}

bool Alternatives::holds_what_comes(const PackOptions& options) const {
  return options.of<EquipoiseOptions>().start != Start::wlb ||
         static_cast<double>(micro_batches_of_step(options) * max_tokens(options)) >= of_batch_;
}

void Alternatives::keep_faster(const Alternative& start, PackedStart& packed, Alternative& made) {
  std::vector<char>& keeps = made.options.of<EquipoiseOptions>().keeps;
  keeps.assign(start.steps.size(), 0);
  made.seconds = 0;
  for (std::size_t s = 0; s < keeps.size(); ++s) {
    keeps[s] = start.steps[s] <= made.steps[s] ? 1 : 0;
    if (keeps[s] != 0) packed.plan.steps[s] = std::move(packed.start.steps[s]);
    made.steps[s] = std::min(made.steps[s], start.steps[s]);
    made.seconds += made.steps[s];
  }
}

}  // namespace equipoise
