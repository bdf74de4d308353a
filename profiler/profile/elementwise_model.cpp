#include <array>
#include <nlohmann/json.hpp>

#include "profiler/profile/cost_models.h"
#include "profiler/profile/elementwise_form.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "profiler/profile/validity.h"

namespace equipoise {
namespace {

struct Row {
  ElementwiseParameters parameters;
  Validity bytes;
};

}  // namespace

ElementwiseParameters elementwise_parameters(const nlohmann::json& table, const std::string& where) {
  const std::string here = where + ".parameters";
  const nlohmann::json& node = object_field(table, "parameters", where);
  return {non_negative_field(node, "launch_us", here), positive_field(node, "memory_GBps", here)};
}

nlohmann::json to_json(const ElementwiseParameters& fit) {
  return {{"launch_us", fit.launch_us}, {"memory_GBps", fit.memory_GBps}};
}

struct ElementwiseModel::Fit {
  std::string profile;
  std::array<Row, kElementwiseNames.size()> rows;
};

ElementwiseModel::ElementwiseModel(const Profile& profile) : fit_(std::make_unique<Fit>()) {
  const std::string where = profile.origin() + ": tables.elementwise";
  const nlohmann::json& table = profile.table("elementwise");
  fit_->profile = profile.name();
  for (std::size_t op = 0; op < kElementwiseNames.size(); ++op) {
    const std::string name(kElementwiseNames[op]);
    const nlohmann::json& node = object_field(table, name, where);
    const std::string here = where + "." + name;
    fit_->rows[op] = {elementwise_parameters(node, here), validity_of(node, "bytes", here)};
  }
}

ElementwiseModel::~ElementwiseModel() = default;
ElementwiseModel::ElementwiseModel(ElementwiseModel&&) noexcept = default;
ElementwiseModel& ElementwiseModel::operator=(ElementwiseModel&&) noexcept = default;

double ElementwiseModel::seconds(Elementwise op, double bytes, RangeUse& use) const {
  if (!(bytes > 0)) return 0;
  const Row& row = fit_->rows[static_cast<std::size_t>(op)];
  if (bytes > row.bytes.allowed.high)
    refuse_out_of_range(fit_->profile, std::string(kElementwiseNames[static_cast<std::size_t>(op)]), "bytes",
                        bytes, row.bytes.allowed);
  use.calls += 1;
  if (!row.bytes.samples.holds(bytes)) use.beyond_samples += 1;
  return elementwise_seconds(row.parameters, bytes);
}

}  // namespace equipoise
