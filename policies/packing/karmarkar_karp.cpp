// Karmarkar-Karp k-way largest differencing (Karmarkar and Karp 1982; the sequence balancer of verl)
// distributes the documents of a step over its N micro-batches, with weight W.
//
// A state is a partial partition into k sets, sorted by sum, largest first. At first every document is a
// state with k - 1 empty sets. The two states with the largest spread (largest sum minus smallest) are joined
// repeatedly, the largest set of one with the smallest of the other, until one state is left. Ties of spread
// go to the state whose first document is heavier, then lower; equal sums keep their order.
//
// equal_size starts from groups of k documents instead of single ones: k neighbours in the order of weight,
// one per set, so that all sets stay equal in number. verl requires that k divides the count. Here the
// lightest group is padded with imaginary documents of weight 0, so parts differ by at most one in number.
//
// Only non-empty sets are stored. A state stays at the top of the heap until all k of its sets are filled,
// and every set that joins it until then is lighter than all its sets, so a join is one push_back. So n/k
// states of k sets are made in O(n), and the remaining joins take O(k log k) each: O(n log n + n log k) in
// all.
#include "policies/packing/karmarkar_karp.h"

#include <algorithm>
#include <utility>

#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

// A set of documents, linked through `next`, which all sets of a partition share.
struct Set {
  double sum = 0;
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
};

using State = std::vector<Set>;  // non-empty sets, by falling sum

bool heavier(const Set& a, const Set& b) {
  return a.sum > b.sum;
}

struct HeapEntry {
  double spread;
  std::uint32_t state;  // index of the document with which the state began
  friend bool operator<(const HeapEntry& a, const HeapEntry& b) {
    return a.spread != b.spread ? a.spread < b.spread : a.state > b.state;
  }
};

class Differencing {
 public:
  Differencing(std::span<const double> weights, std::size_t k) : k_(k), next_(weights.size(), kNone) {}

  void add_state(State state) {
    const auto number = static_cast<std::uint32_t>(states_.size());
    heap_.push_back({spread(state), number});
    states_.push_back(std::move(state));
  }

  std::vector<std::vector<std::uint32_t>> run() {
    std::make_heap(heap_.begin(), heap_.end());
    while (heap_.size() > 1) {
      const HeapEntry a = pop();
      const HeapEntry b = pop();
      join(states_[a.state], states_[b.state]);
      states_[b.state] = {};
      push({spread(states_[a.state]), a.state});
    }
    std::vector<std::vector<std::uint32_t>> parts(k_);
    const State& result = states_[heap_.front().state];
    for (std::size_t p = 0; p < result.size(); ++p) {
      for (std::uint32_t i = result[p].first; i != kNone; i = next_[i]) parts[p].push_back(i);
      std::sort(parts[p].begin(), parts[p].end());
    }
    return parts;
  }

 private:
  [[nodiscard]] double spread(const State& state) const {
    return state.front().sum - (state.size() == k_ ? state.back().sum : 0);
  }

  HeapEntry pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    const HeapEntry top = heap_.back();
    heap_.pop_back();
    return top;
  }

  void push(HeapEntry entry) {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end());
  }

  void join(State& a, const State& b) {
    if (a.size() + b.size() <= k_) {
      join_apart(a, b);
      return;
    }
    // Set i of a joins set k - 1 - i of b. Some sets of either join an empty one.
    const std::size_t own = a.size();
    a.resize(k_);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::size_t place = k_ - 1 - i;
      if (place < own)
        absorb(a[place], b[i]);
      else
        a[place] = b[i];
    }
    // The sets before those that b joined are in order.
    const auto joined = a.end() - static_cast<std::ptrdiff_t>(b.size());
    std::stable_sort(joined, a.end(), heavier);
    merge(a, joined);
  }

  void join_apart(State& a, const State& b) {
    const auto middle = static_cast<std::ptrdiff_t>(a.size());
    if (a.size() == 1) a.reserve(k_);
    a.insert(a.end(), b.begin(), b.end());
    merge(a, a.begin() + middle);
  }

  // Puts the sets from `middle` on, which are in order, in order with those before. Mostly it is one set,
  // that of a single document, which need not be compared with all others.
  static void merge(State& sets, State::iterator middle) {
    if (sets.end() - middle > 1) return std::inplace_merge(sets.begin(), middle, sets.end(), heavier);
    const Set last = sets.back();
    const auto place = std::upper_bound(sets.begin(), middle, last, heavier);
    std::move_backward(place, middle, sets.end());
    *place = last;
  }

  void absorb(Set& set, const Set& other) {
    next_[set.last] = other.first;
    set.last = other.last;
    set.sum += other.sum;
  }

  std::size_t k_;
  std::vector<std::uint32_t> next_;
  std::vector<State> states_;
  std::vector<HeapEntry> heap_;
};

}  // namespace

std::vector<std::vector<std::uint32_t>> karmarkar_karp(std::span<const double> weights, std::size_t k,
                                                       bool equal_size) {
  if (weights.empty()) return std::vector<std::vector<std::uint32_t>>(k);
  Differencing differencing(weights, k);
  const std::vector<std::uint32_t> order = heaviest_first(weights);
  // Groups of k are cut from the heavy end, so that the heaviest one is full.
  const std::size_t group = equal_size ? k : 1;
  for (std::size_t begin = 0; begin < order.size(); begin += group) {
    State state;
    for (std::size_t i = begin; i < std::min(begin + group, order.size()); ++i)
      state.push_back({weights[order[i]], order[i], order[i]});
    differencing.add_state(std::move(state));
  }
  return differencing.run();
}

Plan plan_karmarkar_karp(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    const auto fill = [&](std::span<const double> weights, std::size_t bins) {
      const bool equal_size = options.of<KarmarkarKarpOptions>().equal_size;
      return each_of(karmarkar_karp(weights, bins, equal_size), [&](const std::vector<std::uint32_t>& part) {
        return each_of(part, [&](std::uint32_t i) { return batch.slices[i]; });
      });
    };
    add_step(problem, step_of_bins(bins_of_step(batch, problem, fill), options), plan);
  }
  return plan;
}

}  // namespace equipoise
