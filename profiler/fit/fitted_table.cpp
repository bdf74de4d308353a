#include "profiler/fit/fitted_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

using nlohmann::json;

// Shortens "https://.../repository@commit:path/of/row.csv" to "https://.../repository@commit", since a table
// would list hundreds of paths.
std::string repository_of(const std::string& source) {
  const std::size_t at = source.find('@');
  const std::size_t colon = at == std::string::npos ? std::string::npos : source.find(':', at);
  return colon == std::string::npos ? source : source.substr(0, colon);
}

ErrorSummary errors_of(const ErrorGroup& group, const std::vector<std::size_t>& samples,
                       const std::vector<double>& errors) {
  std::vector<double> own;
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (group.holds.empty() || group.holds[samples[i]]) own.push_back(errors[i]);
  return summarize(std::move(own));
}

json provenance_json(const FittedTable& table) {
  const bool measured = table.kind == Provenance::measured;
  json node = {{"kind", measured ? "measured" : "published"}, {"samples", table.samples}};
  if (measured)
    node["source"] = "this profile's own samples";
  else
    node["source"] = table.sources;
  if (!measured && !table.methods.empty()) node["method"] = table.methods;
  return node;
}

json errors_json(const GroupErrors& errors, const ErrorSummary GroupErrors::*summary) {
  json node = to_json(errors.*summary);
  node["group"] = errors.group;
  return node;
}

json ranges_json(const std::vector<TableRange>& ranges) {
  json node = json::object();
  for (const TableRange& range : ranges)
    node[range.dimension] = {{"samples", {range.samples.low, range.samples.high}},
                             {"allowed",
                              {std::fmin(range.allowed_low, range.samples.low),
                               std::fmax(range.allowed_high, range.samples.high)}}};
  return node;
}

}  // namespace

double significant(double value) {
  return std::strtod(formatted("%.6g", value).c_str(), nullptr);
}

std::vector<double> rounded_parameters(const GroupFit& fit) {
  std::vector<double> values = fit.parameters;
  for (double& value : values) value = significant(value);
  return values;
}

void CoveredAttention::add(const AttentionSample& sample) {
  keys.add(static_cast<double>(sample.most_keys));
  queries.add(static_cast<double>(sample.least_queries));
  dims.add(sample.heads.head_dim);
  heads.add(sample.heads.query_heads);
}

std::vector<TableRange> CoveredAttention::ranges() const {
  constexpr double kLongestKeys = 4.0 * 1024 * 1024;
  return {{"keys", {1, keys.high}, 1, kLongestKeys},
          {"queries", {queries.low, keys.high}, 1, kLongestKeys},
          {"head_dim", dims, 16, 256},
          {"query_heads", heads, 1, 1024}};
}

void CoveredProducts::add(const GemmSample& sample) {
  m.add(static_cast<double>(sample.m));
  n.add(static_cast<double>(sample.n));
  k.add(static_cast<double>(sample.k));
}

std::vector<TableRange> CoveredProducts::ranges() const {
  constexpr double kLargest = 4.0 * 1024 * 1024;
  return {{"m", m, 1, kLargest}, {"n", n, 1, kLargest}, {"k", k, 1, kLargest}};
}

void CoveredTransfers::add(double transferred, double over_nodes) {
  constexpr double kLargeMessage = 1024 * 1024;
  bytes.add(transferred);
  nodes.add(over_nodes);
  large.holds.push_back(transferred > kLargeMessage);
  small.holds.push_back(transferred <= kLargeMessage);
}

std::vector<TableRange> CoveredTransfers::ranges(double least_nodes) const {
  constexpr double kMostBytes = 1e13;
  constexpr double kMostNodes = 65536;
  std::vector<TableRange> ranges{{"bytes", bytes, 0, kMostBytes}};
  if (least_nodes > 0) ranges.push_back({"nodes", nodes, least_nodes, kMostNodes});
  return ranges;
}

std::vector<TableRange> elementwise_ranges(const Covered& bytes) {
  constexpr double kMostBytes = 1e15;
  return {{"bytes", bytes, 0, kMostBytes}};
}

FittedTable fitted_table(FittedForm form, const GroupFit& fit, const SampleTimes& times, Provenance kind) {
  FittedTable table;
  table.form = std::move(form.form);
  table.parameters = std::move(form.parameters);
  table.ranges = std::move(form.ranges);
  table.kind = kind;
  table.samples = times.labels.size();
  for (const Labels* one : times.labels) {
    if (const auto it = one->find("source"); it != one->end())
      table.sources.insert(repository_of(it->second));
    if (const auto it = one->find("method"); it != one->end()) table.methods.insert(it->second);
  }
  std::vector<std::size_t> all(fit.crossed_errors.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  for (const ErrorGroup& group : form.errors_of) {
    const ErrorSummary crossed = errors_of(group, all, fit.crossed_errors);
    if (crossed.count > 0)
      table.errors.push_back({group.name, errors_of(group, fit.held_out, fit.held_out_errors), crossed});
  }
  if (kind != Provenance::measured) return table;
  for (std::size_t i = 0; i < fit.held_out.size(); ++i) {
    const double measured = times.seconds[fit.held_out[i]];
    table.measured_and_predicted_seconds.push_back(
        {significant(measured), significant(measured * (1 + fit.held_out_errors[i]))});
  }
  return table;
}

json to_json(const ErrorSummary& summary) {
  return {{"samples", summary.count},
          {"median", rounded(summary.median, 4)},
          {"p90", rounded(summary.p90, 4)},
          {"bias", rounded(summary.bias, 4)}};
}

json to_json(const FittedTable& table) {
  json node = {{"form", table.form},
               {"parameters", std::visit([](const auto& fit) { return to_json(fit); }, table.parameters)},
               {"ranges", ranges_json(table.ranges)},
               {"provenance", provenance_json(table)},
               {"hold_out", json::array()},
               {"cross_validated", json::array()}};
  for (const GroupErrors& errors : table.errors) {
    node["hold_out"].push_back(errors_json(errors, &GroupErrors::held_out));
    node["cross_validated"].push_back(errors_json(errors, &GroupErrors::crossed));
  }
  if (table.kind == Provenance::measured) node["hold_out_pairs"] = table.measured_and_predicted_seconds;
  if (table.document_mask != DocumentMask::varlen)
    node["document_mask"] = kDocumentMaskNames[at(table.document_mask)];
  if (table.fitted_at.nvlink > 0) node["fitted_at_nvlink_GBps"] = table.fitted_at.nvlink;
  if (table.fitted_at.nic > 0) node["fitted_at_nic_GBps"] = table.fitted_at.nic;
  return node;
}

}  // namespace equipoise
