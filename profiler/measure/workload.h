// A point made runnable: its buffers on the device, several sets of them, and the call to time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/backend.h"
#include "profiler/measure/points.h"
#include "profiler/measure/ruler.h"

namespace equipoise::measure {

// Random, zero-free numbers that live on the device and are copied to wherever inputs are needed: making
// gigabytes of them on the host for every point would take longer than the measurement.
class RandomPool {
 public:
  RandomPool(kernels::Backend& backend, std::uint64_t seed);
  // A new device buffer of random elements of the backend's type.
  kernels::Buffer elements(std::int64_t count);
  kernels::Buffer floats(std::int64_t count);           // f32
  kernels::Buffer positive_floats(std::int64_t count);  // f32, all above zero

 private:
  kernels::Buffer filled(const kernels::Buffer& pool, std::size_t bytes);

  kernels::Backend& backend_;
  kernels::Buffer elements_;
  kernels::Buffer floats_;
  kernels::Buffer positive_;
  std::size_t turn_ = 0;  // copies start at different places of the pool
};

struct Workload {
  std::size_t sets = 1;
  std::function<void(std::size_t set)> call;
};

// `footprint` bytes of buffer sets are made, at least one set and at most 16 (64 of a GPU's footprint,
// 1024 of ops that only move memory).
Workload make_workload(kernels::Backend& backend, RandomPool& pool, const Point& point, double footprint);

// Times the workload's calls, which take its sets in turn.
TimeBatch time_batch_of(kernels::Backend& backend, const Workload& workload);

}  // namespace equipoise::measure
