// Successive halving (Jamieson and Talwalkar, arXiv 1502.07943), as candidates come (ASHA, Li et al., arXiv
// 1810.05934): every candidate runs on few global batches, the fastest quarter of those on four times as
// many, the fastest quarter of those on all. So a search looks at ten times the candidates that it could run
// in full.
//
// Example, a study of 100 steps, 160 candidates: 160 run on 6, 40 of them on 25, 10 of those on all 100.
//
// Nobody waits until all have run: a candidate moves on as soon as it is among the fastest quarter of those
// so far, or among the `keep` fastest, since fewer make no ranking. One that does not run there makes room
// for the next. The same holds, apart, among those with a stronger claim to be called fastest (standing.h),
// so that faster ones which the framework does not run take no room from them. Candidates whose packing takes
// as long as many others' move on two at least and a quarter of their own kind at most. Who moves on follows
// from what ran, and from nothing else.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "sim/report/standing.h"

namespace equipoise {

class Halving {
 public:
  // `batches`: of the study. `keep`: places of the ranking.
  Halving(std::size_t batches, std::size_t keep);

  // Global batches of a candidate on each rung; the last is 0 and means all.
  [[nodiscard]] const std::vector<int>& batches() const { return batches_; }
  [[nodiscard]] std::size_t last() const { return batches_.size() - 1; }

  struct Kind {
    bool is_slow = false;
    Claim claim = Claim::fastest;
  };
  // Records the result of a candidate on a rung, in seconds per token; 0 means that it does not run there.
  void ran(std::size_t candidate, std::size_t rung, double seconds, Kind kind);
  // The highest rung on which it ran, and its result there; 0 seconds if it ran on none.
  struct Reached {
    std::size_t rung = 0;
    double seconds = 0;
  };
  [[nodiscard]] Reached reached_by(std::size_t candidate) const;
  // Candidates that move on from a rung now, fastest first.
  [[nodiscard]] std::vector<std::size_t> moving_on(std::size_t rung) const;

 private:
  struct Known {
    std::size_t rung = 0;
    std::vector<double> seconds;  // by rung; 0 if not run
    Kind kind;
  };

  // Those of `here` that ran on the rung and move on, fastest first.
  [[nodiscard]] std::vector<std::size_t> moving_on_of(const std::vector<std::size_t>& here,
                                                      std::size_t rung) const;

  std::size_t keep_;
  std::vector<int> batches_;
  std::vector<Known> known_;
};

}  // namespace equipoise
