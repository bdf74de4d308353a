// The time of a matrix product as a function of tiles, waves, splits of k, bytes and power.
//
// The library picks one of a few tile shapes, and splits k over several tiles where m * n alone would leave
// SMs idle. For each candidate
//   waves = x + blend * (ceil(x) - x), x = tiles * splits / SMs, at least 1
//   time  = waves * (2 * tile_m * tile_n * (k / splits) / rate per SM * power + tile_us * area)
//           + (if split) split_us + the fp32 partial sums written and read back
// and the fastest candidate counts, although the library's real choice is a heuristic that is sometimes
// wrong. blend = 1 is rigid wave quantisation and 0 none; kernels that balance the last wave lie between.
// `power` is the loss of clock under long full load: 1 + loss * w / (w + half), w = the product's work. The
// result is joined to the time of its bytes (each matrix once) by a 4-norm: near the ridge both limits
// matter. Cost: O(1), about 20 candidates, no allocation.
//
// A grouped product is one launch of several products of one shape (the experts of a mixture): tiles do not
// span groups, all tiles share the waves, every group's matrices are moved once, and each group takes
// `group_us` in addition.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace equipoise {

struct GemmTile {
  int rows;
  int columns;
};
inline constexpr std::array<GemmTile, 5> kGemmTiles{{{256, 128}, {128, 128}, {128, 64}, {64, 64}, {64, 16}}};

struct GemmParameters {
  double launch_us = 0;
  double memory_GBps = 1;
  double wave_blend = 0;
  std::array<double, kGemmTiles.size()>
      tile_tflops{};   // of the whole GPU, with all SMs at work on such tiles
  double tile_us = 0;  // prologue and epilogue of the largest tile; other tiles take their share by area
  double power_loss = 0;
  double power_half_gflop = 1;
  double split_us = 0;
  double input_bytes = 2;  // per element of A and B; C is bf16
  double group_us = 0;     // per product in addition to its tiles: its pointers, its last tile
  // Work around the products in the measured calls (casts, sorting rows by expert and back), once per call
  // and per byte. `predict` includes it; simulations have separate ops for it.
  double around_us = 0, around_us_per_MB = 0;
};

// The form for hot loops: every quotient that does not depend on the shape is computed once.
struct GemmForm {
  GemmForm(const GemmParameters& fit, double sms, double floor = 1);

  double inverse_sms;
  double us_per_byte;
  std::array<double, kGemmTiles.size()> us_per_k{};  // of one tile on one SM
  std::array<double, kGemmTiles.size()> fixed_us{};  // prologue and epilogue of one tile
  double power_floor;  // the loss of clock that earlier work causes, however small this product is
  GemmParameters parameters;
};

inline constexpr double kGemmOutputBytes = 2;  // per element of C that is written and not accumulated

double gemm_seconds(const GemmForm& form, std::int64_t m, std::int64_t n, std::int64_t k,
                    std::int64_t groups = 1, double output_bytes = kGemmOutputBytes);
inline double gemm_seconds(const GemmParameters& fit, double sms, std::int64_t m, std::int64_t n,
                           std::int64_t k) {
  return gemm_seconds(GemmForm(fit, sms), m, n, k);
}

GemmParameters gemm_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const GemmParameters& fit);

// --- Elementwise kernels and copies: launch + bytes / achieved bandwidth.
//
// Tensors that fit in the last cache are still there from the op that wrote them and move at the cache's
// rate. A smaller share of larger tensors does: 1 / (1 + r^power), where r = bytes / cache_MB. Then
//   time = launch + bytes * (share / cache rate + (1 - share) / memory rate)
// A table without `cache_MB` has only memory. The power is 2 for published tables of many sizes and machines.
// This program's measurements take buffers of a known footprint in turn, so there the step is sharper and the
// power is 4. That lowers the 90th percentile of a CPU's ten ops from 17 to 12 % and the median from 3.3 to
// 3.2 %.

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

ElementwiseParameters elementwise_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const ElementwiseParameters& fit);

}  // namespace equipoise
