// Dynamic context parallelism with packing, as in Megatron-Core's second scheduler: a short document may use
// a larger group than it needs if that lowers the critical path, and documents of a group are packed into one
// micro-batch of at most tokens-per-rank * degree tokens. Documents of one step run in rounds, in each of
// which a group runs one micro-batch. Groups are formed anew for every round, so there is a barrier between
// rounds.
//   A round takes documents longest first. The first opens a group of the degree it needs. Each of the others
//   may join any group that has at least the degree it needs and room for its tokens, or open one of any
//   power-of- two degree from there up to the free GPUs; it goes where the largest load of all GPUs would be
//   least. Ties take the smaller degree, then an existing group before a new one, then the older group. A
//   document that fits nowhere waits for the next round. If GPUs stay idle, the first of the smallest groups
//   is doubled while they last.
// The load of a document on a rank is W(d) / degree, or the cost's own time on a group. With a pipeline the
// objective is the same inside a round: each group runs one micro-batch, so every load is multiplied by the
// number of stages. Departures: the original caps a rank's load at longest document * tokens-per-rank, which
// the room for tokens already implies. A document that needs more than any power of two, or a single group
// that doubling cannot extend to the grid, gets the whole grid, as in the original. GPUs that no group can
// use idle. Cost: O(n * (groups + degrees)) per round.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/cp_degree/cp_grid.h"
#include "policies/least_loaded.h"

namespace equipoise {
namespace {

// times[k][i] is the time of document i on a group of the grid's k-th degree.
using Times = std::vector<std::vector<double>>;

class DynamicRound {
 public:
  DynamicRound(const CpGrid& grid, std::span<const std::int64_t> tokens, const Times& times)
      : grid_(grid), tokens_(tokens), times_(times) {}

  // Returns false if the document fits nowhere in this round.
  bool place(std::uint32_t document) {
    const Choice choice =
        groups_.empty() ? Choice{0, grid_.degree_needed(tokens_[document]), 0} : best_choice(document);
    if (choice.degree == 0) return false;
    if (choice.group == groups_.size()) {
      groups_.push_back({choice.degree, {}});
      load_.push_back(0);
      packed_.push_back(0);
      used_ += choice.degree;
    }
    groups_[choice.group].documents.push_back(document);
    packed_[choice.group] += tokens_[document];
    load_[choice.group] += time(document, choice.degree);
    return true;
  }

  void fill_empty_gpus() { widen_groups(grid_, groups_, used_); }

  [[nodiscard]] const std::vector<CpGroup>& groups() const { return groups_; }

 private:
  struct Choice {
    std::size_t group = 0;  // groups_.size(): a new one
    int degree = 0;         // 0: none
    double largest_load = std::numeric_limits<double>::infinity();
  };

  [[nodiscard]] double time(std::uint32_t document, int degree) const {
    return times_[grid_.place_of(degree)][document];
  }

  [[nodiscard]] Choice best_choice(std::uint32_t document) const {
    const double largest = *std::max_element(load_.begin(), load_.end());
    const int needed = grid_.degree_needed(tokens_[document]);
    Choice best;
    const auto consider = [&](std::size_t group, int degree, double load) {
      const double projected = std::max(largest, load + time(document, degree));
      if (std::tie(projected, degree, group) < std::tie(best.largest_load, best.degree, best.group))
        best = {group, degree, projected};
    };
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const int degree = groups_[g].degree;
      if (degree >= needed && packed_[g] + tokens_[document] <= grid_.tokens_per_rank * degree)
        consider(g, degree, load_[g]);
    }
    for (std::size_t d = grid_.place_of(needed); d < grid_.degrees.size(); ++d)
      if (grid_.degrees[d] <= grid_.gpus - used_) consider(groups_.size(), grid_.degrees[d], 0);
    return best;
  }

  const CpGrid& grid_;
  std::span<const std::int64_t> tokens_;
  const Times& times_;
  std::vector<CpGroup> groups_;
  std::vector<double> load_;
  std::vector<std::int64_t> packed_;
  int used_ = 0;
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
  std::vector<std::uint32_t> waiting = longest_first(tokens);
  int barrier = 0;
  do {
    DynamicRound round(grid, tokens, times);
    std::vector<std::uint32_t> left;
    for (const std::uint32_t i : waiting)
      if (!round.place(i)) left.push_back(i);
    waiting = std::move(left);
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
    plan.steps.push_back(plan_step(batch, grid, problem.workload));
  return plan;
}

}  // namespace equipoise
