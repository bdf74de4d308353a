// FlexSP's problem (arXiv 2412.01523): choose CP groups whose degrees sum to the GPUs, and place each
// document on one of them, so that the slowest group is as fast as possible.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/cp_degree/cp_grid.h"

namespace equipoise {

// Documents are sorted by their time, longest first.
struct FlexspProblem {
  CpGrid grid;
  std::vector<int> least_degree;           // per document: the least degree that its length needs
  std::vector<std::int64_t> tokens;        // per document
  std::vector<std::vector<double>> times;  // times[k][i]: document i on a group of degree 2^k

  [[nodiscard]] std::size_t documents() const { return tokens.size(); }
};

// Degrees of the groups, largest first.
using GroupLayout = std::vector<int>;

struct FlexspSolution {
  GroupLayout layout;
  std::vector<std::uint32_t> group_of;  // per document
  double slowest = 0;                   // lane time of the slowest group
  bool proven = false;                  // no solution is faster
};

// All layouts of power-of-two degrees that sum to the GPUs, those with most groups first. Above 64 GPUs there
// would be thousands; groups of one degree then come in ever larger blocks until there are few enough.
std::vector<GroupLayout> group_layouts(const CpGrid& grid);

// Lower bounds on the time of any assignment to a layout. A document takes at least its time on its best
// group, and the documents that need at least some degree share the GPUs of the groups that have it.
class LayoutBounds {
 public:
  explicit LayoutBounds(const FlexspProblem& problem);

  // Takes O(documents) for a set of degrees that no other has priced, then O(groups). Infinite if a document
  // fits no group.
  double of(const GroupLayout& layout);

 private:
  // For one set of degrees: the least GPU time of all documents that need at least degree 2^k, and the time
  // of the slowest document on its best group.
  struct Areas {
    std::vector<double> from_level;
    double slowest_document = 0;
  };
  const Areas& areas_of(std::size_t degrees);

  // Documents with the same least degree, 2^needed. A degree matters to them only where it takes less GPU
  // time than the next smaller one of the set, and most never do. So few sets differ.
  struct Alike {
    std::size_t first = 0, end = 0;
    std::size_t needed = 0;
    std::size_t next_takes_more = 0;  // bit k: all of them take no less GPU time at 2^(k+1) than at 2^k
    std::map<std::size_t, double> least_area = {};  // of all of them, by the degrees that matter
  };
  [[nodiscard]] double area(std::size_t level, std::size_t document) const;
  [[nodiscard]] bool next_takes_more(const Alike& alike, std::size_t level) const;
  double least_area(Alike& alike, std::size_t degrees) const;

  const FlexspProblem& problem_;
  std::vector<Alike> alike_;  // longest first
  // Candidates for the slowest document. Of those with the same least degree: the first, and those that are
  // slower than it at some degree.
  std::vector<std::size_t> slow_;
  std::vector<Areas> areas_;  // indexed by set of degrees (bit k: 2^k); computed on demand
};

// A fast, deterministic solution: greedy on the most promising of all layouts, then moves and swaps.
FlexspSolution flexsp_heuristic(const FlexspProblem& problem, std::span<const GroupLayout> layouts);

// The optimum by branch and bound over layouts and assignments, starting from the heuristic. Takes
// exponential time and stops after `node_limit` nodes, which leaves `proven` false.
FlexspSolution flexsp_exact(const FlexspProblem& problem, std::span<const GroupLayout> layouts,
                            std::int64_t node_limit);

// The loads of one layout's groups while the searches of FlexSP assign documents.

// The terms of a lane's time. `second` is the second largest, needed when the largest is removed.
struct GroupLoad {
  double sum = 0;
  double largest = 0;
  double second = 0;
  friend bool operator==(const GroupLoad&, const GroupLoad&) = default;

  void add(double time) {
    sum += time;
    if (time > largest) {
      second = largest;
      largest = time;
    } else {
      second = std::max(second, time);
    }
  }
  [[nodiscard]] double largest_without(double time) const { return time == largest ? second : largest; }
};

class LayoutView {
 public:
  LayoutView(const FlexspProblem& problem, const GroupLayout& layout) : problem_(problem) {
    for (const int degree : layout)
      times_.push_back(&problem.times[at(std::countr_zero(static_cast<unsigned>(degree)))]);
  }
  [[nodiscard]] double time(std::size_t group, std::size_t document) const {
    return (*times_[group])[document];
  }

  // The lane time of a group with a document of `added` more; 0: of the group as it is.
  [[nodiscard]] double with(const GroupLoad& load, double added) const {
    return problem_.grid.lane_time(load.sum + added, std::max(load.largest, added));
  }
  [[nodiscard]] double time_of(const GroupLoad& load) const { return with(load, 0); }

 private:
  const FlexspProblem& problem_;
  std::vector<const std::vector<double>*> times_;  // per group
};

}  // namespace equipoise
