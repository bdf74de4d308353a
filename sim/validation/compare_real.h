// A real run beside its simulation, op by op: both ran the same op program, so every op of one has its twin
// in the other.
#pragma once

#include <vector>

#include "sim/validation/pairs.h"
#include "sim/validation/real_run.h"
#include "sim/validation/two_timelines.h"

namespace equipoise {

// Runs with a larger share of stolen time are dropped and counted.
inline constexpr double kMostStolen = 0.05;

// Fills policies and ops. `ranks`: all of them, by number. A kernel takes what its rank took. A collective
// takes from its last member's arrival to the rank's end: waiting for others is no error of its price. A
// transfer takes from the sender's end, or from when the receiver came to it if that was later.
void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  Validation& validation);

// Leaves collectives and transfers out: what a replay does not measure.
void keep_kernels(Validation& validation);

// The first timed step of a row, measured and simulated, one track a rank.
void write_real_timeline(const std::string& path, const RealRow& row, const RealResult& result);

}  // namespace equipoise
