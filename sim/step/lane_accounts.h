// What a lane's ops compute, attend to, expose and recompute on every stage and rank.
//
// These are sums of whole numbers, so they need not wait for the ops to run: they are taken by shape of op
// and micro-batch (OpCounts), and once for neighbouring stages that do the same. Only pairs, each of which
// has a partner of its own, and what lanes recompute for each other are added op by op.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/clock.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/lane_ops.h"
#include "sim/step/op_counts.h"
#include "sim/step/op_time.h"
#include "sim/step/step_result.h"

namespace equipoise {

struct LaneAccounts : OpSums {
  std::vector<Picoseconds> compute;          // stage x rank
  std::vector<Picoseconds> attention;
  std::vector<Picoseconds> stage_recompute;  // by stage
  friend bool operator==(const LaneAccounts&, const LaneAccounts&) = default;
};

class LaneAccounting {
 public:
  explicit LaneAccounting(std::shared_ptr<const PartOrders> orders)
      : orders_(std::move(orders)), timer_(orders_) {}

  // Counts the ops by shape; the counts serve all lanes that run the same schedule.
  void count_ops(const LaneOps& ops, std::size_t costs);
  [[nodiscard]] bool has_pairs() const { return counts_.has_pairs(); }
  void begin_lane(std::size_t ranks);
  // Adds what the ops of one cost entry do on all stages.
  void add_cost(std::size_t entry, const MicroBatchCost& cost);
  // Writes the lane's sums to `accounts`, once all costs are added.
  void finish(const LaneOps& ops, std::span<const MicroBatchCost* const> costs, LaneAccounts& accounts);
  [[nodiscard]] OpTimer& timer() { return timer_; }

 private:
  // Sums over the ops of a stage, with compute and attention by rank.
  struct Sums : OpSums {
    std::vector<Picoseconds> compute, attention;
    void begin(std::size_t ranks);
    void add_to(LaneAccounts& accounts, int stage) const;
  };
  struct Equal;
  void add_work(const StageWork& work, const Equal& own);
  void add_backward(const StageWork& work, const Equal& own);
  void add_one_by_one(const LaneOps& ops, std::span<const MicroBatchCost* const> costs, int stage,
                      LaneAccounts& accounts);
  void add_pair(const PairWork& pair, Sums& sums);
  void add_again(const LaneOps& ops, std::span<const MicroBatchCost* const> costs, int stage,
                 std::size_t position, Sums& sums);

  std::shared_ptr<const PartOrders> orders_;
  OpTimer timer_;
  OpCounts counts_;            // of the schedule, by micro-batch or cost entry
  std::vector<Sums> counted_;  // by table of the counts
};

}  // namespace equipoise
