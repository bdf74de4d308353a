#include "profiler/fit/mend_table.h"

#include <cmath>

#include "policies/base/index.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

// How far a table's form is off on a machine that it was made for, about: what a sample is trusted to beside
// the prior. A choice, tuned to nothing; what it gives on published fabrics stands in profiler/README.md.
constexpr double kSampleTrust = 0.08;
constexpr double kRobust = 0.15;

std::string pointer_of(const MovedParameter& moved) {
  return std::string("/parameters/").append(moved.path);
}

// Of a table whose form has them all; what it has not (a table without a cache) cannot move.
std::vector<MovedParameter> present(const nlohmann::json& base, const MovedForm& form) {
  std::vector<MovedParameter> found;
  for (const MovedParameter& moved : form.parameters)
    if (base.contains(nlohmann::json::json_pointer(pointer_of(moved)))) found.push_back(moved);
  return found;
}

nlohmann::json moved(const nlohmann::json& base, const std::vector<MovedParameter>& parameters,
                     std::size_t shared, std::span<const double> factors) {
  nlohmann::json table = base;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    nlohmann::json& value = table[nlohmann::json::json_pointer(pointer_of(parameters[i]))];
    double factor = factors[shared + i];
    if (parameters[i].shared >= 0) factor *= factors[at(parameters[i].shared)];
    value = value.get<double>() * factor;
  }
  return table;
}

}  // namespace

nlohmann::json mended_table(const nlohmann::json& base, const MovedForm& form, const TableSamples& samples,
                            const std::function<Predictor(const nlohmann::json& table)>& by_table) {
  const std::vector<MovedParameter> parameters = present(base, form);
  FitProblem problem;
  problem.set_aside = false;
  problem.options.prior_weight = kSampleTrust;
  problem.options.robust_scale = kRobust;
  for (const SharedFactor& shared : form.shared)
    problem.parameters.push_back({std::string(shared.name), 1, shared.trust});
  for (const MovedParameter& one : parameters)
    problem.parameters.push_back({std::string(one.path), 1, one.trust});
  problem.shapes = samples.shapes;
  const std::size_t shared = form.shared.size();
  // The search asks for all samples at one point before it goes to the next.
  std::vector<double> at;
  Predictor predict;
  problem.log_error = [&](std::span<const double> factors, std::size_t i) {
    if (at.empty() || !std::equal(at.begin(), at.end(), factors.begin(), factors.end())) {
      at.assign(factors.begin(), factors.end());
      predict = by_table(moved(base, parameters, shared, factors));
    }
    return std::log(predict(i) / samples.times.seconds[i]);
  };
  const Predictor by_base = by_table(base);
  std::vector<double> errors;
  for (std::size_t i = 0; i < samples.shapes.size(); ++i)
    errors.push_back(by_base(i) / samples.times.seconds[i] - 1);
  const GroupFit fit = fit_group(problem);
  nlohmann::json found = moved(base, parameters, shared, fit.parameters)["parameters"];
  for (const MovedParameter& one : parameters) {
    nlohmann::json& value = found[nlohmann::json::json_pointer(std::string("/").append(one.path))];
    value = significant(value.get<double>());
  }
  nlohmann::json table =
      table_json({base.value("form", std::string()), std::move(found), samples.ranges, samples.groups}, fit,
                 samples.times, Provenance::measured);
  if (!base.contains("form")) table.erase("form");
  for (const char* key : {"hold_out", "hold_out_pairs"}) table.erase(key);
  for (const char* key : {"document_mask", "all_to_all"})
    if (base.contains(key)) table[key] = base[key];
  table["base_error"] = to_json(summarize(std::move(errors)));
  return table;
}

}  // namespace equipoise
