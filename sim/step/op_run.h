// Runs an OpProgram: every op of every rank, without storing them.
//
// Order of events. Ops of a rank run in program order. A collective starts when the last of its members has
// arrived. A pair of steps (with_next) starts together and ends with the longer one. An op of the schedule
// (ScheduledOp) starts when its stage is free and its input has arrived. Without link contention these rules
// fix every time, whatever order the scheduled ops are visited in, so they are visited one by one, all ranks
// of a lane's stage together: the inner loop is a max-plus step over the clocks of a stage. Lanes wait for
// each other at the gradient buckets; only those of a lockstep group (expert parallelism, ZeRO-2 and 3) do so
// inside scheduled ops and are run together, op number by op number. Lanes and lockstep groups are spread
// over threads; the result has the same bits for any number.
//
// Cost: O(tasks), about a nanosecond each; memory: two times per scheduled op and rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/clock.h"
#include "policies/base/random.h"
#include "sim/step/op_program.h"

namespace equipoise {

// Seeded noise on durations: a function of (seed, key) alone, so that it is the same on any thread count, any
// order of execution and any compiler. No transcendental function: the normal law is approximated by the sum
// of four 16-bit uniform parts of one SplitMix64 output (Irwin-Hall; mean 2, variance 1/3, within 3.5 sigma).

struct Jitter {
  double sigma = 0;  // relative standard deviation; 0: none
  std::uint64_t seed = 0;

  // Mean 0, variance 1.
  [[nodiscard]] double standard_normal(std::uint64_t key) const {
    std::uint64_t bits = SplitMix64(seed ^ (key * 0xd1342543de82ef95ULL)).next();
    std::uint32_t sum = 0;
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<std::uint32_t>(bits & 0xffffU);
    constexpr double kSqrt3 = 1.7320508075688772;
    return (static_cast<double>(sum) / 65536.0 - 2.0 + 2.0 / 65536.0) * kSqrt3;
  }
  // The factor is 1 + sigma z, never negative.
  [[nodiscard]] double factor(std::uint64_t key) const {
    const double f = 1.0 + sigma * standard_normal(key);
    return f > 0 ? f : 0;
  }
};

// Rounds to the nearest picosecond.
inline Picoseconds scaled(Picoseconds duration, double factor) {
  return Picoseconds{static_cast<std::int64_t>(static_cast<double>(duration) * factor + 0.5)};
}

struct OpOptions {
  // By GPU slot (stage-major: (stage * replicas + replica) * tensor + TP coordinate, replicas = data x
  // context ranks of a stage); 1 = nominal, 0.5 = half as fast. Empty: all nominal. Slows compute, not
  // communication.
  std::span<const double> speed;
  Jitter jitter;  // on every op and collective
  int threads = 1;
};

// When ops ended whose end the network decided because flows shared links (contended_run.h). Every other op's
// time follows from these.
struct RecordedTimes {
  struct Stage {
    // [first + collective * groups + group]: collectives inside the lane, in program order;
    // interpreter::recorded_groups says which those are.
    std::vector<Picoseconds> collective_end;
    std::vector<std::size_t> first;      // by scheduled op: its first entry in collective_end
    bool tensor = false;                 // includes collectives of folded TP ranks
    std::vector<Picoseconds> input_end;  // [scheduled op * ranks + rank]: when its transfer arrives
  };
  std::vector<std::vector<Stage>> lanes;            // [lane][stage]
  std::vector<std::vector<Picoseconds>> steps_end;  // [stage * tensor + TP coordinate][step of the end]
};

// Keeps the latest arrival and who that was. At a tie the lowest lane and rank count as last.
inline void note_arrival(Picoseconds when, std::int32_t lane, std::int32_t rank, Picoseconds& last,
                         std::int32_t& last_lane, std::int32_t& last_rank) {
  if (last_lane >= 0 &&
      (when < last || (when == last && std::pair(lane, rank) > std::pair(last_lane, last_rank))))
    return;
  last = when;
  last_lane = lane;
  last_rank = rank;
}

// Times of a scheduled op on every rank of its stage, with rank = CP rank * TP ranks + TP rank.
struct OpResult {
  Picoseconds makespan{};
  // When the last scheduled op ends, before the optimizer.
  Picoseconds pipeline_end{};
  struct Lane {
    std::vector<std::vector<Picoseconds>> start;  // [stage][scheduled op * ranks + rank]
    std::vector<std::vector<Picoseconds>> end;
    std::vector<std::vector<Picoseconds>> compute;  // [stage][rank]: busy time of the compute stream
  };
  std::vector<Lane> lanes;
  struct Bucket {
    Picoseconds filled = 0;  // by the last rank:
    std::int32_t last_lane = -1;
    std::int32_t last_rank = -1;  // in its lane; at a tie the lowest lane and rank
    Picoseconds start = 0;
    Picoseconds end = 0;
    void fill(Picoseconds when, std::size_t lane, std::size_t rank) {
      note_arrival(when, static_cast<std::int32_t>(lane), static_cast<std::int32_t>(rank), filled, last_lane,
                   last_rank);
    }
  };
  std::vector<std::vector<Bucket>> buckets;  // [stage * tensor + TP coordinate][bucket]
  // [stage * tensor + TP coordinate]: when buckets and backward are done and the end's steps begin.
  std::vector<Picoseconds> end_begins;
  // A collective over several lanes. `lane` and `rank` are the last member's, which came at `arrived` (at a
  // tie the lowest). A background op may start later, when the one before it has ended.
  struct Synchronization {
    Picoseconds arrived = 0, start = 0, end = 0;
    std::int32_t lane = -1;
    std::int32_t rank = -1;
    void arrive(Picoseconds when, std::size_t of_lane, std::size_t of_rank) {
      note_arrival(when, static_cast<std::int32_t>(of_lane), static_cast<std::int32_t>(of_rank), arrived,
                   lane, rank);
    }
  };
  struct Lockstep {
    int groups = 1;  // expert groups x TP ranks
    // [stage][scheduled op][number of the op in the scheduled op * groups + expert group * TP ranks + TP
    // coordinate]
    std::vector<std::vector<std::vector<Synchronization>>> scheduled_ops;
    // [stage][scheduled op * TP ranks + TP coordinate]: when the last background op of earlier scheduled ops
    // ends.
    std::vector<std::vector<Picoseconds>> network;
  };
  std::vector<Lockstep> lockstep_groups;
  std::int64_t tasks = 0;
  std::shared_ptr<const RecordedTimes> recorded;  // null without contention
};

// One op of one rank in a scheduled op: op number `step` of the block that run number `run` repeats.
struct OpEvent {
  std::uint32_t run = 0, repetition = 0, step = 0;
  int rank = 0;                    // in its lane
  Picoseconds arrived = 0;         // when this rank was ready
  Picoseconds start = 0, end = 0;  // `start` is later than `arrived` if the rank waited for others
  int last_rank = 0;               // the last to arrive at a collective, else the rank itself
  int last_lane = -1;              // and its lane; -1: this one
  int synchronization = -1;        // of collectives over several lanes: index in OpResult::Lockstep
};

// Receives every op of the scheduled ops it asks for; see run_scheduled_op.
class OpSink {
 public:
  OpSink() = default;
  OpSink(const OpSink&) = default;
  OpSink& operator=(const OpSink&) = default;
  virtual ~OpSink() = default;
  virtual void on_op(const OpEvent& event) = 0;
  // Called after all ops of one repetition of a block, which may have none.
  virtual void on_repetition(std::uint32_t /*run*/, std::uint32_t /*repetition*/) {}
};

// Throws EngineError for a broken program (check_program), a stall, and a time beyond the clock. `earlier`: a
// result that nobody needs any more, whose memory serves again.
OpResult run(const OpProgram& program, const OpOptions& options = {}, OpResult earlier = {});

// Runs one scheduled op again from its recorded start and reports every op of every rank to `sink`. Timelines
// and critical paths need the ops of few scheduled ops. With RecordedTimes the ops have those times.
void replay_scheduled_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                         int stage, int scheduled, OpSink& sink);

}  // namespace equipoise
