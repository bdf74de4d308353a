// What every fitted table says of itself: sources, ranges, errors.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "profiler/fit/table_fits.h"

namespace equipoise {
namespace {

// "https://…/repository@commit:path/of/row.csv" -> "https://…/repository@commit": a table has hundreds of
// paths.
std::string repository_of(const std::string& source) {
  const std::size_t at = source.find('@');
  const std::size_t colon = at == std::string::npos ? std::string::npos : source.find(':', at);
  return colon == std::string::npos ? source : source.substr(0, colon);
}

nlohmann::json errors_json(const std::string& group, const std::vector<double>& errors) {
  nlohmann::json node = to_json(summarize(errors));
  node["group"] = group;
  return node;
}

nlohmann::json provenance_json(Provenance kind, const std::vector<const Labels*>& labels) {
  std::set<std::string> sources;
  std::set<std::string> methods;
  for (const Labels* one : labels) {
    if (const auto it = one->find("source"); it != one->end()) sources.insert(repository_of(it->second));
    if (const auto it = one->find("method"); it != one->end()) methods.insert(it->second);
  }
  nlohmann::json node = {{"kind", kind == Provenance::measured ? "measured" : "published"},
                         {"samples", labels.size()}};
  if (kind == Provenance::measured) {
    node["source"] = "this profile's own samples";
    return node;
  }
  node["source"] = sources;
  if (!methods.empty()) node["method"] = methods;
  return node;
}

}  // namespace

double significant(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::strtod(text, nullptr);
}

std::vector<double> kept(const GroupFit& fit) {
  std::vector<double> values = fit.parameters;
  for (double& value : values) value = significant(value);
  return values;
}

nlohmann::json range_json(double low, double high, double allowed_low, double allowed_high) {
  return {{"samples", {low, high}},
          {"allowed", {std::fmin(allowed_low, low), std::fmax(allowed_high, high)}}};
}

nlohmann::json table_json(FittedForm fitted, const GroupFit& fit, const SampleTimes& times, Provenance kind) {
  nlohmann::json table = {{"form", fitted.form},
                          {"parameters", std::move(fitted.parameters)},
                          {"ranges", std::move(fitted.ranges)},
                          {"provenance", provenance_json(kind, times.labels)}};
  table["hold_out"] = nlohmann::json::array();
  table["cross_validated"] = nlohmann::json::array();
  for (const ErrorGroup& group : fitted.groups) {
    const auto holds = [&](std::size_t i) { return group.holds.empty() || group.holds[i]; };
    std::vector<double> held_out;
    std::vector<double> crossed;
    for (std::size_t i = 0; i < fit.held_out.size(); ++i)
      if (holds(fit.held_out[i])) held_out.push_back(fit.held_out_errors[i]);
    for (std::size_t i = 0; i < fit.crossed_errors.size(); ++i)
      if (holds(i)) crossed.push_back(fit.crossed_errors[i]);
    if (crossed.empty()) continue;
    table["hold_out"].push_back(errors_json(group.name, held_out));
    table["cross_validated"].push_back(errors_json(group.name, crossed));
  }
  if (kind != Provenance::measured) return table;
  nlohmann::json pairs = nlohmann::json::array();
  for (std::size_t i = 0; i < fit.held_out.size(); ++i) {
    const double measured = times.seconds[fit.held_out[i]];
    pairs.push_back({significant(measured), significant(measured * (1 + fit.held_out_errors[i]))});
  }
  table["hold_out_pairs"] = pairs;  // [measured, predicted] seconds
  return table;
}

}  // namespace equipoise
