// equipoise packs for the makespan of the step instead of a proxy.
//
// Other balancers make micro-batches equal in tokens, len^2 or work. The time of a step is the longest path
// through the pipeline, which is different. Small micro-batches at both ends fill and drain the pipeline
// faster, a document that stays whole on one CP rank costs no exchange, and an outlier harms only where the
// pipeline waits for it. This policy starts from the plans of others and improves the time itself:
//
// 1. Starts are the steps of plain, fixed-greedy over 1 to 16 batches, lpt, karmarkar-karp, wlb with several
//    queues (including those that its search finds) in several numbers of micro-batches, and, where the job's
//    schedule runs them, chunkflow and sequence-slices in several sizes; and steps that gather long documents
//    over 2 to 16 batches (gather.cpp). A start decides which documents a step holds. It is skipped where its
//    mean token delay exceeds max_delay, where a micro-batch exceeds L_max, or where its steps hold over 2 %
//    fewer tokens than the batches (kEqualBatch).
// 2. The documents of each of its steps are packed anew for the step's makespan (step_packer.h). Slices of
//    documents keep their micro-batches, last in their lanes.
// 3. Starts are priced unchanged on all batches. The fastest of them, numbers of micro-batches (unless given)
//    and placement on single CP ranks or none are tried on the first 16 batches with few moves and compared
//    by the price of whole plans: simulated steps where the caller has a simulator, else the policy's own
//    clock. Numbers rise until one is slower. The best way of each bound on delay packs all batches with all
//    moves, if it is near the fastest.
// 4. A step whose start is priced lower keeps it, and where a whole start is priced lowest it is the plan. So
//    by that price the result is never slower than the best of its starts. The search runs for max_delay, for
//    half an iteration and for no delay, so that a wider bound finds what these find. A bound whose best way
//    is over 2 % slower on the first 16 batches than another's is an exception: it packs all only if no other
//    could.
// 5. Steps may run in lanes of other CP degrees than the layout's, long documents over more ranks and the
//    others over fewer, where that is faster by the price of whole plans (equipoise_search.cpp).
// 6. Where memory decides what is recomputed, each micro-batch recomputes only as many layers as its tokens
//    require, as hbp does for each group of lengths.
//
// A number of moves limits the search, not a time, so plans are equal on every machine. The policy cuts no
// document that its start leaves whole, and delays none longer than its start does.
//
// Cost: that of the starts and O(n log n + moves x (P m V + C)) per step. The search of 3 prices about twenty
// unchanged starts on all batches, and about fifteen plans with few moves on the first 16.
#include "policies/packing/equipoise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/rounding.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/packing.h"
#include "policies/packing/wlb.h"
#include "policies/steps.h"
#include "policies/validator.h"

namespace equipoise {

const Policy& policy_of_start(const PackingProblem& problem) {
  const Start start = problem.options.of<EquipoiseOptions>().start;
  const Policy& policy = packing_policy(kStartNames[static_cast<std::size_t>(start)]);
  const std::int64_t limit = policy.hard_limit == nullptr ? 0 : policy.hard_limit(problem.options);
  for (const GlobalBatch& batch : problem.batches)
    for (const Slice& slice : batch.slices)
      if (limit > 0 && slice.tokens() > limit)
        throw UserError("start ", policy.name, ": a document of ", slice.tokens(), " tokens is above its ",
                        limit, "; take another start");
  return policy;
}

bool within(const Step& step, const PackOptions& options) {
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      if (micro_batch.tokens() > tokens_at_degree(max_tokens(options), options, lane.context)) return false;
  return true;
}

// Packs a start's step in lanes of two degrees, those for long documents first. Each part gets micro-batches
// in proportion to its tokens. Returns nothing where the documents find no room.
static std::optional<Step> packed_in_degrees(const PackingProblem& problem, const Step& start,
                                             LaneShapes& shapes, const StepDegrees& degrees) {
  const PackOptions& options = problem.options;
  const EquipoiseOptions& own = options.of<EquipoiseOptions>();
  std::array<MicroBatch, 2> sides;  // for long documents, for the others
  for (const Lane& lane : start.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices)
        sides[slice.tokens() > degrees.border ? 0 : 1].slices.push_back(slice);
  const std::int64_t tokens = sides[0].tokens() + sides[1].tokens();
  const std::int64_t of_lane = micro_batches_of_lane(options, tokens);
  Step step;
  step.carried = start.carried;
  step.tail = start.tail;
  for (std::size_t side = 0; side < sides.size(); ++side) {
    if (sides[side].slices.empty()) continue;
    PackOptions lanes = of_degree(options, side == 0 ? degrees.wide : degrees.narrow);
    const std::int64_t per_lane =
        std::max<std::int64_t>(1, (of_lane * sides[side].tokens() + tokens - 1) / tokens) *
        (side == 0 ? degrees.times : 1);
    lanes.micro_batches = per_lane * lanes.lanes;
    StepPacker packer(lanes, {lanes.max_tokens, own.moves, own.place && !degrees.spread, own.taper},
                      problem.workload, shapes);
    Step documents;
    documents.lanes.push_back({lanes.context, {std::move(sides[side])}, 0});
    std::optional<Step> packed = packer.repacked(documents);
    if (!packed) return std::nullopt;
    const int barrier_group = step.lanes.empty() ? 0 : step.lanes.back().barrier_group + 1;
    for (Lane& lane : packed->lanes) {
      lane.barrier_group = barrier_group;
      step.lanes.push_back(std::move(lane));
    }
  }
  return step;
}

// The steps of chunkflow, each with its own chunk size.
static Plan plan_in_chunks(const PackingProblem& problem, std::span<const std::int64_t> sizes) {
  Plan plan;
  for (const std::int64_t size : std::set(sizes.begin(), sizes.end())) {
    PackOptions options = problem.options;
    options.of<ChunkflowOptions>().chunk_size = size;
    Plan of_size = plan_chunkflow({problem.batches, options, problem.workload});
    if (plan.steps.empty()) plan = of_size;
    for (std::size_t s = 0; s < plan.steps.size(); ++s)
      if (sizes[s] == size) plan.steps[s] = std::move(of_size.steps[s]);
  }
  return plan;
}

bool is_gathered(Start start) {
  return start == Start::gather || start == Start::sequence_slices;
}

Plan plan_start(const PackingProblem& problem) {
  const EquipoiseOptions& own = problem.options.of<EquipoiseOptions>();
  Plan plan = is_gathered(own.start)    ? plan_gathered(problem)
              : own.chunk_sizes.empty() ? policy_of_start(problem).plan(problem)
                                        : plan_in_chunks(problem, own.chunk_sizes);
  recompute_least(plan, own);
  return plan;
}

void pack_steps(const PackingProblem& problem, LaneShapes& lanes, std::span<const std::size_t> steps,
                PackedStart& packed) {
  const PackOptions& options = problem.options;
  const EquipoiseOptions& own = options.of<EquipoiseOptions>();
  StepPacker packer(options, {max_tokens(options), own.moves, own.place, own.taper}, problem.workload, lanes);
  for (const std::size_t s : steps) {
    const Step& start = packed.start.steps[s];
    const bool may_stay = within(start, options);
    if (s < own.keeps.size() && own.keeps[s] != 0 && may_stay) continue;
    const StepDegrees degrees = s < own.degrees.size() ? own.degrees[s] : StepDegrees{};
    std::optional<Step> step =
        degrees.wide == 0 ? packer.repacked(start) : packed_in_degrees(problem, start, lanes, degrees);
    if (!step) continue;
    const bool stays = own.keeps.empty() && degrees.wide == 0 && may_stay &&
                       !(packer.seconds(*step) < packer.seconds(start));
    if (!stays) packed.plan.steps[s] = std::move(*step);
  }
}

PackedStart pack_start(const PackingProblem& problem, LaneShapes& lanes) {
  PackedStart packed(plan_start(problem));
  std::vector<std::size_t> all(packed.start.steps.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  pack_steps(problem, lanes, all, packed);
  return packed;
}

std::vector<std::vector<std::int64_t>> outlier_thresholds(const PackOptions& options) {
  const std::int64_t window = options.context_window;
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t n = 1; n <= 4; ++n) {
    std::vector<std::int64_t>& rising = all.emplace_back();
    for (std::int64_t i = 0; i < n; ++i)
      rising.push_back(std::max<std::int64_t>(i + 1, window * (n + i) / (2 * n)));
  }
  for (const std::int64_t eighths : {5, 6, 7})
    all.push_back({std::max<std::int64_t>(1, window * eighths / 8)});
  return all;
}

std::vector<std::int64_t> counts_of(const PackOptions& options, double tokens_of_batch) {
  if (options.micro_batches > 0) return {options.micro_batches};
  const std::int64_t lanes = std::max(1, options.lanes), round = std::max(1, options.lane_round);
  // These are numbers in a lane. Those of documents are not multiples of the fewest that fit, so that more
  // memory, which allows fewer, excludes none but the fewest itself.
  std::int64_t unit = (micro_batches_of_step(options) + lanes - 1) / lanes, fewest = unit, most = 4 * unit;
  if (options.documents_per_step > 0) {
    unit = 1;
    fewest =
        static_cast<std::int64_t>(tokens_of_batch / static_cast<double>(lanes * max_tokens(options))) + 1;
    most = std::max(fewest, options.documents_per_step / lanes);
  }
  std::vector<std::int64_t> counts;
  std::uint64_t halves = 2;  // 2, 3, 4, 6, 8, 12, ...
  for (; unit * std::int64_t(halves) <= 2 * most;
       halves = halves * (std::has_single_bit(halves) ? 9 : 8) / 6) {
    const std::int64_t of_lane = std::max(fewest, (unit * std::int64_t(halves) + 1) / 2);
    const std::int64_t count = rounded_up(of_lane, round) * lanes;
    if (std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

std::vector<std::int64_t> windows_of(const PackOptions& options, std::size_t batches) {
  const std::int64_t most = std::min(
      {options.of<EquipoiseOptions>().look_ahead, static_cast<std::int64_t>(batches), std::int64_t{16}});
  std::vector<std::int64_t> windows;
  for (std::int64_t window = 2; window <= most; window *= 2) windows.push_back(window);
  return windows;
}

bool equipoise_searches(const PackOptions& options) {
  return options.of<EquipoiseOptions>().start == Start::best;
}

bool equipoise_cuts_long(const PackOptions& options) {
  const Start start = options.of<EquipoiseOptions>().start;
  return start == Start::chunkflow || start == Start::sequence_slices;
}

bool equipoise_cuts(const PackOptions& options) {
  return equipoise_cuts_long(options) || options.of<EquipoiseOptions>().start == Start::plain;
}

std::int64_t equipoise_limit(const PackOptions& options) {
  return equipoise_cuts_long(options) ? 0 : max_tokens(options);
}

// Rising bounds of a micro-batch, from the longest document to L_max. Those of a smaller L_max are among
// them.
static std::vector<std::int64_t> limits_of(const PackingProblem& problem) {
  const std::int64_t most = max_tokens(problem.options);
  std::int64_t limit = 0;
  for (const GlobalBatch& batch : problem.batches)
    for (const Slice& slice : batch.slices) limit = std::max(limit, slice.tokens());
  if (limit == 0 || limit > most || equipoise_cuts_long(problem.options)) return {most};
  std::vector<std::int64_t> limits;
  for (; limit <= most; limit += limit / 4 + 1) limits.push_back(limit);
  return limits;
}

// The start packed within the bound that makes it fastest by the policy's own clock. So more memory, which
// only adds bounds, makes it no slower: smaller micro-batches are more of them, and may fill the pipeline
// better. A plan where a step found no room, so that its start's stays above L_max, comes last. L_max itself
// is tried only where it is one of the bounds, so that a smaller L_max has the same bounds.
static Plan pack_within_limits(const PackingProblem& problem, LaneShapes& lanes) {
  StepPacker clock(problem.options, {}, problem.workload, lanes);
  PackOptions options = problem.options;
  Plan best;
  std::pair<bool, double> least;  // whether it exceeds L_max, and its seconds
  for (const std::int64_t limit : limits_of(problem)) {
    options.max_tokens = limit;
    Plan plan = pack_start({problem.batches, options, problem.workload}, lanes).plan;
    std::pair<bool, double> own;
    for (const Step& step : plan.steps) {
      own.first = own.first || !within(step, problem.options);
      own.second += clock.seconds(step);
    }
    if (!best.steps.empty() && !(own < least)) continue;
    best = std::move(plan);
    least = own;
  }
  return best;
}

Plan plan_equipoise(const PackingProblem& problem) {
  const std::shared_ptr<const Plan>& made = problem.options.of<EquipoiseOptions>().made;
  const PlanLimits limits{.micro_batch_tokens = equipoise_limit(problem.options),
                          .gpus = grid_gpus(problem.options),
                          .context = problem.options.context};
  if (made != nullptr && !plan_violation(problem.batches, *made, limits)) return *made;
  LaneShapes lanes(problem.options.stages, problem.options.chunks);
  if (!equipoise_searches(problem.options))
    return problem.options.of<EquipoiseOptions>().searched ? pack_start(problem, lanes).plan
                                                           : pack_within_limits(problem, lanes);
  PackOptions found = problem.options;
  Notes notes = find_equipoise_start(problem, {}, found);
  Plan plan = pack_start({problem.batches, found, problem.workload}, lanes).plan;
  plan.notes = std::move(notes);
  return plan;
}

}  // namespace equipoise
