// Dynamic context parallelism with packing, as in Megatron-Core's second scheduler: a short document may use
// a larger group than it needs if that lowers the critical path, and documents of a group are packed into one
// micro-batch of at most tokens-per-rank * degree tokens. Documents of one step run in rounds, in each of
// which a group runs one micro-batch. Groups are formed anew for every round, so there is a barrier between
// rounds.
//   A round takes documents longest first. The first opens a group of the degree it needs. Each of the others
//   may join any group that has at least the degree it needs and room for its tokens. It may also open a
//   group of any power-of-two degree from there up to the free GPUs. It goes where the largest load of all
//   GPUs would be least. Ties take the smaller degree, then an existing group before a new one, then the
//   older group. A document that fits nowhere waits for the next round. If GPUs stay idle, the first of the
//   smallest groups is doubled while they last.
// The load of a document on a rank is W(d) / degree, or the cost's own time on a group. With a pipeline the
// objective is the same inside a round: each group runs one micro-batch, so every load is multiplied by the
// number of stages. Departures: the original caps a rank's load at longest document * tokens-per-rank, which
// the room for tokens already implies. A document that needs more than any power of two, or a single group
// that doubling cannot extend to the grid, gets the whole grid, as in the original. GPUs that no group can
// use idle. Cost: O(groups + degrees) per document, and O(log n) for each run of documents that a round
// leaves for the next.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/cp_degree/cp_grid.h"
#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

// times[k][i] is the time of document i on a group of the grid's k-th degree.
using Times = std::vector<std::vector<double>>;

class DynamicRound {
 public:
  DynamicRound(const CpGrid& grid, std::span<const std::int64_t> tokens, const Times& times)
      : grid_(grid), tokens_(tokens), times_(times) {}

  // The longest document that fits somewhere in this round; the first always does.
  [[nodiscard]] std::int64_t longest() const {
    if (groups_.empty()) return std::numeric_limits<std::int64_t>::max();
    std::int64_t most = 0;
    for (const Open& open : open_) most = std::max(most, open.room);
    for (const int degree : grid_.degrees)
      if (degree <= grid_.gpus - used_) most = std::max(most, grid_.tokens_per_rank * degree);
    return most;
  }

  void place(std::uint32_t document) {
    const Choice choice =
        groups_.empty() ? Choice{0, grid_.degree_needed(tokens_[document]), 0} : best_choice(document);
    if (choice.group == groups_.size()) {
      groups_.push_back({choice.degree, {}});
      open_.push_back({choice.degree, times_[grid_.place_of(choice.degree)].data(), 0,
                       grid_.tokens_per_rank * choice.degree});
      used_ += choice.degree;
    }
    Open& open = open_[choice.group];
    groups_[choice.group].documents.push_back(document);
    open.room -= tokens_[document];
    open.load += open.times[document];
    largest_ = std::max(largest_, open.load);
  }

  void fill_empty_gpus() { widen_groups(grid_, groups_, used_); }

  [[nodiscard]] const std::vector<CpGroup>& groups() const { return groups_; }

 private:
  struct Choice {
    std::size_t group = 0;  // groups_.size(): a new one
    int degree = 0;         // 0: none
    double largest_load = std::numeric_limits<double>::infinity();
  };

  // A group while it is filled.
  struct Open {
    int degree;
    const double* times;  // of documents on so many ranks
    double load;
    std::int64_t room;
  };

  [[nodiscard]] Choice best_choice(std::uint32_t document) const {
    const int needed = grid_.degree_needed(tokens_[document]);
    Choice best;
    const auto consider = [&](std::size_t group, int degree, double load) {
      const double projected = std::max(largest_, load);
      if (std::tie(projected, degree, group) < std::tie(best.largest_load, best.degree, best.group))
        best = {group, degree, projected};
    };
    for (std::size_t g = 0; g < open_.size(); ++g) {
      const Open& open = open_[g];
      if (open.degree >= needed && tokens_[document] <= open.room)
        consider(g, open.degree, open.load + open.times[document]);
    }
    for (std::size_t d = grid_.place_of(needed); d < grid_.degrees.size(); ++d)
      if (grid_.degrees[d] <= grid_.gpus - used_)
        consider(open_.size(), grid_.degrees[d], 0 + times_[d][document]);
    return best;
  }

  const CpGrid& grid_;
  std::span<const std::int64_t> tokens_;
  const Times& times_;
  std::vector<CpGroup> groups_;
  std::vector<Open> open_;  // by group
  double largest_ = 0;      // load of all groups
  int used_ = 0;
};

// Documents that wait, longest first.
class Waiting {
 public:
  explicit Waiting(std::span<const std::int64_t> tokens)
      : tokens_(tokens), order_(longest_first(tokens)), next_(order_.size() + 1) {
    std::iota(next_.begin(), next_.end(), 0U);
  }

  [[nodiscard]] bool empty() { return first(0) == order_.size(); }
  [[nodiscard]] std::size_t size() const { return order_.size(); }
  [[nodiscard]] std::uint32_t document(std::size_t place) const { return order_[place]; }

  // The first place from `place` on whose document waits.
  std::size_t first(std::size_t place) {
    while (next_[place] != place) place = next_[place] = next_[next_[place]];
    return place;
  }
  // The same among documents of at most so many tokens.
  std::size_t first(std::size_t place, std::int64_t longest) {
    const auto fits = std::partition_point(order_.begin() + static_cast<std::ptrdiff_t>(place), order_.end(),
                                           [&](std::uint32_t i) { return tokens_[i] > longest; });
    return first(static_cast<std::size_t>(fits - order_.begin()));
  }
  void take(std::size_t place) { next_[place] = static_cast<std::uint32_t>(place + 1); }

 private:
  std::span<const std::int64_t> tokens_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> next_;  // a place from which on the next one that waits is found
};

Step plan_step(const GlobalBatch& batch, const CpGrid& grid, const Workload& workload) {
  const std::vector<std::int64_t> tokens = lengths_of(batch.slices);
  Times times;
  for (const int degree : grid.degrees) {
    times.emplace_back(tokens.size());
    workload.on_group(tokens, degree, times.back());
  }
  // Makes one micro-batch, or as many as the alignment asks for and documents fill: they are dealt in turn,
  // longest first.
  const auto packed = [&](const CpGroup& group) {
    std::vector<MicroBatch> micro_batches(std::clamp<std::size_t>(group.documents.size(), 1, grid.align));
    for (std::size_t k = 0; k < group.documents.size(); ++k)
      micro_batches[k % micro_batches.size()].slices.push_back(batch.slices[group.documents[k]]);
    return micro_batches;
  };

  Step step;
  Waiting waiting(tokens);
  int barrier = 0;
  do {  // every round places the first that waits
    DynamicRound round(grid, tokens, times);
    for (std::size_t place = waiting.first(0); place < waiting.size();
         place = waiting.first(place + 1, round.longest())) {
      round.place(waiting.document(place));
      waiting.take(place);
    }
    round.fill_empty_gpus();
    append_lanes(round.groups(), grid, barrier++, packed, step);
  } while (!waiting.empty());
  return step;
}

}  // namespace

Plan plan_dynamic_cp(const PackingProblem& problem) {
  const CpGrid grid = CpGrid::of(problem.options);
  Plan plan;
  for (const GlobalBatch& batch : problem.batches)
    add_step(problem, plan_step(batch, grid, problem.workload), plan);
  return plan;
}

}  // namespace equipoise
