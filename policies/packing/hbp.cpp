// HBP (arXiv 2503.07680), hierarchical balance packing, divides documents by length into groups. Each group
// has its own pack length, CP degree and checkpointed layers (policies/packing/hbp.h), so short documents do
// not pay for CP. An iteration holds packs of one group with similar attention work, so that lanes finish
// together.
//
//   1. A document of length in (l_{i-1}, l_i] belongs to group i.
//   2. From the longest group down, its documents are packed to l_i (by isf, drawing from one stream in this
//      order). Greedy fill adds to each pack, in data order, every document that still fits, from the next
//      smaller group first. Balance batching sorts the packs stably by the sum of len^2 and cuts them into
//      consecutive iterations of floor(global tokens / l_i) packs (at least 1; with documents_per_step the
//      number of packs that holds those). Short iterations are kept and marked as tails.
//   3. The iterations of all groups, longest group first, are shuffled together. The first curriculum_steps
//      take only the shortest group: its iterations move to the front in shuffled order.
// A group of degree g runs on floor(gpus / g) lanes; pack i of an iteration goes to lane i mod lanes.
// `balance_batching = false` leaves packs in creation order: the "+ hierarchical" row of the paper's table.
//
// The greedy fill needs the first untaken document at or after p with at most r tokens. A tree of minima over
// the group's documents finds it in O(log n), and every search except the last of a pack and group takes a
// document. O(rounds * n + n log n).
#include "policies/packing/hbp.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include "policies/least_loaded.h"
#include "policies/packing/pack_length.h"

namespace equipoise {
namespace {

// The documents of one group that are in no pack yet, in data order.
class Untaken {
 public:
  Untaken(std::vector<std::uint32_t> documents, std::span<const std::int64_t> lengths)
      : documents_(std::move(documents)),
        leaves_(std::bit_ceil(documents_.size() + 1)),
        shortest_(2 * leaves_, kTaken) {
    for (std::size_t i = 0; i < documents_.size(); ++i)
      shortest_[leaves_ + i] = static_cast<std::uint32_t>(lengths[documents_[i]]);
    for (std::size_t n = leaves_; n-- > 1;) shortest_[n] = std::min(shortest_[2 * n], shortest_[2 * n + 1]);
  }

  // Appends to `items`, in data order, every document that fits into the remaining `room`.
  void fill(std::int64_t& room, std::vector<std::uint32_t>& items) {
    for (std::size_t i = 0; (i = next(i, room)) < documents_.size(); ++i) {
      items.push_back(documents_[i]);
      room -= shortest_[leaves_ + i];
      take(i);
    }
  }

  [[nodiscard]] std::vector<std::uint32_t> rest() const {
    std::vector<std::uint32_t> left;
    for (std::size_t i = 0; i < documents_.size(); ++i)
      if (shortest_[leaves_ + i] != kTaken) left.push_back(documents_[i]);
    return left;
  }

 private:
  static constexpr std::uint32_t kTaken = std::numeric_limits<std::uint32_t>::max();

  // The first index >= `from` of a document with at most `room` tokens; at least documents_.size() if there
  // is none.
  [[nodiscard]] std::size_t next(std::size_t from, std::int64_t room) const {
    if (shortest_[1] > room || from >= documents_.size()) return documents_.size();
    std::size_t node = leaves_ + from;
    while (shortest_[node] > room) {
      while (node % 2 == 1) node /= 2;  // a right child's parent has nothing further right below it
      if (node == 0) return documents_.size();
      ++node;  // the right sibling
    }
    while (node < leaves_) {
      node *= 2;
      if (shortest_[node] > room) ++node;
    }
    return node - leaves_;
  }

  void take(std::size_t i) {
    std::size_t node = leaves_ + i;
    shortest_[node] = kTaken;
    for (node /= 2; node >= 1; node /= 2) {
      const std::uint32_t least = std::min(shortest_[2 * node], shortest_[2 * node + 1]);
      if (shortest_[node] == least) return;
      shortest_[node] = least;
    }
  }

  std::vector<std::uint32_t> documents_;
  std::size_t leaves_;
  std::vector<std::uint32_t> shortest_;
};

struct GroupPacks {
  Packs packs;
  std::size_t per_iteration = 1;
  std::vector<std::uint32_t> order;  // order of the packs after balance batching
};

std::vector<Untaken> split_by_length(std::span<const std::int64_t> lengths, std::span<const Group> groups) {
  std::vector<std::vector<std::uint32_t>> members(groups.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::size_t g = 0;
    while (groups[g].length < lengths[i]) ++g;
    members[g].push_back(static_cast<std::uint32_t>(i));
  }
  std::vector<Untaken> untaken;
  untaken.reserve(members.size());
  for (std::vector<std::uint32_t>& documents : members) untaken.emplace_back(std::move(documents), lengths);
  return untaken;
}

Packs pack_group(std::span<const std::uint32_t> documents, std::span<const std::int64_t> lengths,
                 std::int64_t length, const PackOptions& options, SplitMix64& random) {
  const std::vector<std::int64_t> own = each_of(documents, [&](std::uint32_t d) { return lengths[d]; });
  const IsfOptions& isf = options.of<IsfOptions>();
  Packs packs = pack_isf(own, length, isf.rounds, isf_threshold(isf.threshold, length),
                         options.shuffle ? &random : nullptr);
  for (std::uint32_t& item : packs.item) item = documents[item];
  return packs;
}

Packs greedy_fill(Packs packs, std::span<const std::int64_t> lengths, std::int64_t length,
                  std::span<Untaken> smaller) {
  if (smaller.empty()) return packs;
  Packs filled;
  filled.begin.reserve(packs.begin.size());
  filled.item.reserve(packs.item.size());
  std::size_t place = 0;
  for (std::size_t p = 0; p < packs.size(); ++p) {
    std::int64_t room = length;
    for (const std::uint32_t d : packs.of(p)) {
      fetch_ahead(lengths, packs.item, place++);
      filled.item.push_back(d);
      room -= lengths[d];
    }
    for (std::size_t g = smaller.size(); g-- > 0;) smaller[g].fill(room, filled.item);
    filled.close();
  }
  return filled;
}

std::vector<std::uint32_t> balanced_order(const Packs& packs, std::span<const std::int64_t> lengths) {
  std::vector<double> attention(packs.size());
  std::size_t place = 0;
  for (std::size_t p = 0; p < packs.size(); ++p) {
    for (const std::uint32_t d : packs.of(p)) {
      fetch_ahead(lengths, packs.item, place++);
      attention[p] += static_cast<double>(lengths[d]) * static_cast<double>(lengths[d]);
    }
  }
  return positions_by<std::uint32_t>(packs.size(), [&](std::uint32_t i) { return attention[i]; });
}

struct Iteration {
  std::size_t group;
  std::size_t begin;  // index in GroupPacks::order
  std::size_t count;
};

// The number of packs in an iteration of the group. Adds a note where they are not a global batch.
std::size_t packs_of_group(const Packs& packs, std::span<const std::int64_t> lengths, const Group& group,
                           const PackOptions& options, Notes& notes) {
  double tokens = 0;
  for (const std::uint32_t d : packs.item) tokens += static_cast<double>(lengths[d]);
  tokens /= static_cast<double>(std::max<std::size_t>(1, packs.size()));
  const std::int64_t lanes = std::max<std::int64_t>(1, grid_gpus(options) / group.context);
  const std::int64_t count = packs_of_iteration(options, group.length, lanes, tokens);
  if (const std::optional<Note> unequal = unequal_batch(options, count, tokens))
    notes.push_back(
        {"of_group", "", {{"length", group.length}, {"context", group.context}, {"says", Notes{*unequal}}}});
  return static_cast<std::size_t>(count);
}

Note note_on(std::span<const Group> groups) {
  Notes each;
  for (const Group& g : groups) {
    Note& note = each.emplace_back(Note{"group", "", {{"length", g.length}, {"context", g.context}}});
    if (g.recompute_layers == kStudyRecompute) continue;
    note.kind = "group_checkpointed";
    note.numbers.emplace("layers", g.recompute_layers);
  }
  return {"groups", "", {{"groups", std::move(each)}}};
}

// Moves up to `steps` iterations of the shortest group to the front. The others keep their order.
void apply_curriculum(std::vector<Iteration>& iterations, std::int64_t steps) {
  std::int64_t taken = 0;
  std::vector<Iteration> first;
  std::vector<Iteration> rest;
  for (const Iteration& iteration : iterations) {
    const bool early = iteration.group == 0 && taken < steps;
    taken += early ? 1 : 0;
    (early ? first : rest).push_back(iteration);
  }
  first.insert(first.end(), rest.begin(), rest.end());
  iterations = std::move(first);
}

}  // namespace

Plan plan_hbp(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  const std::vector<Group> groups = hbp_groups(options);
  const SliceList set = whole_set(problem);
  const HbpOptions& own_options = options.of<HbpOptions>();
  SplitMix64 random(options.seed);

  Plan plan;
  plan.notes.push_back(note_on(groups));
  std::vector<Untaken> untaken = split_by_length(set.lengths, groups);
  std::vector<GroupPacks> packed(groups.size());
  std::vector<Iteration> iterations;
  for (std::size_t g = groups.size(); g-- > 0;) {
    const std::int64_t length = groups[g].length;
    Packs own = pack_group(untaken[g].rest(), set.lengths, length, options, random);
    packed[g].packs = greedy_fill(std::move(own), set.lengths, length, std::span(untaken).first(g));
    const std::size_t packs = packed[g].packs.size();
    packed[g].order = balanced_order(packed[g].packs, set.lengths);
    if (!own_options.balance_batching) packed[g].order = positions<std::uint32_t>(packs);
    const std::size_t per_iteration = packed[g].per_iteration =
        packs_of_group(packed[g].packs, set.lengths, groups[g], options, plan.notes);
    for (std::size_t begin = 0; begin < packs; begin += per_iteration)
      iterations.push_back({g, begin, std::min(per_iteration, packs - begin)});
  }
  if (options.shuffle) shuffle(iterations, random);
  apply_curriculum(iterations, own_options.curriculum_steps);

  plan.steps.reserve(iterations.size());
  for (const Iteration& it : iterations) {
    const Group& group = groups[it.group];
    const PackStep shape{static_cast<int>(grid_gpus(options) / group.context), group.context,
                         group.recompute_layers, group.length};
    const auto chosen = std::span<const std::uint32_t>(packed[it.group].order).subspan(it.begin, it.count);
    plan.steps.push_back(step_of_packs(set.slices, packed[it.group].packs, chosen, shape));
    plan.steps.back().tail = it.count < packed[it.group].per_iteration;
  }
  return plan;
}

}  // namespace equipoise
