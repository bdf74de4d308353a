// Searches the starts of equipoise and how it packs them: steps 1, 3 and 4 of equipoise.cpp.
//
// It also searches CP degrees for each step. Each step of the fastest packing is tried in lanes of every
// other degree that the layout's ranks can form, and in two degrees with a barrier in between: long documents
// over more ranks, which then hold less each, the others over fewer, where they exchange less. The border
// between long and short is the capacity of a rank of the narrower lanes, or a part of it. Each step takes
// the fastest choice.
#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policies/packing/chunkflow.h"
#include "policies/packing/equipoise_alternatives.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr std::int64_t kFewMoves = 16;  // alternatives are compared with 1/16 of the moves
constexpr std::size_t kMostStarts = 4;  // starts that are packed again
constexpr std::size_t kLookedAt = 16;   // batches on which ways to pack are compared
// How much slower than its rival one must be to lose a race. More where single steps may still gain.
constexpr double kLosesInSum = 1.01, kLosesInSteps = 1.1;
constexpr double kNear = 1.02;  // all moves seldom gain more on a way that is this much slower than another
// Documents of a global batch up to which the search is worth its time. Training has a few thousand.
constexpr std::size_t kMostSearched = 1 << 18;

PackOptions starting_from(PackOptions options, Start start, std::vector<std::int64_t> thresholds) {
  options.of<EquipoiseOptions>().start = start;
  options.of<TokenBudget>() = {};
  options.of<FixedLengthOptions>() = {};
  options.of<KarmarkarKarpOptions>() = {};
  WlbOptions& queues = options.of<WlbOptions>();
  queues.search = false;
  queues.queues = 0;
  queues.thresholds = std::move(thresholds);
  return options;
}

void sort_by_speed(std::vector<Alternative>& made) {
  std::ranges::stable_sort(made, {}, &Alternative::seconds);
}

// Tries rising numbers until one is slower than the one before it.
template <class Seconds>
void while_faster(std::span<const std::int64_t> numbers, Seconds&& seconds_with) {
  double last = kCannotRun;
  for (const std::int64_t number : numbers) {
    const double seconds = seconds_with(number);
    if (seconds > last) return;
    last = seconds;
  }
}

// The unchanged steps of other policies, fastest first. The fastest queues of wlb are tried with more
// micro-batches, since steps without outliers profit from more.
std::vector<Alternative> starts_as_they_are(const PackOptions& given, std::span<const std::int64_t> counts,
                                            Alternatives& alternatives) {
  std::vector<Alternative> made;
  for (const Start s : {Start::plain, Start::fixed_greedy, Start::lpt, Start::karmarkar_karp, Start::wlb})
    made.push_back(alternatives.as_it_is(starting_from(given, s, {})));
  for (const std::int64_t window : windows_of(given, alternatives.problem().batches.size())) {
    PackOptions wide = starting_from(given, Start::fixed_greedy, {});
    wide.of<FixedLengthOptions>().pack_window = window;
    made.push_back(alternatives.as_it_is(wide));
  }
  Alternative fastest;
  for (const auto& queues : outlier_thresholds(given)) {
    made.push_back(alternatives.as_it_is(starting_from(given, Start::wlb, queues)));
    if (made.back().seconds < fastest.seconds || fastest.options.of<EquipoiseOptions>().start == Start::best)
      fastest = made.back();
  }
  while_faster(counts, [&](std::int64_t number) {
    if (number == micro_batches_of_step(fastest.options)) return fastest.seconds;  // is among them
    PackOptions counted = fastest.options;
    counted.micro_batches = number;
    counted.of<EquipoiseOptions>().recompute = given.of<EquipoiseOptions>().recompute;
    made.push_back(alternatives.as_it_is(counted));
    return made.back().seconds;
  });
  sort_by_speed(made);
  return made;
}

// The starts within a bound on delay, and the result of wlb's search for the fastest number of micro-batches.
std::vector<Alternative> starts_within(const PackOptions& bound, std::span<const Alternative> starts,
                                       Alternatives& looked_at, Alternatives& alternatives) {
  std::vector<Alternative> within;
  for (const Alternative& start : starts)
    if (start.delay <= bound.of<EquipoiseOptions>().max_delay) within.push_back(start);
  PackOptions counted = bound;
  if (!within.empty()) counted.micro_batches = within.front().options.micro_batches;
  const std::vector<std::int64_t> found =
      looked_at.searched_thresholds(starting_from(counted, Start::wlb, {}));
  within.push_back(alternatives.as_it_is(starting_from(counted, Start::wlb, found)));
  sort_by_speed(within);
  return within;
}

// Keeps the faster of the two alternatives.
void offer(Alternative&& made, Alternative& best) {
  if (made.seconds < best.seconds) best = std::move(made);
}

// Tries documents in arrival order with rising numbers of micro-batches, then the fastest starts, and for the
// best of these the other numbers. Then tries steps that gather long documents, with rising numbers over the
// widest window, then over narrower ones. All are packed with few moves. What plain cuts is not tried with
// documents_per_step, where a loader needs whole documents.
Alternative best_packed_anew(const PackOptions& given, std::span<const std::int64_t> counts,
                             std::span<const Alternative> starts, Alternatives& alternatives) {
  Alternative best, gathered;
  const auto offer_with_few_moves = [&](PackOptions options, std::int64_t micro_batches, Alternative& to) {
    EquipoiseOptions& own = options.of<EquipoiseOptions>();
    options.micro_batches = micro_batches;
    own.moves = given.of<EquipoiseOptions>().moves / kFewMoves;
    if (own.start == Start::gather) {
      own.step_of = gathered_steps(with(alternatives.problem(), options));
      // A narrower window may change nothing.
      const EquipoiseOptions& known = to.options.of<EquipoiseOptions>();
      if (own.step_of == known.step_of && micro_batches == to.options.micro_batches) return to.seconds;
    }
    const bool races = start_alike(options, to.options);
    Alternative made = alternatives.improved(options, races ? Rival{to.steps, kLosesInSum} : Rival());
    const double seconds = made.seconds;
    if (to.options.of<EquipoiseOptions>().start == Start::best) to.options = options;  // however slow it is
    offer(std::move(made), to);
    return seconds;
  };
  const auto try_counts = [&](const PackOptions& options, Alternative& to) {
    while_faster(counts, [&](std::int64_t count) { return offer_with_few_moves(options, count, to); });
  };
  try_counts(starting_from(given, Start::lpt, {}), best);
  // A start that delays no token has the documents of lpt's steps.
  for (const Alternative& start : starts.first(std::min(kMostStarts, starts.size())))
    if (start.delay > 0) offer_with_few_moves(start.options, start.options.micro_batches, best);
  try_counts(PackOptions(best.options), best);
  std::vector<std::int64_t> windows;
  if (given.of<EquipoiseOptions>().max_delay > 0)
    windows = windows_of(given, alternatives.problem().batches.size());
  std::ranges::reverse(windows);
  const auto over = [&](std::int64_t window) {
    PackOptions options = starting_from(given, Start::gather, {});
    options.of<EquipoiseOptions>().look_ahead = window;
    return options;
  };
  if (!windows.empty()) {
    try_counts(over(windows.front()), gathered);
    while_faster(windows, [&](std::int64_t window) {
      return offer_with_few_moves(over(window), gathered.options.micro_batches, gathered);
    });
  }
  if (best.options.of<EquipoiseOptions>().place && given.context > 1) {
    PackOptions spread = best.options;
    spread.of<EquipoiseOptions>().place = false;
    offer(alternatives.improved(spread, {best.steps, kLosesInSum}), best);
  }
  offer(std::move(gathered), best);
  return best;
}

// Takes every step of `made` that is faster than that of `to`; both have the same documents in each step.
// Returns whether there was one.
bool take_faster_steps(const Alternative& made, Alternative& to) {
  const EquipoiseOptions& own = made.options.of<EquipoiseOptions>();
  EquipoiseOptions& kept = to.options.of<EquipoiseOptions>();
  if (made.steps.size() != to.steps.size() || own.keeps.size() != kept.keeps.size() ||
      own.recompute != kept.recompute)
    return false;
  bool any = false;
  kept.made.reset();
  to.seconds = 0;
  for (std::size_t s = 0; s < to.steps.size(); ++s) {
    if (made.steps[s] < to.steps[s]) {
      to.steps[s] = made.steps[s];
      if (!own.keeps.empty()) kept.keeps[s] = own.keeps[s];
      if (!own.degrees.empty()) kept.degrees[s] = own.degrees[s];
      if (!own.chunk_sizes.empty()) kept.chunk_sizes[s] = own.chunk_sizes[s];
      any = true;
    }
    to.seconds += to.steps[s];
  }
  return any;
}

// ChunkFlow's steps in chunks of one size.
PackOptions in_chunks(const PackOptions& given, std::int64_t size, std::size_t steps) {
  PackOptions options = starting_from(given, Start::chunkflow, {});
  options.of<ChunkflowOptions>().chunk_size = size;
  options.of<EquipoiseOptions>().chunk_sizes.assign(steps, size);
  return options;
}

// Tries ChunkFlow's chunks of several sizes where the job's schedule runs the smallest, and takes the best
// for each step. K is an option of the schedule and not of a plan; the prices read it from `keep`.
void offer_chunks(const PackOptions& given, Alternatives& alternatives, int& keep, Alternative& start,
                  Alternative& best) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t parts : {64, 32, 16, 8, 4})
    if (given.context_window / parts >= 1024) sizes.push_back(given.context_window / parts);
  if (sizes.empty() || !alternatives.runs(in_chunks(given, sizes.front(), 1))) return;
  const int kept = keep;
  for (const int k : {1, 4, 16}) {
    Alternative mixed;
    for (const std::int64_t size : sizes) {
      PackOptions options = in_chunks(given, size, alternatives.problem().batches.size());
      options.keep = keep = k;
      Alternative chunks = alternatives.as_it_is(options);
      if (chunks.steps.empty()) continue;
      const Alternative packed = alternatives.improved(options);
      if (mixed.steps.empty())
        mixed = packed;
      else
        take_faster_steps(packed, mixed);
      offer(std::move(chunks), start);
    }
    offer(std::move(mixed), best);
  }
  keep = kept;
}

// Tries sequence slices over these numbers of batches and slices, unchanged. If one becomes the fastest, it
// and its neighbours are packed anew.
void offer_slices(const PackOptions& given, std::span<const std::int64_t> numbers,
                  std::span<const std::int64_t> windows, Alternatives& alternatives, Alternative& fastest,
                  Alternative& start, Alternative& best) {
  const auto sliced = [&](std::int64_t slices, std::int64_t look_ahead) {
    PackOptions options = starting_from(given, Start::sequence_slices, {});
    options.of<SequenceSlicesOptions>() = {.slices = std::max<std::int64_t>(2, slices)};
    EquipoiseOptions& own = options.of<EquipoiseOptions>();
    own.moves /= kFewMoves;  // the time of a move grows with the micro-batches
    own.look_ahead = look_ahead;
    own.step_of = gathered_steps(with(alternatives.problem(), options));
    return options;
  };
  const double before = fastest.seconds;
  for (const std::int64_t number : numbers)
    for (const std::int64_t window : windows) offer(alternatives.as_it_is(sliced(number, window)), fastest);
  if (!(fastest.seconds < before)) return;
  const std::int64_t number = fastest.options.of<SequenceSlicesOptions>().slices;
  for (const std::int64_t quarters : {3, 4, 6})
    offer(alternatives.improved(
              sliced(number * quarters / 4, fastest.options.of<EquipoiseOptions>().look_ahead)),
          best);
  offer(Alternative(fastest), start);
}

// Tries the steps of `base` in other CP degrees, with as many moves, and takes the fastest for each step.
class DegreeSearch {
 public:
  DegreeSearch(const Alternative& base, const PlanPrices& prices, Alternatives& alternatives)
      : degrees_(prices.degrees), alternatives_(alternatives), best_(base) {
    best_.options.of<EquipoiseOptions>().degrees.resize(base.steps.size());
    few_ = best_.options;
  }

  Alternative run() {
    const auto layout = std::ranges::lower_bound(degrees_, std::max(1, few_.context));
    for (auto wider = layout; wider != degrees_.end() && (wider == layout || try_degree(*wider));) ++wider;
    for (auto narrower = layout; narrower != degrees_.begin() && try_degree(*--narrower);) continue;
    if (few_.stages == 1) try_pairs();  // with several stages, the barrier would drain the pipeline
    return best_;
  }

 private:
  // Tries one degree for all lanes. With more ranks, micro-batches may be smaller, since the longest document
  // needs less of each rank. Where a step gains, every document is spread over the ranks, too. Returns
  // whether one gains.
  bool try_degree(int degree) {
    bool any = false;
    for (const bool spread : {false, true}) {
      if (spread && (!any || degree == 1)) break;
      double last = kCannotRun;
      for (int times = 1; times == 1 || times * std::max(1, few_.context) <= degree; times *= 2) {
        const Alternative made = packed_in({degree, degree, 0, times, spread});
        any = take_faster_steps(made, best_) || any;
        if (made.seconds > last) break;
        last = made.seconds;
      }
    }
    return any;
  }

  void try_pairs() {
    for (const int narrow : degrees_)
      for (const int wide : degrees_)
        if (wide > narrow)
          for (const int part : {1, 2, 4})
            take_faster_steps(
                packed_in({wide, narrow, tokens_at_degree(few_.max_tokens, few_, narrow) / part, 1, false}),
                best_);
  }

  Alternative packed_in(const StepDegrees& degrees) {
    PackOptions options = few_;
    options.of<EquipoiseOptions>().degrees.assign(best_.steps.size(), degrees);
    return alternatives_.improved(options, {best_.steps, kLosesInSteps});
  }

  std::span<const int> degrees_;
  Alternatives& alternatives_;
  PackOptions few_;
  Alternative best_;
};

// `base` with other CP degrees where the options allow them.
Alternative with_degrees(const Alternative& base, const PlanPrices& prices, Alternatives& alternatives) {
  const bool may = base.options.of<EquipoiseOptions>().own_degrees && prices.degrees.size() > 1;
  return may && !base.steps.empty() ? DegreeSearch(base, prices, alternatives).run() : base;
}

// The best way to pack within a bound on delay, found with few moves, and the options and starts it is of.
struct Way {
  PackOptions given;
  std::vector<Alternative> starts;
  Alternative packed;
};

// Packs all batches as the best of those that were looked at, with all moves. The CP degrees that a step took
// there are tried for every step.
Alternative packed_alike(const Alternative& found, std::int64_t moves, Alternatives& alternatives) {
  const std::size_t batches = alternatives.problem().batches.size();
  PackOptions options = found.options;
  EquipoiseOptions& own = options.of<EquipoiseOptions>();
  std::vector<StepDegrees> taken;
  for (const StepDegrees& degrees : std::exchange(own.degrees, {}))
    if (degrees.wide > 0 && std::ranges::find(taken, degrees) == taken.end()) taken.push_back(degrees);
  if (own.start == Start::gather) own.step_of = gathered_steps(with(alternatives.problem(), options));
  if (!taken.empty()) {
    own.degrees.resize(batches);
    Alternative few = alternatives.improved(options);
    few.options.of<EquipoiseOptions>().degrees.resize(few.steps.size());
    for (const StepDegrees& degrees : taken) {
      own.degrees.assign(few.steps.size(), degrees);
      take_faster_steps(alternatives.improved(options), few);
    }
    own.degrees = few.options.of<EquipoiseOptions>().degrees;
  }
  own.moves = moves;
  return alternatives.improved(options);
}

// The steps of wlb as they are, without a search.
void take_wlb(const PackingProblem& problem, const PackOptions& given, PackOptions& found) {
  found = starting_from(given, Start::wlb, {});
  EquipoiseOptions& own = found.of<EquipoiseOptions>();
  own.recompute.clear();
  own.keeps.assign(plan_start(with(problem, found)).steps.size(), 1);
}

bool any_above(const PackingProblem& problem, std::int64_t max_tokens) {
  for (const GlobalBatch& batch : problem.batches)
    for (const Slice& slice : batch.slices)
      if (slice.tokens() > max_tokens) return true;
  return false;
}

// Searches the start of all batches: the ways of each bound on delay first, then all moves on the best ways.
class StartSearch {
 public:
  StartSearch(const PackingProblem& problem, const PlanPrices& prices, const PackOptions& given)
      : problem_(problem),
        prices_(prices),
        given_(given),
        lanes_(given.stages, given.chunks),
        first_{problem.batches.first(std::min(kLookedAt, problem.batches.size())), problem.options,
               problem.workload},
        alternatives_(problem, prices, lanes_),
        of_first_(first_, prices, lanes_),
        looked_at_(first_.batches.size() < problem.batches.size() ? of_first_ : alternatives_),
        counts_(counts_of(given, alternatives_.tokens_of_batch())) {}

  // Writes what it found into `found`, whose number of kept chunks prices read.
  Notes run(PackOptions& found) {
    look_at_ways();
    pack_near_ways();
    offer_chunks(given_, alternatives_, found.keep, start_, best_);
    if (best_.seconds < kCannotRun || start_.seconds < kCannotRun) return {take_best(found)};
    // make_plan first cuts or refuses documents that are too long. Without prices, the search uses the
    // policy's own clock.
    if (any_above(problem_, given_.max_tokens)) return {};
    take_wlb(problem_, given_, found);
    return {{"no_plan_in_bounds", "", {}}};
  }

 private:
  // The best way within each bound on delay, fastest first. Also tries narrower bounds, whose plans a wider
  // bound allows, too.
  void look_at_ways() {
    const std::vector<Alternative> starts = starts_as_they_are(given_, counts_, alternatives_);
    PackOptions most_slices = starting_from(given_, Start::sequence_slices, {});
    most_slices.of<SequenceSlicesOptions>().slices = kSliceCounts.back();
    const bool runs_slices = alternatives_.runs(most_slices);
    const double max_delay = given_.of<EquipoiseOptions>().max_delay;
    for (const double bound : std::set{0.0, std::min(EquipoiseOptions().max_delay, max_delay), max_delay}) {
      PackOptions given = given_;
      given.of<EquipoiseOptions>().max_delay = bound;
      std::vector<Alternative> within = starts_within(given, starts, looked_at_, alternatives_);
      offer(Alternative(within.front()), start_);
      Alternative way = best_packed_anew(given, counts_, within, looked_at_);
      ways_.push_back({given, std::move(within), std::move(way)});
      if (runs_slices) slice(given);
    }
    std::ranges::stable_sort(ways_, {}, [](const Way& way) { return way.packed.seconds; });
  }

  void slice(const PackOptions& given) {
    std::vector<std::int64_t> numbers(kSliceCounts.begin(), kSliceCounts.end()), windows = {1};
    if (given.of<EquipoiseOptions>().max_delay > 0) {
      if (sliced_.seconds == kCannotRun) return;
      numbers = {sliced_.options.of<SequenceSlicesOptions>().slices};
      windows = windows_of(given, problem_.batches.size());
    }
    offer_slices(given, numbers, windows, alternatives_, sliced_, start_, best_);
  }

  void pack_near_ways() {
    for (const Way& way : ways_) {
      if (way.packed.options.of<EquipoiseOptions>().start == Start::best) continue;  // no start was tried
      if (best_.seconds < kCannotRun && way.packed.seconds > kNear * ways_.front().packed.seconds) continue;
      Alternative made = in_all(way.packed, looked_at_);
      if (made.seconds == kCannotRun)  // what is best for the first batches is not allowed on all
        made = in_all(best_packed_anew(way.given, counts_, way.starts, alternatives_), alternatives_);
      offer(std::move(made), best_);
    }
  }

  // A way that was found on the batches `of`, in other CP degrees too, with all moves on all batches.
  Alternative in_all(const Alternative& packed, Alternatives& of) {
    Alternative in_degrees = with_degrees(packed, prices_, of);
    Alternative made = packed_alike(in_degrees, given_.of<EquipoiseOptions>().moves, alternatives_);
    if (&of == &alternatives_) offer(std::move(in_degrees), best_);  // few moves may be faster in full
    return made;
  }

  Note take_best(PackOptions& found) {
    const bool packs = best_.seconds < start_.seconds;
    if (!packs) {
      best_ = start_;
      best_.options.of<EquipoiseOptions>().keeps.assign(start_.steps.size(), 1);
    }
    Notes parts;
    if (packs) parts = parts_of(best_.options);
    const double steps = static_cast<double>(std::max<std::size_t>(1, problem_.batches.size()));
    if (prices_.steps_that_fit)
      parts.push_back({"seconds_per_batch", "", {{"seconds", best_.seconds / steps}}});
    if (start_.seconds < kCannotRun && best_.seconds > 0)
      parts.push_back(
          {"times_the_start",
           "",
           {{"ratio", start_.seconds / best_.seconds}, {"start", Notes{start_of(start_.options)}}}});
    found = best_.options;
    found.of<EquipoiseOptions>().max_delay = given_.of<EquipoiseOptions>().max_delay;
    Note note{packs ? "packs_anew" : "takes_as_is", "", {{"start", Notes{start_of(found)}}}};
    note.numbers.emplace("parts", std::move(parts));
    note.numbers.emplace("tried", alternatives_.tried() + of_first_.tried());
    return note;
  }

  // What to say of how a start is packed.
  static Notes parts_of(const PackOptions& options) {
    Notes parts;
    if (options.micro_batches > 0)
      parts.push_back({"in_micro_batches", "", {{"micro_batches", options.micro_batches}}});
    const std::vector<StepDegrees>& degrees = options.of<EquipoiseOptions>().degrees;
    const auto own = std::ranges::count_if(degrees, [](const StepDegrees& d) { return d.wide > 0; });
    if (own > 0) parts.push_back({"lanes_of_other_degrees", "", {{"steps", own}, {"of", degrees.size()}}});
    return parts;
  }

  static constexpr std::array<std::int64_t, 4> kSliceCounts = {2, 4, 8, 16};

  const PackingProblem& problem_;
  const PlanPrices& prices_;
  const PackOptions& given_;
  LaneShapes lanes_;
  PackingProblem first_;  // of the batches on which ways are compared
  Alternatives alternatives_, of_first_;
  Alternatives& looked_at_;
  std::vector<std::int64_t> counts_;
  std::vector<Way> ways_;
  Alternative start_, best_, sliced_;  // the fastest unchanged start, packing, and unchanged slices
};

}  // namespace

Notes find_equipoise_start(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found) {
  PackOptions given = problem.options;
  given.of<EquipoiseOptions>().searched = true;
  given.max_tokens = max_tokens(given);  // for every number of micro-batches that is tried
  std::size_t most = 0;                  // documents of a batch
  for (const GlobalBatch& batch : problem.batches) most = std::max(most, batch.slices.size());
  if (most > kMostSearched) {
    take_wlb(problem, given, found);
    return {{"too_large_to_search", "", {{"documents", most}, {"searched", kMostSearched}}}};
  }
  if (prices.layers) set_recompute(given, prices);
  return StartSearch(problem, prices, given).run(found);
}

}  // namespace equipoise
