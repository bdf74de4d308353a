// The makespan of one lane's pipeline of unequal micro-batches, from their times alone; and the best sizes of
// micro-batches.
//
// The ops of 1F1B, or of its interleaved form, in the order of sim/schedule; every stage has an equal share
// of the layers, sends take no time, and stages run their ops in order and wait for their inputs:
//   end(op) = max(end of the op before it on its stage, end of the op that feeds it) + its time
// This is exact for such a pipeline. It takes O(P m V) additions and maxima for P stages, m micro-batches and
// V model chunks per stage: half a microsecond for P = 4, m = 16, V = 2.
//
// A search prices thousands of changes of one lane, and most of them are refused. The makespan is the length
// of the longest path through these ops, so that any path is a lower bound for any times: its length is a sum
// of times, each as often as the path passes it. LongestPaths keeps the paths that were the longest lately,
// and their lengths. It refuses most changes in O(1); only the others pass over the ops.
//
// For a fixed sum of times, equal micro-batches are not the best: small ones at both ends fill and drain the
// pipeline faster, if sizes rise so slowly that no stage waits for a larger one (best_shares).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/workload.h"

namespace equipoise {

class PipelineClock {
 public:
  // `chunks`: model chunks per stage, V. With more than one, the micro-batches are a multiple of the stages.
  PipelineClock(int stages, int chunks, std::size_t micro_batches);

  [[nodiscard]] std::size_t micro_batches() const { return count_; }
  // The number of micro-batches that pass through the chunks together.
  [[nodiscard]] std::size_t round() const { return chunks_ > 1 ? static_cast<std::size_t>(stages_) : 1; }
  // Whether ops wait for each other, so that there is a longest path.
  [[nodiscard]] bool has_path() const { return stages_ > 1 && count_ > 0; }
  // The time from the first op's start to the last op's end.
  double makespan(std::span<const PassTimes> times);
  // The makespans of several lanes at once, in the time of about two: the k-th of each forward and backward,
  // which come in turn.
  static constexpr std::size_t kAtOnce = 8;
  using AtOnce = std::array<double, kAtOnce>;
  void makespans(std::span<const AtOnce> times, AtOnce& found);
  // How much of the time of each forward and backward the longest path of the last makespan() passes.
  void longest_path(std::span<PassTimes> passes) const;
  // A lower bound on the makespan: the last stage's work, plus the first forward's way to it and the last
  // backward's way back. O(1), given the sum of all times.
  [[nodiscard]] double least(double sum, const PassTimes& first, const PassTimes& last) const {
    return (sum + (stages_ - 1) * (first.forward + last.backward) / chunks_) / stages_;
  }

 private:
  // Ops count from 1; 0 is the begin, whose end is 0.
  struct Op {
    std::uint32_t before, input;  // the ops that it waits for: on its stage, and for its input
    std::uint32_t time;           // 2 x micro-batch, plus 1 for a backward
  };
  void order_ops();
  [[nodiscard]] double parts() const { return static_cast<double>(stages_) * chunks_; }

  int stages_, chunks_;
  std::size_t count_;
  std::vector<Op> ops_;              // ops ordered after their inputs
  std::vector<std::uint32_t> last_;  // the last op of each stage
  std::vector<double> ends_;         // of the begin and each op
  std::vector<AtOnce> all_ends_;
};

// A change of the time of the micro-batch at a place of a lane.
struct PlaceChange {
  std::size_t place = 0;
  PassTimes more;
};

// Paths through the pipeline of a lane, as how much of each time they pass, with their present lengths.
class LongestPaths {
 public:
  // What lengths may be off by adding up changes; a bound counts only beyond it.
  static constexpr double kRounding = 1e-10;

  // Forgets all paths.
  void reset(std::size_t places);
  // Replaces the oldest path.
  void add(std::span<const PassTimes> passes, double length);
  void change(std::span<const PlaceChange> changes);
  // The length of the longest of these paths after the changes, a lower bound on the makespan. O(1).
  [[nodiscard]] double longest_after(std::span<const PlaceChange> changes) const;

 private:
  static constexpr std::size_t kPaths = 16;
  struct Passes {
    std::array<double, kPaths> forward{}, backward{};
  };
  [[nodiscard]] std::array<double, kPaths> changed(std::span<const PlaceChange> changes) const;

  std::vector<Passes> passes_;  // by place
  std::array<double, kPaths> lengths_{};
  std::size_t next_ = 0;
};

// Shares of a lane's work, summing to 1, that minimise the makespan of its pipeline; they are smaller at both
// ends. `fixed`: the time of a micro-batch besides its share, in units of that work. `forward`: the forward's
// part of a time. `most`: the largest share of a micro-batch. The search is deterministic: a grid over ramps
// (first size, growth), then moves between pairs in falling steps.
std::vector<double> best_shares(PipelineClock& clock, double fixed, double forward, double most);

}  // namespace equipoise
