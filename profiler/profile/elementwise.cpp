#include "profiler/profile/elementwise.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

struct Row {  // of a kind that the profile may do without and does: no size is in its range
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

double least_elementwise_seconds_per_byte(const Profile& profile, bool from_memory) {
  const std::string where = profile.origin() + ": tables.elementwise";
  double fastest_GBps = 0;
  for (const auto& [name, table] : profile.table("elementwise").items()) {
    if (!table.is_object() || !table.contains("parameters")) continue;
    const ElementwiseParameters fit = elementwise_parameters(table, where + "." + name);
    fastest_GBps = std::max(fastest_GBps, fit.memory_GBps);
    if (fit.cache_MB > 0 && !from_memory) fastest_GBps = std::max(fastest_GBps, fit.cache_GBps);
  }
  return fastest_GBps > 0 ? 1e-9 / fastest_GBps : 0;
}

struct ElementwiseModel::Fit {
  std::string profile;
  std::array<std::array<Row, kernels::kElementwise.size()>, 2> rows;  // by pass
};

ElementwiseModel::ElementwiseModel(const Profile& profile, bool from_memory) : fit_(std::make_unique<Fit>()) {
  const std::string where = profile.origin() + ": tables.elementwise";
  const nlohmann::json& table = profile.table("elementwise");
  fit_->profile = profile.name();
  for (std::size_t op = 0; op < kernels::kElementwise.size(); ++op) {
    const std::string name(kernels::kElementwise[op].name);
    if (!kernels::kElementwise[op].in_every_profile && !table.contains(name)) continue;
    for (const bool backward : {false, true}) {
      const std::string key = backward ? name + std::string(kernels::kBackwardSuffix) : name;
      if (backward && !table.contains(key)) {
        fit_->rows[1][op] = fit_->rows[0][op];
        continue;
      }
      const nlohmann::json& node = object_field(table, key, where);
      const std::string here = where + "." + key;
      fit_->rows[backward ? 1 : 0][op] = {elementwise_parameters(node, here),
                                          validity_of(node, "bytes", here)};
    }
  }
  if (!from_memory) return;
  for (auto& pass : fit_->rows)
    for (Row& row : pass) row.parameters.cache_MB = 0;
}

ElementwiseModel::~ElementwiseModel() = default;
ElementwiseModel::ElementwiseModel(ElementwiseModel&&) noexcept = default;
ElementwiseModel& ElementwiseModel::operator=(ElementwiseModel&&) noexcept = default;

bool ElementwiseModel::has(Elementwise op) const {
  return fit_->rows[0][at(op)].bytes.allowed.high > 0;
}

double ElementwiseModel::seconds(Elementwise op, double bytes, RangeUse& use, ElementwisePass pass) const {
  if (!(bytes > 0)) return 0;
  const Row& row = fit_->rows[at(pass)][at(op)];
  if (bytes > row.bytes.allowed.high)
    refuse_out_of_range(fit_->profile, std::string(name_of(op)), "bytes", bytes, row.bytes.allowed);
  use.note(!row.bytes.samples.holds(bytes), row.bytes.derived);
  return elementwise_seconds(row.parameters, bytes);
}

}  // namespace equipoise
