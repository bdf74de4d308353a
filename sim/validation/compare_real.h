// A real run beside its simulation, op by op: both ran the same op program, so every op of one has its twin
// in the other.
#pragma once

#include <vector>

#include "sim/validation/in_step.h"
#include "sim/validation/pairs.h"
#include "sim/validation/real_run.h"
#include "sim/validation/two_timelines.h"

namespace equipoise {

// Runs with a larger share of stolen time are dropped and counted.
inline constexpr double kMostStolen = 0.05;

// Adds policies and ops. Waiting for others is no error of an op's price (step_ops.h). `times`: how long ops
// take inside a step, or null: as long as the profile says.
void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  const InStepTimes* times, Validation& validation);

// Leaves collectives and transfers out: what a replay does not measure.
void keep_kernels(Validation& validation);

// The first timed step of a row, measured and simulated, one track a rank.
void write_real_timeline(const std::string& path, const RealRow& row, const RealResult& result,
                         const InStepTimes* times);

}  // namespace equipoise
