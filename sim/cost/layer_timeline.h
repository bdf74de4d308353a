// The time of a run of equal layers on the CP ranks of one group, as a max-plus recurrence.
//
// Inside a layer every rank works alone between synchronisations. With x_r the clock of rank r:
//   x_r += local[p][r];  at synchronisation p: S = max_r x_r, x_r = max(S + comm[p], x_r + overlap[p][r]);
// comm[p] is the collective that all members enter together, overlap[p][r] what rank r computes meanwhile
// (ring steps, Skrull's local documents). Exact: an op-by-op simulation of the same lists gives the same
// clocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "sim/workload/ops.h"

namespace equipoise {

struct LayerTimeline {
  int ranks = 0;
  std::vector<Picoseconds> local;    // (syncs + 1) x ranks
  std::vector<Picoseconds> overlap;  // syncs x ranks
  std::vector<Picoseconds> comm;     // syncs

  // An expert-parallel exchange inside a run of local work. `local` holds its time as if no rank had to wait
  // for others. An engine whose ranks wait for those of other lanes moves the clocks from exchange to
  // exchange (advance_part).
  struct Exchange {
    std::size_t run = 0;  // the run of local work that it lies in
    // Times by rank. `lead` runs from the end of the exchange before, or from the run's begin. `under` is
    // what the rank computes meanwhile; it goes on when both have ended. `taken` is the part of `under` that
    // is lost to the SMs that the exchange holds (KernelCosts::taken_sms).
    std::vector<Picoseconds> lead, duration, under, taken;
    [[nodiscard]] Picoseconds alone(std::size_t rank) const { return std::max(duration[rank], under[rank]); }
    friend bool operator==(const Exchange&, const Exchange&) = default;
  };
  std::vector<Exchange> exchanges;  // in order; empty without expert parallelism

  [[nodiscard]] std::size_t syncs() const { return comm.size(); }
  // Resets it to one run of local work of length 0 on each rank.
  void reset(int rank_count);
  // Adds local work to the run after the last synchronisation.
  void add_local(int rank, Picoseconds duration) {
    summed_ = false;
    local[comm.size() * at(ranks) + at(rank)] += duration;
  }
  // Adds a synchronisation of all ranks, after which local work follows.
  void add_sync(Picoseconds duration);
  // Sets what `rank` computes while the latest synchronisation communicates.
  void overlap_last(int rank, Picoseconds duration) {
    summed_ = false;
    overlap[(comm.size() - 1) * at(ranks) + at(rank)] = duration;
  }
  // The part of a run's local work before and in its exchanges.
  [[nodiscard]] Picoseconds left_behind(std::size_t run, std::size_t rank) const;
  // Appends another layer's work (recompute followed by backward).
  void append(const LayerTimeline& next);

  // Sums over the layer's runs for moving clocks over it, whatever the clocks are. Without overlap a
  // synchronisation removes the ranks' differences: from the first up to the last run, all ranks take equally
  // long.
  struct Sums {
    bool overlaps = false;    // a rank computes under a synchronisation, so that the other members are unused
    Picoseconds between = 0;  // from the first synchronisation's begin to the last one's end
    Picoseconds period = 0;   // time of each further layer like it
  };
  // Computes the sums, once the layer has all its work.
  void sum_up();
  [[nodiscard]] Sums sums() const { return summed_ ? sums_ : make_sums(); }

  friend bool operator==(const LayerTimeline& a, const LayerTimeline& b) {
    return a.ranks == b.ranks && a.local == b.local && a.overlap == b.overlap && a.comm == b.comm &&
           a.exchanges == b.exchanges;
  }

 private:
  [[nodiscard]] Sums make_sums() const;
  Sums sums_;
  bool summed_ = false;
};

// Moves the clocks of all ranks over `layers` such layers: O(ranks), and O(ranks x syncs) for the sums where
// they are not taken yet; O(ranks x syncs x layers) where ranks compute under the communication.
void advance(const LayerTimeline& layer, int layers, std::span<Picoseconds> clock);

// Moves the clocks over one layer from after exchange part - 1 (or its begin, if part is 0) to exchange
// `part` (or its end, if part is the last). The caller handles the exchanges and what runs under them.
void advance_part(const LayerTimeline& layer, std::size_t part, std::span<Picoseconds> clock);

// A layer of one micro-batch's forward issued together with a layer of another's backward, on the same ranks
// (DualPipe, arXiv 2412.19437, section 3.2.1 and Fig. 4). The exchanges of each run under what the other
// computes between its own:
//   exchange 1 of B over F up to its first | dispatch of F over B up to its second |
//   exchange 2 of B over F up to its second | combine of F over the rest of B | the rest of F
// What B has before its first exchange comes first; what a layer has under its own exchanges stays there. A
// slot ends when its exchange and its compute have ended. `on`: advance(forward or backward, part) moves the
// clocks as advance_part does; begin(forward or backward, exchange) begins an exchange and await() waits for
// it.
enum class PairSide : std::uint8_t { forward, backward };
template <class On>
void walk_layer_pair(std::size_t exchanges, On&& on) {
  on.advance(PairSide::backward, 0);
  for (std::size_t e = 0; e < exchanges; ++e) {
    on.begin(PairSide::backward, e);
    on.advance(PairSide::forward, e);
    on.await();
    on.begin(PairSide::forward, e);
    on.advance(PairSide::backward, e + 1);
    on.await();
  }
  on.advance(PairSide::forward, exchanges);
}

// Does the same for ranks that wait only for their own lane's. Adds to exposed[r] what remains of rank r's
// exchanges when the compute under them has ended.
void advance_pair(const LayerTimeline& forward, const LayerTimeline& backward, std::span<Picoseconds> clock,
                  std::span<Picoseconds> exposed);

}  // namespace equipoise
