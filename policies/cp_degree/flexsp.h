// FlexSP's problem (arXiv 2412.01523): CP groups whose degrees sum to the GPUs, and each document on one of
// them, so that the slowest group is as fast as can be.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/base/index.h"
#include "policies/cp_degree/cp_grid.h"

namespace equipoise {

// Documents are sorted by how long they would take, longest first.
struct FlexspProblem {
  CpGrid grid;
  std::vector<int> least_degree;           // per document: what its length needs
  std::vector<std::int64_t> tokens;        // per document
  std::vector<std::vector<double>> times;  // times[k][i]: document i on a group of degree 2^k

  [[nodiscard]] std::size_t documents() const { return tokens.size(); }
};

// Degrees of the groups, largest first.
using GroupLayout = std::vector<int>;

struct FlexspSolution {
  GroupLayout layout;
  std::vector<std::uint16_t> group_of;  // per document
  double slowest = 0;                   // lane time of the slowest group
  bool proven = false;                  // no solution is faster
};

// All layouts of power-of-two degrees that sum to the GPUs, most groups first. Where that would be thousands
// (above 64 GPUs), groups of one degree come in blocks of more and more GPUs until it is not.
std::vector<GroupLayout> group_layouts(const CpGrid& grid);

// Bounds of layouts: no assignment to a layout is faster. A document takes at least what its best group in
// the layout takes, and the documents that need at least some degree share the GPUs of the groups that have
// it.
class LayoutBounds {
 public:
  explicit LayoutBounds(const FlexspProblem& problem);

  // O(documents * degrees) for a new set of degrees, then O(groups). Infinite if a document fits no group.
  double of(const GroupLayout& layout);

 private:
  // For one set of degrees: the least GPU time of all documents that need at least 2^k, and the time of the
  // slowest document on its best group.
  struct Areas {
    std::vector<double> from_level;
    double slowest_document = 0;
  };
  const Areas& areas_of(std::size_t degrees);

  const FlexspProblem& problem_;
  std::vector<Areas> areas_;  // by set of degrees (bit k: 2^k); empty until asked for
};

// A fast solution: greedy on the most promising layouts, then moves and swaps. Deterministic.
FlexspSolution flexsp_heuristic(const FlexspProblem& problem);

// The optimum by branch and bound over layouts and assignments, starting from the heuristic. Exponential;
// gives up after `node_limit` nodes (then `proven` is false).
FlexspSolution flexsp_exact(const FlexspProblem& problem, std::int64_t node_limit);

// Loads of the groups of one layout while documents are assigned, for the searches of FlexSP.

// What a lane's time is made of. `second` is the largest but one, for when the largest leaves.
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

  // Lane time of a group with `added` more and `removed` less (0: nothing).
  [[nodiscard]] double with(const GroupLoad& load, double added, double removed) const {
    const double largest = removed > 0 ? load.largest_without(removed) : load.largest;
    return problem_.grid.lane_time(load.sum - removed + added, std::max(largest, added));
  }
  [[nodiscard]] double time_of(const GroupLoad& load) const { return with(load, 0, 0); }

 private:
  const FlexspProblem& problem_;
  std::vector<const std::vector<double>*> times_;  // per group
};

}  // namespace equipoise
