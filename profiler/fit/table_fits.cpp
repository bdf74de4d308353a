#include "profiler/fit/table_fits.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "policies/base/text.h"

namespace equipoise {
namespace {

// The rank of every sample's shape among the distinct ones.
std::vector<std::size_t> shape_ranks(const std::vector<std::vector<double>>& shapes) {
  std::vector<std::vector<double>> distinct = shapes;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<std::size_t> ranks;
  ranks.reserve(shapes.size());
  for (const std::vector<double>& shape : shapes)
    ranks.push_back(static_cast<std::size_t>(std::ranges::lower_bound(distinct, shape) - distinct.begin()));
  return ranks;
}

std::vector<double> fit_without(const FitProblem& problem, const std::vector<std::size_t>& folds,
                                std::size_t left_out) {
  std::vector<std::size_t> seen;
  for (std::size_t i = 0; i < folds.size(); ++i)
    if (folds[i] != left_out) seen.push_back(i);
  const auto residuals_at = [&](std::span<const double> parameters, std::span<double> out) {
    for (std::size_t i = 0; i < seen.size(); ++i) out[i] = problem.log_error(parameters, seen[i]);
  };
  return fit_parameters(problem.parameters, seen.size(), residuals_at, problem.options).values;
}

double beyond(double error, double uncertainty) {
  const double size = std::max(0.0, std::abs(error) - uncertainty);
  return error < 0 ? -size : size;
}

// Linear between order statistics, as most tools do.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

GroupFit fit_group(const FitProblem& problem) {
  const std::vector<std::size_t> ranks = shape_ranks(problem.shapes);
  const auto error = [&problem](std::span<const double> parameters, std::size_t i) {
    const double unsure = problem.uncertainty.empty() ? 0 : problem.uncertainty[i];
    return beyond(std::expm1(problem.log_error(parameters, i)), unsure);
  };
  GroupFit fit;
  std::vector<std::size_t> folds;
  const std::size_t shapes = ranks.empty() ? 0 : 1 + *std::max_element(ranks.begin(), ranks.end());
  const bool all = shapes < kFolds || !problem.set_aside;
  for (const std::size_t rank : ranks) folds.push_back(all ? 0 : (rank + rank / kFolds) % kFolds);
  fit.parameters = fit_without(problem, folds, kHeldOutFold);
  for (std::size_t i = 0; i < folds.size(); ++i) {
    if (folds[i] != kHeldOutFold) continue;
    fit.held_out.push_back(i);
    fit.held_out_errors.push_back(error(fit.parameters, i));
  }
  folds = ranks;
  for (std::size_t& fold : folds) fold %= kMostCrossed;
  fit.crossed_errors.resize(folds.size());
  const std::size_t last = folds.empty() ? 0 : *std::max_element(folds.begin(), folds.end());
  for (std::size_t fold = 0; fold <= last; ++fold) {
    const std::vector<double> parameters = fit_without(problem, folds, fold);
    for (std::size_t i = 0; i < folds.size(); ++i)
      if (folds[i] == fold) fit.crossed_errors[i] = error(parameters, i);
  }
  return fit;
}

ErrorSummary summarize(std::vector<double> errors) {
  ErrorSummary summary;
  summary.count = errors.size();
  std::sort(errors.begin(), errors.end());
  summary.bias = quantile(errors, 0.5);
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  summary.median = quantile(errors, 0.5);
  summary.p90 = quantile(errors, 0.9);
  return summary;
}

nlohmann::json to_json(const ErrorSummary& summary) {
  return {{"samples", summary.count},
          {"median", rounded(summary.median, 4)},
          {"p90", rounded(summary.p90, 4)},
          {"bias", rounded(summary.bias, 4)}};
}

// What every fitted table says of itself: sources, ranges, errors.

// "https://…/repository@commit:path/of/row.csv" -> "https://…/repository@commit": a table has hundreds of
// paths.
static std::string repository_of(const std::string& source) {
  const std::size_t at = source.find('@');
  const std::size_t colon = at == std::string::npos ? std::string::npos : source.find(':', at);
  return colon == std::string::npos ? source : source.substr(0, colon);
}

static nlohmann::json errors_json(const std::string& group, const std::vector<double>& errors) {
  nlohmann::json node = to_json(summarize(errors));
  node["group"] = group;
  return node;
}

static nlohmann::json provenance_json(Provenance kind, const std::vector<const Labels*>& labels) {
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

double significant(double value) {
  return std::strtod(formatted("%.6g", value).c_str(), nullptr);
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

void CoveredAttention::add(const AttentionSample& sample) {
  keys.add(static_cast<double>(sample.most_keys));
  queries.add(static_cast<double>(sample.least_queries));
  dims.add(sample.heads.head_dim);
  heads.add(sample.heads.query_heads);
}

nlohmann::json CoveredAttention::ranges() const {
  constexpr double kLongestKeys = 4.0 * 1024 * 1024;
  return {{"keys", range_json(1, keys.high, 1, kLongestKeys)},
          {"queries", range_json(queries.low, keys.high, 1, kLongestKeys)},
          {"head_dim", range_json(dims, 16, 256)},
          {"query_heads", range_json(heads, 1, 1024)}};
}

void CoveredProducts::add(const GemmSample& sample) {
  m.add(static_cast<double>(sample.m));
  n.add(static_cast<double>(sample.n));
  k.add(static_cast<double>(sample.k));
}

nlohmann::json CoveredProducts::ranges() const {
  constexpr double kLargest = 4.0 * 1024 * 1024;
  return {{"m", range_json(m, 1, kLargest)},
          {"n", range_json(n, 1, kLargest)},
          {"k", range_json(k, 1, kLargest)}};
}

void CoveredTransfers::add(double transferred, double over_nodes) {
  constexpr double kLargeMessage = 1024 * 1024;
  bytes.add(transferred);
  nodes.add(over_nodes);
  large.holds.push_back(transferred > kLargeMessage);
  small.holds.push_back(transferred <= kLargeMessage);
}

nlohmann::json CoveredTransfers::ranges(double least_nodes) const {
  constexpr double kMostBytes = 1e13;
  constexpr double kMostNodes = 65536;
  nlohmann::json ranges = {{"bytes", range_json(bytes, 0, kMostBytes)}};
  if (least_nodes > 0) ranges["nodes"] = range_json(nodes, least_nodes, kMostNodes);
  return ranges;
}

nlohmann::json elementwise_ranges(const Covered& bytes) {
  constexpr double kMostBytes = 1e15;
  return {{"bytes", range_json(bytes, 0, kMostBytes)}};
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
