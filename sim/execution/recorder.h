// When a rank ran what, op by op, in the terms of the op program.
#pragma once

#include <time.h>

#include <cstdint>
#include <vector>

#include "sim/step/op_program.h"

namespace equipoise::execution {

// The clock that all processes of a host share, in nanoseconds.
inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
inline std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct RecordedOp {
  std::int64_t begin_ns = 0, end_ns = 0;  // begin: the rank has come to it; others may not have
  std::int32_t lane = -1;                 // -1: the end of the step
  std::int32_t scheduled = -1;            // of the rank's stage
  std::int32_t run = -1;                  // of the scheduled op; -1: its input arrives
  std::int32_t repetition = 0;
  std::int32_t step = 0;  // of the block, or of the step's end
  std::int32_t name = 0;  // OpName
};

struct StepRecord {
  std::int64_t begin_ns = 0, end_ns = 0;  // of this rank
  std::int64_t cpu_ns = 0;                // of its thread meanwhile
  std::vector<RecordedOp> ops;
};

}  // namespace equipoise::execution
