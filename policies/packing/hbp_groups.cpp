// HBP (arXiv 2503.07680), Algorithm 1.
//
// Algorithm 1 compares the best strategy of every candidate pack length at the same global token count. The
// fastest length l_best and the longest l_max always make groups. Packs of l_best / degree_best and of l_max
// / degree_max tokens fit on one rank of those strategies, so documents of at most these lengths need no CP.
// They make groups of degree 1, the second only if it is longer than l_best (else l_best serves those
// documents).
//
// The printed listing keeps duplicates (a best length of degree 1 appears twice). They are removed here, and
// a group that two rules name keeps the measured strategy of its candidate.
#include "policies/packing/hbp_groups.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/make_plan.h"
#include "policies/packing/hbp.h"
#include "policies/steps.h"

namespace equipoise {

static Group of_candidate(const GroupCandidate& c) {
  return {c.length, c.context, c.recompute_layers};
}

// A group with the tokens of one rank of the candidate, run without CP.
static Group alone(const GroupCandidate& c) {
  return {c.length / c.context, 1, c.recompute_layers_alone};
}

static void check(const Group& group, std::int64_t gpus) {
  const std::string where = concatenated("groups: ", group.length, ":", group.context);
  if (group.length < 1 || group.context < 1)
    throw UserError(where, ": expected a pack length and a CP degree >= 1");
  if (group.context > gpus)
    throw UserError(where, ": CP degree above the ", gpus, " GPUs of the DP x CP grid");
}

std::vector<Group> parse_groups(const std::string& text) {
  constexpr int kMostDegree = 1024;
  const auto refuse = [](const std::string& found) {
    throw UserError("expected length:degree pairs such as 16K:1,128K:8, found ", found);
  };
  std::vector<Group> groups;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t colon = item.find(':');
    Group group;
    std::int64_t degree = 0;
    if (colon == std::string::npos || !parse_size(std::string_view(item).substr(0, colon), group.length) ||
        !parse_size(std::string_view(item).substr(colon + 1), degree) || group.length < 1 || degree < 1 ||
        degree > kMostDegree)
      refuse(item);
    group.context = static_cast<int>(degree);
    groups.push_back(group);
  }
  if (groups.empty()) refuse("nothing");
  return groups;
}

std::string groups_text(std::span<const Group> groups) {
  constexpr std::int64_t kK = 1024;
  std::string text;
  for (const Group& g : groups) {
    if (!text.empty()) text += ',';
    text += g.length % kK == 0 ? std::to_string(g.length / kK) + 'K' : std::to_string(g.length);
    text += ':' + std::to_string(g.context);
  }
  return text;
}

std::vector<Group> select_groups(std::span<const GroupCandidate> candidates) {
  if (candidates.empty()) return {};
  const auto faster = [](const GroupCandidate& a, const GroupCandidate& b) { return a.seconds < b.seconds; };
  const auto shorter = [](const GroupCandidate& a, const GroupCandidate& b) { return a.length < b.length; };
  const GroupCandidate& best = *std::min_element(candidates.begin(), candidates.end(), faster);
  const GroupCandidate& longest = *std::max_element(candidates.begin(), candidates.end(), shorter);
  std::vector<Group> groups{of_candidate(best), of_candidate(longest), alone(best)};
  if (alone(longest).length > best.length) groups.push_back(alone(longest));
  // The sort is stable, so that of equal lengths the candidates' own strategies stay.
  std::ranges::stable_sort(groups, {}, &Group::length);
  const auto same = [](const Group& a, const Group& b) { return a.length == b.length; };
  groups.erase(std::unique(groups.begin(), groups.end(), same), groups.end());
  return groups;
}

std::vector<Group> hbp_groups(const PackOptions& options) {
  std::vector<Group> groups = options.groups;
  if (groups.empty()) groups = select_groups(options.candidates);
  if (groups.empty()) groups.push_back({pack_length(options), options.context, kStudyRecompute});
  for (const Group& group : groups) check(group, grid_gpus(options));
  std::ranges::stable_sort(groups, {}, &Group::length);
  for (std::size_t i = 1; i < groups.size(); ++i)
    if (groups[i].length == groups[i - 1].length)
      throw UserError("groups: pack length ", groups[i].length, " is given twice");
  return groups;
}

std::int64_t hbp_hard_limit(const PackOptions& options) {
  return hbp_groups(options).back().length;
}

std::int64_t shortest_group(const PackOptions& options) {
  std::int64_t least = 0;
  for (const Group& group : options.groups)
    if (least == 0 || group.length < least) least = group.length;
  return least;
}

Room room_by_groups(const PackOptions& options, std::int64_t tokens) {
  Room room{"groups", {"room_of_group", "", {{"tokens", tokens}}}, options};
  std::vector<Group>& groups = room.options.groups;
  if (!groups.empty()) {
    const auto shorter = [](const Group& a, const Group& b) { return a.length < b.length; };
    Group& last = *std::max_element(groups.begin(), groups.end(), shorter);
    last.length = std::max(last.length, tokens);
    return room;
  }
  std::vector<std::int64_t>& candidates = room.options.of<HbpOptions>().candidate_lengths;
  if (candidates.empty()) return room_by_pack_length(options, tokens);
  candidates.push_back(tokens);
  room.key = "candidates";
  room.change = {"room_of_candidate", "", {{"tokens", tokens}}};
  return room;
}

// Each strategy (a pack length at a CP degree) is priced once, by naive steps. Sets of groups are priced by
// the share of tokens that each group would get, and the most promising sets by whole plans.
//
// Whole plans are needed since the naive price includes neither the greedy fill nor short last iterations,
// and a length that is fastest for its own documents may leave slow ones to others.
//
// More memory adds sets and lowers prices. It may also make a set look promising whose whole plan is slow,
// and which then hides a set that less memory would have tried. So the most promising sets are tried for
// every number of tokens that a rank may hold. Every length that holds all documents may be the longest of a
// set, since less memory may not have room for longer ones.
//
// Cost: lengths x degrees x kNaiveSteps simulated steps, and at most kMostPlans plans made and simulated for
// each number of tokens.

namespace {

constexpr std::size_t kNaiveSteps = 4;
constexpr std::size_t kMostPlans = 16;  // per number of tokens of a rank
constexpr double kWorthATry = 1.25;  // sets with a higher ratio to the best naive price get no whole plan
constexpr double kNeverFits = std::numeric_limits<double>::infinity();

struct Strategy {
  std::int64_t length = 0;
  int context = 1;
  int layers = -1;
  double seconds = kNeverFits;  // time for as many tokens as an iteration has
};

struct GroupSet {
  std::vector<Group> groups;
  double promised = kNeverFits;
};

class GroupTrials {
 public:
  GroupTrials(const PackingProblem& problem, const GroupCosts& costs)
      : problem_(problem), costs_(costs), set_(whole_set(problem)), sorted_(set_.lengths) {
    std::sort(sorted_.begin(), sorted_.end());
    for (const std::int64_t length : sorted_) up_to_.push_back(tokens_ += length);
  }

  // The price of a strategy, computed once.
  const Strategy& strategy(std::int64_t length, int degree) {
    const auto [entry, is_new] = known_.try_emplace({length, degree});
    Strategy& s = entry->second;
    if (!is_new) return s;
    s.length = length;
    s.context = degree;
    s.layers = costs_.layers(length, degree);
    if (s.layers >= 0) s.seconds = naive_seconds(s);
    return s;
  }

  [[nodiscard]] std::vector<Strategy> strategies_of(std::int64_t length) {
    std::vector<Strategy> found;
    for (const int degree : hbp_degrees(problem_.options))
      if (strategy(length, degree).layers >= 0) found.push_back(strategy(length, degree));
    return found;
  }

  [[nodiscard]] std::int64_t longest_document() const { return sorted_.empty() ? 0 : sorted_.back(); }

  [[nodiscard]] GroupCandidate candidate(const Strategy& s) {
    return {s.length, s.context, s.layers, strategy(s.length / s.context, 1).layers, s.seconds};
  }

  [[nodiscard]] GroupSet priced(std::vector<Group> groups) {
    std::erase_if(groups, [](const Group& g) { return g.recompute_layers < 0 || g.length < 1; });
    GroupSet set{std::move(groups), 0};
    std::int64_t below = 0;
    for (const Group& g : set.groups) {
      const std::int64_t up_to = tokens_up_to(g.length);
      if (up_to > below)
        set.promised += strategy(g.length, g.context).seconds * static_cast<double>(up_to - below) /
                        static_cast<double>(tokens_of_iteration(problem_.options));
      below = std::max(below, up_to);
    }
    return set;
  }

  [[nodiscard]] double plan_seconds(const std::vector<Group>& groups) {
    PackOptions options = problem_.options;
    options.groups = groups;
    return costs_.seconds(make_plan(packing_policy("hbp"), {problem_.batches, options, problem_.workload}));
  }

 private:
  [[nodiscard]] std::int64_t tokens_up_to(std::int64_t length) const {
    const auto longer = std::upper_bound(sorted_.begin(), sorted_.end(), length);
    return longer == sorted_.begin() ? 0 : up_to_[at(longer - sorted_.begin()) - 1];
  }

  // Packs by next-fit, in data order, the documents that fit into a pack, for a few iterations.
  [[nodiscard]] double naive_seconds(const Strategy& s) const {
    const auto packs_of_step = static_cast<std::size_t>(packs_of_iteration(
        problem_.options, s.length, grid_gpus(problem_.options) / s.context, static_cast<double>(s.length)));
    const std::size_t most = kNaiveSteps * packs_of_step;
    Packs packs;
    std::int64_t room = s.length, tokens = 0;
    for (std::uint32_t d = 0; d < set_.lengths.size() && packs.size() < most; ++d) {
      if (set_.lengths[d] > s.length) continue;
      if (set_.lengths[d] > room) {
        packs.close();
        room = s.length;
      }
      if (packs.size() == most) break;
      packs.item.push_back(d);
      room -= set_.lengths[d];
      tokens += set_.lengths[d];
    }
    if (packs.item.size() > packs.begin.back()) packs.close();
    if (tokens == 0) return 0;  // no document needs such packs
    Plan plan;
    const PackStep shape{static_cast<int>(grid_gpus(problem_.options) / s.context), s.context, s.layers,
                         s.length};
    for (std::uint32_t first = 0; first < packs.size(); first += static_cast<std::uint32_t>(packs_of_step)) {
      std::vector<std::uint32_t> chosen;
      for (std::size_t p = first; p < std::min(packs.size(), first + packs_of_step); ++p)
        chosen.push_back(static_cast<std::uint32_t>(p));
      plan.steps.push_back(step_of_packs(set_.slices, packs, chosen, shape));
    }
    return costs_.seconds(plan) * static_cast<double>(tokens_of_iteration(problem_.options)) /
           static_cast<double>(tokens);
  }

  const PackingProblem& problem_;
  const GroupCosts& costs_;
  SliceList set_;
  std::vector<std::int64_t> sorted_;  // lengths
  std::vector<std::int64_t> up_to_;   // running sums of sorted_
  std::int64_t tokens_ = 0;
  std::map<std::pair<std::int64_t, int>, Strategy> known_;
};

const Strategy& fastest(const std::vector<Strategy>& strategies) {
  return *std::ranges::min_element(strategies, {}, &Strategy::seconds);
}

std::int64_t tokens_of_fullest_rank(const GroupSet& set) {
  std::int64_t most = 0;
  for (const Group& g : set.groups) most = std::max(most, g.length / g.context);
  return most;
}

// Appends the sets that a search would try on GPUs with room for `most` tokens of a rank. `sets` are ordered
// by promise.
void take_promising(std::span<const GroupSet> sets, std::int64_t most, std::vector<GroupSet>& taken) {
  double least = kNeverFits;
  std::size_t of_size = 0;
  for (const GroupSet& set : sets) {
    if (tokens_of_fullest_rank(set) > most) continue;
    least = std::min(least, set.promised);
    if (set.promised > kWorthATry * least || ++of_size > kMostPlans) return;
    const auto is_same = [&](const GroupSet& other) { return other.groups == set.groups; };
    if (std::ranges::none_of(taken, is_same)) taken.push_back(set);
  }
}

}  // namespace

std::vector<int> hbp_degrees(const PackOptions& options) {
  std::vector<int> degrees;
  for (int degree = 1; degree <= grid_gpus(options); degree *= 2) degrees.push_back(degree);
  if (options.context > 0 && !std::has_single_bit(static_cast<unsigned>(options.context)))
    degrees.push_back(options.context);
  return degrees;
}

GroupSearch search_hbp_groups(const PackingProblem& problem, std::span<const std::int64_t> lengths,
                              const GroupCosts& costs) {
  GroupTrials search(problem, costs);
  GroupSearch found;
  std::vector<Strategy> all, longest;
  for (const std::int64_t length : lengths) {
    const std::vector<Strategy> own = search.strategies_of(length);
    if (own.empty()) continue;
    // A length that no document needs costs nothing and would be Algorithm 1's fastest, so it is dropped.
    if (fastest(own).seconds > 0)
      found.candidates.push_back(search.candidate(fastest(own)));
    else
      found.unused.push_back(length);
    all.insert(all.end(), own.begin(), own.end());
    if (longest.empty() || length > longest.front().length) longest = own;
  }
  if (all.empty()) return found;
  if (found.candidates.empty()) found.candidates.push_back(search.candidate(fastest(longest)));

  // Algorithm 1's own choice and one group of the longest length are always tried.
  std::vector<GroupSet> sure{search.priced(select_groups(found.candidates))};
  if (problem.options.of<HbpOptions>().selection == GroupSelection::algorithm_1) {
    found.groups = sure.front().groups;
    found.seconds = search.plan_seconds(found.groups);
    found.plans_tried = 1;
    return found;
  }
  const Strategy& alone = fastest(longest);
  sure.push_back(search.priced({{alone.length, alone.context, alone.layers}}));
  std::vector<GroupSet> others;
  const std::int64_t shortest_end = std::min(longest.front().length, search.longest_document());
  for (const Strategy& end : all) {
    if (end.length < shortest_end) continue;
    others.push_back(search.priced({{end.length, end.context, end.layers}}));
    for (const Strategy& best : all) {
      if (best.length > end.length || (best.length == end.length && best.context != end.context)) continue;
      GroupCandidate first = search.candidate(best), last = search.candidate(end);
      first.seconds = 0;  // 0 marks it as the fastest for Algorithm 1
      last.seconds = 1;
      const std::vector<GroupCandidate> pair =
          best.length == end.length ? std::vector{first} : std::vector{first, last};
      others.push_back(search.priced(select_groups(pair)));
    }
  }
  std::ranges::stable_sort(others, {}, &GroupSet::promised);
  std::set<std::int64_t, std::greater<>> sizes;
  for (const GroupSet& set : others) sizes.insert(tokens_of_fullest_rank(set));
  for (const std::int64_t most : sizes) take_promising(others, most, sure);
  for (const GroupSet& set : sure) {
    const double seconds = search.plan_seconds(set.groups);
    ++found.plans_tried;
    if (found.plans_tried > 1 && !(seconds < found.seconds)) continue;
    found.groups = set.groups;
    found.seconds = seconds;
  }
  return found;
}

// The candidate lengths: as given, else 8K, 16K .. the window.
static std::vector<std::int64_t> candidate_lengths(const PackOptions& options) {
  std::vector<std::int64_t> lengths = options.of<HbpOptions>().candidate_lengths;
  if (!lengths.empty()) return lengths;
  constexpr std::int64_t kShortest = 8192;
  for (std::int64_t l = kShortest; l <= options.context_window; l *= 2) lengths.push_back(l);
  if (lengths.empty()) lengths.push_back(options.context_window);
  return lengths;
}

bool hbp_searches(const PackOptions& options) {
  return options.groups.empty();
}

std::optional<Note> no_hbp_group(const PackOptions& options, const PlanPrices& prices) {
  for (const std::int64_t length : candidate_lengths(options))
    for (const int degree : hbp_degrees(options))
      if (prices.layers(length, degree) >= 0) return {};
  return Note{"no_pack_length_fits", "", {}};
}

// The longest candidate that fits, unpriced, where a document is longer still and make_plan refuses it. None
// where no candidate fits, which the search says.
static std::optional<Group> group_that_refuses(const PackingProblem& problem, const PlanPrices& prices) {
  if (problem.options.oversize != Oversize::error) return {};
  Group longest;
  for (const std::int64_t length : candidate_lengths(problem.options))
    for (const int degree : hbp_degrees(problem.options))
      if (const int layers = prices.layers(length, degree); layers >= 0 && length > longest.length)
        longest = {length, degree, layers};
  if (longest.length == 0) return {};
  for (const GlobalBatch& batch : problem.batches)
    for (const Slice& slice : batch.slices)
      if (slice.tokens() > longest.length) return longest;
  return {};
}

Notes find_hbp_groups(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found) {
  if (const std::optional<Group> longest = group_that_refuses(problem, prices)) {
    found.groups = {*longest};
    return {};
  }
  const std::vector<std::int64_t> lengths = candidate_lengths(problem.options);
  GroupSearch search = search_hbp_groups(problem, lengths, {prices.layers, prices.seconds_that_fit});
  Notes notes;
  for (const std::int64_t length : lengths) {
    bool fits = std::find(search.unused.begin(), search.unused.end(), length) != search.unused.end();
    for (const GroupCandidate& c : search.candidates) fits = fits || c.length == length;
    if (!fits) notes.push_back({"no_degree_fits", "", {{"tokens", length}}});
  }
  found.groups = std::move(search.groups);
  found.candidates = std::move(search.candidates);
  return notes;
}

}  // namespace equipoise
