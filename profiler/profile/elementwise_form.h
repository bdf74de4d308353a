// Elementwise kernels and copies: launch + bytes / achieved bandwidth.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace equipoise {

// In the order of enum Elementwise; also the keys of a profile's elementwise table.
inline constexpr std::array<std::string_view, 7> kElementwiseNames{
    "rms_norm", "residual_add", "rope", "swiglu", "cross_entropy", "copy", "optimizer"};

struct ElementwiseParameters {
  double launch_us = 0;
  double memory_GBps = 1;
};

inline double elementwise_seconds(const ElementwiseParameters& fit, double bytes) {
  return 1e-6 * fit.launch_us + bytes * 1e-9 / fit.memory_GBps;
}

ElementwiseParameters elementwise_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const ElementwiseParameters& fit);

}  // namespace equipoise
