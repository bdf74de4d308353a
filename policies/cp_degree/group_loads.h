// Loads of the groups of one layout while documents are assigned, for the searches of FlexSP.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "policies/base/index.h"
#include "policies/cp_degree/flexsp_problem.h"

namespace equipoise {

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
