// Policies based on arrival order: plain, padded and sorted batches, and packers that fill one pack after the
// other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/random.h"
#include "policies/base/rounding.h"
#include "policies/least_loaded.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {

// Plain-4D (the baseline of WLB-LLM) takes the loader's windows unchanged. Window i of a step goes to lane
// i mod lanes; micro_batch_size consecutive windows of a lane are one micro-batch. It neither balances nor
// delays. O(slices).
//
// Every step has N micro-batches, so those of a short last batch may be empty. Document batches have no
// windows, so their concatenation is cut into windows here, the last one short.
//
// With a token budget, micro-batches hold whole documents in arrival order instead (TRL's and slime's
// batching).

static std::vector<std::vector<Slice>> windows_of(const GlobalBatch& batch, std::int64_t window) {
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

// Fills micro-batches with whole slices in arrival order up to the budget.
static Step step_within_budget(const GlobalBatch& batch, const PackOptions& options) {
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
  bins.resize(rounded_up(std::max<std::size_t>(1, bins.size()), round));
  return step_of_bins(std::move(bins), options);
}

Plan plan_plain(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  if (options.of<TokenBudget>().tokens_per_micro_batch > 0) {
    Plan plan;
    for (const GlobalBatch& batch : problem.batches)
      add_step(problem, step_within_budget(batch, options), plan);
    return plan;
  }
  const std::int64_t micro_batches = micro_batches_of_step(options);
  const std::int64_t window = window_tokens(options);
  const auto lanes = static_cast<std::int64_t>(options.lanes);

  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    std::vector<std::vector<Slice>> windows = windows_of(batch, window);
    Step step = empty_step(options);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const std::int64_t count = micro_batches / lanes + (lane < micro_batches % lanes ? 1 : 0);
      step.lanes[at(lane)].micro_batches.resize(static_cast<std::size_t>(count));
    }
    // Where the user gave the micro-batches of a step, its windows are distributed evenly over them.
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
      if (slices.empty())
        slices = std::move(from);
      else
        slices.insert(slices.end(), from.begin(), from.end());
    }
    add_step(problem, std::move(step), plan);
  }
  return plan;
}

// Padded batches (the DeepSpeed baseline of Skrull, "random batching" in HBP): a sequence is one
// document, a micro-batch holds micro_batch_size of them, and all are padded to its longest. The padding is
// computed, and `pr` counts it. Sequences go to the lanes in turn, as plain's windows do. O(n).

// Whether a micro-batch is full: it has micro_batch_size documents, or another padded document would exceed
// the budget.
static bool is_full(const MicroBatch& micro_batch, const Slice& next, const PackOptions& options) {
  const std::int64_t budget = options.of<TokenBudget>().tokens_per_micro_batch;
  const auto held = static_cast<std::int64_t>(micro_batch.slices.size());
  if (budget == 0) return held >= std::max<std::int64_t>(1, options.micro_batch_size);
  if (!options.of<PaddedOptions>().padding) return micro_batch.tokens() + next.tokens() > budget;
  return (held + 1) * std::max(micro_batch.pad_each_to, next.tokens()) > budget;
}

// Makes one sequence per document. Sequence i goes to lane i mod lanes. Consecutive sequences of a lane make
// a micro-batch, each padded to its longest unless `padding` is off. Under a token budget all lanes get as
// many micro-batches as the longest, the last ones empty, as frameworks with such a budget run them.
static Step padded_step(std::span<const Slice> documents, const PackOptions& options) {
  const bool padding = options.of<PaddedOptions>().padding;
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::vector<MicroBatch>& lane = step.lanes[i % lanes].micro_batches;
    if (lane.empty() || is_full(lane.back(), documents[i], options)) lane.emplace_back();
    MicroBatch& micro_batch = lane.back();
    micro_batch.slices.push_back(documents[i]);
    if (padding) micro_batch.pad_each_to = std::max(micro_batch.pad_each_to, documents[i].tokens());
  }
  if (options.of<TokenBudget>().tokens_per_micro_batch == 0) return step;
  std::size_t most = 1;
  for (const Lane& lane : step.lanes) most = std::max(most, lane.micro_batches.size());
  const auto round = static_cast<std::size_t>(options.lane_round);
  for (Lane& lane : step.lanes) lane.micro_batches.resize(rounded_up(most, round));
  return step;
}

Plan plan_padded(const PackingProblem& problem) {
  Plan plan;
  for (const GlobalBatch& batch : problem.batches)
    add_step(problem, padded_step(batch.slices, problem.options), plan);
  return plan;
}

// Sorted batching (LongAlign) sorts the whole set by length (shortest first, stable), cuts it into
// consecutive batches and shuffles these. Documents of a batch have similar lengths, so padding is small;
// micro-batches are padded as by `padded`. A batch has documents_per_step documents, or with window batches
// as many as give the loader's number of steps. A short batch is marked as a tail. O(n).
Plan plan_sorted(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  const SliceList set = whole_set(problem);
  const std::vector<Slice> sorted =
      each_of(shortest_first(set.lengths), [&](std::uint32_t i) { return set.slices[i]; });

  const std::size_t steps = std::max<std::size_t>(1, problem.batches.size());
  const std::size_t size = options.documents_per_step > 0
                               ? static_cast<std::size_t>(options.documents_per_step)
                               : std::max<std::size_t>(1, (sorted.size() + steps - 1) / steps);
  std::vector<std::size_t> begins;
  for (std::size_t begin = 0; begin < sorted.size(); begin += size) begins.push_back(begin);
  if (options.shuffle) {
    SplitMix64 random(options.seed);
    shuffle(begins, random);
  }
  Plan plan;
  plan.steps.reserve(begins.size());
  for (const std::size_t begin : begins) {
    const std::size_t count = std::min(size, sorted.size() - begin);
    plan.steps.push_back(padded_step(std::span(sorted).subspan(begin, count), options));
    plan.steps.back().tail = count < size;
  }
  return plan;
}

// Packers that fill one pack after the other: next-fit in shuffled or in data order, and published variants.

namespace {

struct Pooled {
  std::uint32_t document;
  std::uint32_t tokens;
};

}  // namespace

std::vector<std::uint32_t> shuffled_order(std::size_t count, Shuffler random) {
  std::vector<std::uint32_t> order = positions<std::uint32_t>(count);
  if (random != nullptr) shuffle(order, *random);
  return order;
}

// Random packing (the "random" row of HBP's tables) shuffles, then packs by next-fit to the pack length.
// O(n).
Packs pack_random(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  Packs packs;
  packs.item = shuffled_order(lengths.size(), random);
  std::int64_t room = capacity;
  for (std::size_t i = 0; i < packs.item.size(); ++i) {
    const std::int64_t tokens = lengths[packs.item[i]];
    if (tokens > room) {
      packs.begin.push_back(static_cast<std::uint32_t>(i));
      room = capacity;
    }
    room -= tokens;
  }
  if (!packs.item.empty()) packs.close();
  return packs;
}

// LongAlign's packing is next-fit in data order. LongAlign also weights the loss of each packed sequence,
// which does not change the time of a step. O(n).
Packs pack_next_fit(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  return pack_random(lengths, capacity, nullptr);
}

// Iterative sampling and filtering (HBP's default packer, after Llama-3's and others' data pipelines) runs
// `rounds` rounds. Each shuffles the pool, packs it by next-fit in pool order, keeps the packs that reach the
// threshold (pack length - 128) and returns the documents of the others to the pool in order. The last round
// keeps all packs. O(rounds * n), in place: the pool is one array that shrinks.
std::int64_t isf_threshold(std::int64_t given, std::int64_t capacity) {
  return given >= 0 ? given : capacity - 128;
}

Packs pack_isf(std::span<const std::int64_t> lengths, std::int64_t capacity, int rounds,
               std::int64_t threshold, Shuffler random) {
  if (rounds < 1) throw UserError("rounds: expected a number >= 1, found ", rounds);
  std::vector<Pooled> pool(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i)
    pool[i] = {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(lengths[i])};
  Packs packs;
  packs.item.reserve(lengths.size());
  for (int round = 1; !pool.empty(); ++round) {
    const bool last = round >= rounds;
    if (random != nullptr) shuffle(pool, *random);
    std::size_t returned = 0;
    for (std::size_t begin = 0; begin < pool.size();) {
      std::int64_t tokens = pool[begin].tokens;  // a pack has a document, however long, so that the loop ends
      std::size_t end = begin + 1;
      while (end < pool.size() && tokens + pool[end].tokens <= capacity) tokens += pool[end++].tokens;
      if (last || tokens >= threshold) {
        for (std::size_t i = begin; i < end; ++i) packs.item.push_back(pool[i].document);
        packs.close();
      } else {
        for (std::size_t i = begin; i < end; ++i) pool[returned++] = pool[i];
      }
      begin = end;
    }
    pool.resize(returned);
  }
  return packs;
}

Plan plan_isf(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  const std::int64_t capacity = pack_length(problem.options);
  const IsfOptions& isf = problem.options.of<IsfOptions>();
  const Packs packs = pack_isf(set.lengths, capacity, isf.rounds, isf_threshold(isf.threshold, capacity),
                               problem.options.shuffle ? &random : nullptr);
  return plan_of_mixed_packs(set.slices, packs, problem.options, random);
}

// DP-balanced packing (Megatron-Core's sequence-packing scheduler): next-fit in arrival order, then the
// number of packs is raised to a multiple of the lanes, so that every data-parallel rank gets equally many.
// The last pack gives up its last document repeatedly while it has more than one, then the pack before it
// does. Each such document becomes a pack at the end. O(n).
//
// Megatron packs one global batch at a time and fails when no document is left to move. Here the whole set is
// packed at once, as by the other packers of one length, and the last step is then uneven. A step is also
// uneven where the lanes do not divide its number of packs, which follows from the study's global batch.
Packs pack_dp_balanced(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes) {
  const Packs packed = pack_next_fit(lengths, capacity);
  std::size_t wanted = (lanes - packed.size() % lanes) % lanes;
  std::vector<std::size_t> kept(packed.size());
  for (std::size_t p = 0; p < packed.size(); ++p) kept[p] = packed.of(p).size();
  std::vector<std::uint32_t> moved;
  for (std::size_t p = packed.size(); p-- > 0 && wanted > 0;)
    for (; wanted > 0 && kept[p] > 1; --wanted) moved.push_back(packed.of(p)[--kept[p]]);
  Packs packs;
  packs.item.reserve(lengths.size());
  for (std::size_t p = 0; p < packed.size(); ++p) {
    const std::span<const std::uint32_t> items = packed.of(p).first(kept[p]);
    packs.item.insert(packs.item.end(), items.begin(), items.end());
    packs.close();
  }
  for (const std::uint32_t item : moved) {
    packs.item.push_back(item);
    packs.close();
  }
  return packs;
}

}  // namespace equipoise
