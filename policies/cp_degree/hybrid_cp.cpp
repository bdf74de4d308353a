// Hybrid context parallelism, as Megatron-Core schedules it. Every document runs on as many ranks as its
// length needs (the power of two, or with `degrees: any` the number, at or above length / tokens-per-rank).
// Documents of one step run in rounds with a barrier between them. The cost of a document on a rank is len^2
// / degree.
//   A round takes documents longest first. Each opens a group of its degree while that many GPUs are free,
//   else it goes to the least loaded group of exactly its degree. Where there is none, it waits, and the next
//   smaller degree is tried. Once a document of a smaller degree than the round's first was placed, the round
//   ends as soon as the least loaded GPU is within 5% of the most loaded. A round that ends with a larger
//   spread and work on every GPU is trimmed: the last document of the most loaded group is taken back while
//   that lowers the spread and the group keeps a document. The rest goes to the next round, followed by the
//   documents taken back. If GPUs stay idle, the first of the smallest groups is doubled repeatedly while
//   there are enough of them.
// A group runs its documents in sequence, each as a micro-batch of its own. The cost counts only attention,
// as the original's does. Groups of equal len^2 / degree may hold very unequal tokens (a document of 100K on
// four ranks weighs as much as 160 of 4K on one: 25K tokens per rank against 640K). So where linear layers
// take most of the time, the groups of short documents determine the step. With a pipeline, which the
// original does not support, a group's load is the pipeline's: the sum of its micro-batches' times and
// (stages - 1) times the largest. Departures: the original first cuts the documents into buckets of equal
// work, which only changes which document comes next when the longest finds no place; here the next degree
// does. Ties go to the lowest index. On a grid that is no power of two the whole grid is also a degree, for a
// document that no smaller one holds and for a round's only group. GPUs that no group can use idle. Cost: O(n
// * log(groups)) per round and a few rounds in practice.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "policies/cp_degree/cp_grid.h"
#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr double kBalanced = 0.05;

// A round that is being filled.
class HybridRound {
 public:
  HybridRound(const CpGrid& grid, const std::vector<Slice>& documents) : grid_(grid), documents_(documents) {}

  [[nodiscard]] int free_gpus() const { return grid_.gpus - used_; }

  // Returns false where no GPUs of this degree are free and no group has it.
  bool place(std::uint32_t document, int degree) {
    if (free_gpus() >= degree) {  // a new group has no load, so it is never worse
      groups_.push_back({degree, {}});
      sum_.push_back(0);
      largest_.push_back(0);
      load_.push_back(0);
      used_ += degree;
      add(document, groups_.size() - 1);
      return true;
    }
    Alike& alike = alike_to(degree);
    if (alike.groups.empty()) return false;
    const std::size_t least = alike.loads.least(), g = alike.groups[least];
    add(document, g);
    alike.loads.set(least, load_[g]);
    return true;
  }

  // Takes the last document of the most loaded group back into `left`, repeatedly while that lowers the
  // spread. It stops below 5%, and does nothing while GPUs are idle, since groups grow into those.
  void trim_overload(std::vector<std::uint32_t>& left) {
    while (free_gpus() == 0 && !balanced()) {
      std::size_t most = 0;
      for (std::size_t g = 1; g < groups_.size(); ++g)
        if (load_[g] > load_[most]) most = g;
      std::vector<std::uint32_t>& documents = groups_[most].documents;
      if (documents.size() < 2) return;
      const double before = spread();
      const std::uint32_t last = documents.back();
      documents.pop_back();
      recount(most);
      if (!(spread() < before)) {
        documents.push_back(last);
        recount(most);
        return;
      }
      left.push_back(last);
    }
  }

  // Whether loads are within 5%, where idle GPUs count as zero. The group that was too light last time is
  // looked at first, since it mostly still is.
  [[nodiscard]] bool balanced() {
    const auto light = [this](double load) { return most_ - load > kBalanced * most_; };
    if (free_gpus() > 0) return !light(0);
    if (lightest_ < load_.size() && light(load_[lightest_])) return false;
    lightest_ = static_cast<std::size_t>(std::ranges::find_if(load_, light) - load_.begin());
    return lightest_ == load_.size();
  }

  void fill_empty_gpus() { widen_groups(grid_, groups_, used_); }

  [[nodiscard]] const std::vector<CpGroup>& groups() const { return groups_; }

 private:
  // The groups of one degree, once no more of them can open.
  struct Alike {
    std::vector<std::size_t> groups;
    LeastLoaded<double> loads;
  };

  Alike& alike_to(int degree) {
    const auto known = alike_.find(degree);
    if (known != alike_.end()) return known->second;
    std::vector<std::size_t> groups;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].degree == degree) groups.push_back(g);
    LeastLoaded<double> loads(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) loads.set(i, load_[groups[i]]);
    return alike_.emplace(degree, Alike{std::move(groups), std::move(loads)}).first->second;
  }

  void add(std::uint32_t document, std::size_t g) {
    const double own = cost(document, groups_[g].degree);
    groups_[g].documents.push_back(document);
    sum_[g] += own;
    largest_[g] = std::max(largest_[g], own);
    load_[g] = grid_.lane_time(sum_[g], largest_[g]);
    most_ = std::max(most_, load_[g]);
  }

  // A document's work on each of its ranks, in pairs of tokens.
  [[nodiscard]] double cost(std::uint32_t document, int degree) const {
    const auto tokens = static_cast<double>(documents_[document].tokens());
    return tokens * tokens / degree;
  }

  void recount(std::size_t g) {
    sum_[g] = largest_[g] = 0;
    for (const std::uint32_t document : groups_[g].documents) {
      sum_[g] += cost(document, groups_[g].degree);
      largest_[g] = std::max(largest_[g], cost(document, groups_[g].degree));
    }
    load_[g] = grid_.lane_time(sum_[g], largest_[g]);
    most_ = std::ranges::max(load_);
  }

  // The load of the most loaded GPU minus that of the least loaded.
  [[nodiscard]] double spread() const {
    double least = load_[0];
    double most = load_[0];
    for (std::size_t g = 1; g < groups_.size(); ++g) {
      least = std::min(least, load_[g]);
      most = std::max(most, load_[g]);
    }
    return most - least;
  }

  const CpGrid& grid_;
  const std::vector<Slice>& documents_;
  std::vector<CpGroup> groups_;
  std::vector<double> sum_;
  std::vector<double> largest_;
  std::vector<double> load_;
  std::map<int, Alike> alike_;  // by degree
  double most_ = 0;           // load of all groups
  std::size_t lightest_ = 0;  // a group that balanced() found too light
  int used_ = 0;
};

// Fills one round from `waiting` (longest first, then the documents taken back) and removes those that it
// placed.
HybridRound fill_round(const CpGrid& grid, const std::vector<Slice>& documents,
                       std::vector<std::uint32_t>& waiting) {
  HybridRound round(grid, documents);
  std::vector<std::uint32_t> left;
  int first_degree = 0;
  bool check_balance = false;
  int passed_over = 0;  // the degree for which this round has no more places
  std::size_t at = 0;
  for (; at < waiting.size(); ++at) {
    const int degree = grid.degree_needed(documents[waiting[at]].tokens());
    if (degree == passed_over || !round.place(waiting[at], degree)) {
      passed_over = degree;
      left.push_back(waiting[at]);
      continue;
    }
    if (first_degree == 0) first_degree = degree;
    check_balance = check_balance || degree < first_degree;
    if (check_balance && round.balanced()) {
      ++at;
      break;
    }
  }
  assert(waiting.empty() || first_degree != 0);  // the hard limit lets every document fit an empty round
  left.insert(left.end(), waiting.begin() + static_cast<std::ptrdiff_t>(at), waiting.end());
  round.trim_overload(left);
  waiting = std::move(left);
  round.fill_empty_gpus();
  return round;
}

}  // namespace

Plan plan_hybrid_cp(const PackingProblem& problem) {
  const CpGrid grid = CpGrid::of(problem.options);
  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    std::vector<std::uint32_t> waiting = longest_first(lengths_of(batch.slices));
    Step step;
    const auto one_each = [&](const CpGroup& group) {
      std::vector<MicroBatch> micro_batches(group.documents.size());
      for (std::size_t i = 0; i < group.documents.size(); ++i)
        micro_batches[i].slices = {batch.slices[group.documents[i]]};
      return micro_batches;
    };
    int barrier = 0;
    do {
      const HybridRound round = fill_round(grid, batch.slices, waiting);
      append_lanes(round.groups(), grid, barrier++, one_each, step);
    } while (!waiting.empty());
    add_step(problem, std::move(step), plan);
  }
  return plan;
}

}  // namespace equipoise
