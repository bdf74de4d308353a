#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/gemm_form.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "profiler/profile/validity.h"

namespace equipoise {

struct GemmModel::Fit {
  std::string profile;
  GemmForm form{GemmParameters{}, 1};
  bool cpu_core = false;  // then `panels` counts, not `form`
  PanelGemmRates panels{};
  Validity m;
  Validity n;
  Validity k;

  void check(const char* dimension, double value, const Validity& range) const {
    if (!range.allowed.holds(value)) refuse_out_of_range(profile, "gemm", dimension, value, range.allowed);
  }
};

GemmModel::GemmModel(const Profile& profile, Precision precision) : fit_(std::make_unique<Fit>()) {
  const std::string key(name_of(precision));
  const std::string where = profile.origin() + ": tables.gemm";
  const nlohmann::json& table = object_field(profile.table("gemm"), key, where);
  const std::string here = where + "." + key;
  fit_->profile = profile.name();
  fit_->cpu_core = has_form(table, kPackedPanels);
  if (fit_->cpu_core) {
    fit_->panels = panel_gemm_rates(table, here);
  } else {
    fit_->form = GemmForm(gemm_parameters(table, here), profile.device().sms);
  }
  fit_->m = validity_of(table, "m", here);
  fit_->n = validity_of(table, "n", here);
  fit_->k = validity_of(table, "k", here);
}

GemmModel::~GemmModel() = default;
GemmModel::GemmModel(GemmModel&&) noexcept = default;
GemmModel& GemmModel::operator=(GemmModel&&) noexcept = default;

double GemmModel::seconds(std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use, GemmRole role,
                          std::int64_t groups, double output_bytes) const {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  fit_->check("m", rows, fit_->m);
  fit_->check("n", columns, fit_->n);
  fit_->check("k", depth, fit_->k);
  use.calls += 1;
  if (!fit_->m.samples.holds(rows) || !fit_->n.samples.holds(columns) || !fit_->k.samples.holds(depth))
    use.beyond_samples += 1;
  use.derived += fit_->m.derived ? 1 : 0;
  if (fit_->cpu_core) return static_cast<double>(groups) * gemm_seconds(fit_->panels[at(role)], m, n, k);
  return gemm_seconds(fit_->form, m, n, k, groups, output_bytes);
}

// Power, partly filled waves, prologues, split sums and bytes only add to the products of the fastest tile.
double GemmModel::least_seconds_per_flop() const {
  if (fit_->cpu_core) return 0;
  const auto& rates = fit_->form.parameters.tile_tflops;
  return 1e-12 / *std::max_element(rates.begin(), rates.end());
}

}  // namespace equipoise
