// Makes a point runnable: several sets of its buffers on the device, and the call to time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/backend.h"
#include "profiler/measure/points.h"
#include "profiler/measure/ruler.h"

namespace equipoise::measure {

// Random numbers without zeros that stay on the device and are copied into inputs. Making gigabytes of them
// on the host for every point would take longer than the measurement.
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
  std::size_t turn_ = 0;  // makes copies start at different places of the pool
};

struct Workload {
  std::size_t sets = 1;
  std::function<void(std::size_t set)> call;
};

// Makes `footprint` bytes of buffer sets: at least one set and at most 16, for a GPU 64, for ops that only
// move memory 1024.
Workload make_workload(kernels::Backend& backend, RandomPool& pool, const Point& point, double footprint);

// Times the workload's calls, which take its sets in turn.
TimeBatch time_batch_of(kernels::Backend& backend, const Workload& workload);

}  // namespace equipoise::measure
