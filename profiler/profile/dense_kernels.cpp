#include "profiler/profile/dense_kernels.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/form_parameters.h"
#include "profiler/profile/profile.h"
#include "traces/json_object.h"

namespace equipoise {

constexpr double kLargestTile = kGemmTiles[0].rows * kGemmTiles[0].columns;
constexpr double kPartialSumBytes = 8;  // fp32, written and read back
constexpr std::array<double, 3> kSplits{1, 2, 4};
constexpr double kRounding = 1e-12;  // relative

static double tiles_along(std::int64_t size, int tile) {
  return static_cast<double>((size + tile - 1) / tile);
}

// Avoids std::ceil, which is a library call on the baseline instruction set.
static double rounded_up(double x) {
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole < x ? whole + 1 : whole;
}

constexpr FormParameter<GemmParameters> kGemmParameters[] = {
    {"launch_us", &GemmParameters::launch_us},
    {"memory_GBps", &GemmParameters::memory_GBps, kPositive},
    {"wave_blend", &GemmParameters::wave_blend},
    {"tile_us", &GemmParameters::tile_us},
    {"power_loss", &GemmParameters::power_loss},
    {"power_half_gflop", &GemmParameters::power_half_gflop, kPositive},
    {"split_us", &GemmParameters::split_us},
    {"input_bytes", &GemmParameters::input_bytes, kPositive},
    {"group_us", &GemmParameters::group_us, kOptional},
    {"around_us", &GemmParameters::around_us, kOptional},
    {"around_us_per_MB", &GemmParameters::around_us_per_MB, kOptional},
};

static std::string name_of(const GemmTile& tile) {
  return concatenated(tile.rows, "x", tile.columns);
}

GemmForm::GemmForm(const GemmParameters& fit, double sms, double floor)
    : inverse_sms(1 / sms), us_per_byte(1e-3 / fit.memory_GBps), power_floor(floor), parameters(fit) {
  for (std::size_t t = 0; t < kGemmTiles.size(); ++t) {
    const double area = static_cast<double>(kGemmTiles[t].rows) * kGemmTiles[t].columns;
    us_per_k[t] = 2 * area * sms / (fit.tile_tflops[t] * 1e6);
    fixed_us[t] = fit.tile_us * (area / kLargestTile);
  }
}

double gemm_seconds(const GemmForm& form, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups,
                    double output_bytes) {
  const GemmParameters& fit = form.parameters;
  const auto products = static_cast<double>(groups);
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  const double gflop = 2e-9 * products * rows * columns * depth;
  const double power =
      std::max(form.power_floor, 1 + fit.power_loss * gflop / (gflop + fit.power_half_gflop));
  const double powered_depth = depth * power;
  const double split_us_each = kPartialSumBytes * products * rows * columns * form.us_per_byte;
  double best = 1e300;
  for (std::size_t t = 0; t < kGemmTiles.size(); ++t) {
    const GemmTile tile = kGemmTiles[t];
    const double upright = tiles_along(m, tile.rows) * tiles_along(n, tile.columns);
    const double lying = tiles_along(m, tile.columns) * tiles_along(n, tile.rows);
    const double tiles =
        products *
        std::min(upright, lying);  // of the two orientations, the one with fewer tiles is never slower
    const double whole_k_us = form.us_per_k[t] * powered_depth;
    for (const double splits : kSplits) {
      const double x = tiles * splits * form.inverse_sms;
      // More splits have more partial sums, and waves that are full at best.
      if (splits > 1 &&
          tiles * form.inverse_sms * whole_k_us + x * form.fixed_us[t] + splits * split_us_each >
              best * (1 + kRounding))
        break;
      const double waves = std::max(1.0, x + fit.wave_blend * (rounded_up(x) - x));
      double us = waves * (whole_k_us * (1 / splits) + form.fixed_us[t]);
      if (splits > 1) us += fit.split_us + splits * split_us_each;
      best = std::min(best, us);
    }
  }
  const double memory_us = products *
                           (fit.input_bytes * (rows + columns) * depth + output_bytes * rows * columns) *
                           form.us_per_byte;
  const double compute2 = best * best;
  const double memory2 = memory_us * memory_us;
  return 1e-6 * (fit.launch_us + products * fit.group_us +
                 std::sqrt(std::sqrt(compute2 * compute2 + memory2 * memory2)));
}

GemmParameters gemm_parameters(const nlohmann::json& table, const std::string& where) {
  GemmParameters fit = parameters_of(kGemmParameters, table, where);
  const nlohmann::json& rates = object_field(table["parameters"], "tile_tflops", where + ".parameters");
  for (std::size_t t = 0; t < kGemmTiles.size(); ++t)
    fit.tile_tflops[t] = positive_field(rates, name_of(kGemmTiles[t]), where + ".parameters.tile_tflops");
  return fit;
}

nlohmann::json to_json(const GemmParameters& fit) {
  nlohmann::json node = parameters_json(kGemmParameters, fit);
  for (std::size_t t = 0; t < kGemmTiles.size(); ++t)
    node["tile_tflops"][name_of(kGemmTiles[t])] = fit.tile_tflops[t];
  return node;
}

struct GemmModel::Fit {
  std::string profile;
  GemmForm form{GemmParameters{}, 1};
  bool cpu_core = false;  // true: `panels` holds the fit instead of `form`
  PanelGemmRates panels{};
  Validity m;
  Validity n;
  Validity k;

  void check(const char* dimension, double value, const Validity& range) const {
    if (!range.allowed.holds(value)) refuse_out_of_range(profile, "gemm", dimension, value, range.allowed);
  }
};

// The loss of clock under long full load is the table's own, but at most that of bf16. The latter was
// measured up to products of 200 TFLOP; other tables extrapolate it from smaller calls that also cast or
// sort.
static double full_load_power(const Profile& profile, const GemmParameters& fit, const std::string& where) {
  const nlohmann::json& bf16 = object_field(profile.table("gemm"), "bf16", where);
  return 1 + std::min(fit.power_loss, gemm_parameters(bf16, where + ".bf16").power_loss);
}

GemmModel::GemmModel(const Profile& profile, Precision precision, std::string_view kernel, Load load) {
  const auto read = [&] {
    auto fit = std::make_shared<Fit>();
    const std::string key = concatenated(name_of(precision), kernel.empty() ? "" : "-", kernel);
    const std::string where = profile.origin() + ": tables.gemm";
    if (kernel.empty() && precision == Precision::fp8 && !profile.table("gemm").contains(key))
      throw UserError(
          "precision: expected bf16 with profile ", profile.name(), ", found fp8: ",
          (profile.device().peak_fp8_tflops > 0 ? "it has no times of FP8 GEMMs"
                                                : "this GPU (" + profile.device().name + ") has no FP8"),
          " (", where, ".fp8)");
    if (!kernel.empty() && !profile.table("gemm").contains(key))
      throw UserError("framework.expert_kernel: expected a kernel of which profile ", profile.name(),
                      " has times in ", name_of(precision), ", found \"", kernel, "\" (", where, ".", key,
                      "); \"\" prices one GEMM an expert");
    const nlohmann::json& table = object_field(profile.table("gemm"), key, where);
    const std::string here = where + "." + key;
    fit->profile = profile.name();
    fit->cpu_core = has_form(table, kPackedPanels);
    if (fit->cpu_core) {
      fit->panels = panel_gemm_rates(table, here);
    } else {
      const GemmParameters fitted = gemm_parameters(table, here);
      fit->form = GemmForm(fitted, profile.device().sms,
                           load == Load::full ? full_load_power(profile, fitted, where) : 1);
    }
    fit->m = validity_of(table, "m", here);
    fit->n = validity_of(table, "n", here);
    fit->k = validity_of(table, "k", here);
    return fit;
  };
  fit_ = std::static_pointer_cast<const Fit>(profile.kept(
      concatenated("gemm ", name_of(precision), " ", kernel, " ", static_cast<int>(load)), read));
}

double GemmModel::seconds(std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use, GemmRole role,
                          std::int64_t groups, double output_bytes) const {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  fit_->check("m", rows, fit_->m);
  fit_->check("n", columns, fit_->n);
  fit_->check("k", depth, fit_->k);
  const bool beyond =
      !fit_->m.samples.holds(rows) || !fit_->n.samples.holds(columns) || !fit_->k.samples.holds(depth);
  return use.note(beyond, fit_->m.derived,
                  fit_->cpu_core ? static_cast<double>(groups) * gemm_seconds(fit_->panels[at(role)], m, n, k)
                                 : gemm_seconds(fit_->form, m, n, k, groups, output_bytes));
}

// --- Elementwise kernels and copies.

namespace {

struct Row {  // default: an optional op that the profile lacks, with an empty range of sizes
  ElementwiseParameters parameters;
  Validity bytes;
};

}  // namespace

ElementwiseParameters elementwise_parameters(const nlohmann::json& table, const std::string& where) {
  const std::string here = where + ".parameters";
  const nlohmann::json& node = object_field(table, "parameters", where);
  ElementwiseParameters fit;
  fit.launch_us = non_negative_field(node, "launch_us", here);
  fit.memory_GBps = positive_field(node, "memory_GBps", here);
  if (!node.contains("cache_MB")) return fit;
  fit.cache_MB = positive_field(node, "cache_MB", here);
  fit.cache_GBps = positive_field(node, "cache_GBps", here);
  if (node.contains("cache_power")) fit.cache_power = positive_field(node, "cache_power", here);
  return fit;
}

nlohmann::json to_json(const ElementwiseParameters& fit) {
  nlohmann::json node = {{"launch_us", fit.launch_us}, {"memory_GBps", fit.memory_GBps}};
  if (fit.cache_MB > 0) {
    node["cache_MB"] = fit.cache_MB;
    node["cache_GBps"] = fit.cache_GBps;
    if (fit.cache_power != ElementwiseParameters{}.cache_power) node["cache_power"] = fit.cache_power;
  }
  return node;
}

struct ElementwiseModel::Fit {
  std::string profile;
  std::array<std::array<Row, kernels::kElementwise.size()>, 2> rows;  // rows by pass
};

ElementwiseModel::ElementwiseModel(const Profile& profile, bool from_memory) {
  const auto read = [&] {
    auto fit = std::make_shared<Fit>();
    const std::string where = profile.origin() + ": tables.elementwise";
    const nlohmann::json& table = profile.table("elementwise");
    fit->profile = profile.name();
    for (std::size_t op = 0; op < kernels::kElementwise.size(); ++op) {
      const std::string name(kernels::kElementwise[op].name);
      if (!kernels::kElementwise[op].in_every_profile && !table.contains(name)) continue;
      for (const bool backward : {false, true}) {
        const std::string key = backward ? name + std::string(kernels::kBackwardSuffix) : name;
        if (backward && !table.contains(key)) {
          fit->rows[1][op] = fit->rows[0][op];
          continue;
        }
        const nlohmann::json& node = object_field(table, key, where);
        const std::string here = where + "." + key;
        fit->rows[backward ? 1 : 0][op] = {elementwise_parameters(node, here),
                                           validity_of(node, "bytes", here)};
      }
    }
    if (!from_memory) return fit;
    for (auto& pass : fit->rows)
      for (Row& row : pass) row.parameters.cache_MB = 0;
    return fit;
  };
  fit_ = std::static_pointer_cast<const Fit>(
      profile.kept(from_memory ? "elementwise from memory" : "elementwise", read));
}

bool ElementwiseModel::has(Elementwise op) const {
  return fit_->rows[0][at(op)].bytes.allowed.high > 0;
}

double ElementwiseModel::seconds(Elementwise op, double bytes, RangeUse& use, ElementwisePass pass) const {
  if (!(bytes > 0)) return 0;
  const Row& row = fit_->rows[at(pass)][at(op)];
  if (bytes > row.bytes.allowed.high)
    refuse_out_of_range(fit_->profile, std::string(name_of(op)), "bytes", bytes, row.bytes.allowed);
  return use.note(!row.bytes.samples.holds(bytes), row.bytes.derived,
                  elementwise_seconds(row.parameters, bytes));
}

}  // namespace equipoise
