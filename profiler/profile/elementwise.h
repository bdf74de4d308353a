// Elementwise kernels and copies: launch + bytes / achieved bandwidth.
//
// Tensors that fit in the last cache were left there by whoever wrote them, and move at the cache's rate; of
// larger ones a share does that grows smaller. With r = bytes / cache_MB that share is 1 / (1 + r^power), and
//   time = launch + bytes * (share / cache rate + (1 - share) / memory rate)
// A table without `cache_MB` has memory only. The power is 2 where tables of many sizes and machines were
// published; where calls take buffers of a known footprint in turn, as in our own measurements, the step is
// sharper: 4 (it takes the 90th percentile of a CPU's ten ops from 17 to 12 %, the median from 3.3 to 3.2).
#pragma once

#include <cmath>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace equipoise {

struct ElementwiseParameters {
  double launch_us = 0;
  double memory_GBps = 1;
  double cache_MB = 0;  // 0: no cache
  double cache_GBps = 1;
  double cache_power = 2;
};

inline double elementwise_seconds(const ElementwiseParameters& fit, double bytes) {
  double ns = bytes / fit.memory_GBps;
  if (fit.cache_MB > 0) {
    const double ratio = bytes * 1e-6 / fit.cache_MB;
    const double beyond = fit.cache_power == 2 ? ratio * ratio : std::pow(ratio, fit.cache_power);
    ns += bytes * (1 / fit.cache_GBps - 1 / fit.memory_GBps) / (1 + beyond);
  }
  return 1e-6 * fit.launch_us + 1e-9 * ns;
}

class Profile;
// Seconds of a byte that no op of the profile's table and no size can beat: the fastest of memory and cache.
// `from_memory` as ElementwiseModel has it.
double least_elementwise_seconds_per_byte(const Profile& profile, bool from_memory);

ElementwiseParameters elementwise_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const ElementwiseParameters& fit);

}  // namespace equipoise
