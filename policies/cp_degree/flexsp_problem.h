// FlexSP's problem (arXiv 2412.01523): CP groups whose degrees sum to the GPUs, and each document on one of
// them, so that the slowest group is as fast as can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace equipoise
