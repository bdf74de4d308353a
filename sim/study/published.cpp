#include "sim/study/published.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/number_text.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/study/json_object.h"
#include "sim/study/run_study.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr double kLargest = 1e30;

Published read_source(const json& node, const std::string& where) {
  JsonObject object(node, where);
  Published published;
  published.source = object.text("source", "");
  if (published.source.empty()) object.fail("source", "where the figures stand, e.g. \"arXiv ..., Table 2\"");
  published.against = object.text("against", "");
  constexpr std::string_view kStatus[] = {"ok", "oom"};
  if (object.has("status"))
    published.out_of_memory = object.choice("status", 0, kStatus) == 1;
  else
    object.find("status");
  if (const json* metrics = object.find("metrics")) {
    JsonObject figures(*metrics, where + ".metrics");
    std::vector<std::string> keys = {"bucket_size"};
    const json known = metrics_json(Metrics{});
    for (const auto& [key, value] : known.items())
      if (!value.is_object()) keys.push_back(key);
    for (const std::string& key : keys) {
      const double value = figures.number(key, 0, -kLargest, kLargest);
      if (figures.has(key)) published.figures.push_back({key, value});
    }
    figures.finish();
  }
  object.finish();
  if (published.figures.empty() && !published.out_of_memory)
    throw UserError(where + ": expected metrics or status, found neither");
  return published;
}

const PolicyResult* row_of(const StudyResult& result, const std::string& label) {
  for (const PolicyResult& p : result.policies)
    if (p.run.label == label) return &p;
  return nullptr;
}

std::optional<double> seconds_per_token(const Metrics& m) {
  if (m.seconds <= 0 || m.tokens <= 0) return {};
  return m.seconds / m.tokens;
}

std::optional<double> simulated_value(const PolicyResult& row, const PolicyResult& against,
                                      const std::string& metric) {
  if (metric == "bucket_size") {
    if (row.run.pack.bucket_size < 1) return {};
    return static_cast<double>(row.run.pack.bucket_size);
  }
  if (metric == "speedup") {
    const std::optional<double> base = seconds_per_token(against.metrics);
    const std::optional<double> own = seconds_per_token(row.metrics);
    if (!base || !own) return {};
    return *base / *own;
  }
  const json metrics = metrics_json(row.metrics);
  const auto it = metrics.find(metric);
  if (it == metrics.end() || !it->is_number()) return {};
  return it->get<double>();
}

// Four significant digits, and no more than needed for large ones.
std::string figure(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return grouped(static_cast<std::int64_t>(std::llround(value)));
  return fixed(value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

std::string cell(const PublishedRow& row, const std::optional<double>& value) {
  if (!value) return "-";
  return row.metric == "peak_memory_bytes" ? fixed(*value / kGiB, 1) : figure(*value);
}

std::string percent(const std::optional<double>& difference) {
  if (!difference) return "-";
  std::string text = *difference > 0 ? "+" : "";
  return text.append(fixed(*difference, 1));
}

std::string metric_cell(const PublishedRow& row) {
  if (row.metric == "peak_memory_bytes") return "peak memory GiB";
  if (!row.against.empty()) return row.metric + " over " + row.against;
  return row.metric;
}

}  // namespace

std::optional<double> PublishedRow::difference_percent() const {
  if (!simulated || !published || *published == 0) return {};
  return 100 * (*simulated / *published - 1);
}

std::vector<Published> read_published(const json& node, const std::string& where) {
  if (!node.is_array()) return {read_source(node, where)};
  std::vector<Published> list;
  for (std::size_t i = 0; i < node.size(); ++i)
    list.push_back(read_source(node[i], where + "[" + std::to_string(i) + "]"));
  return list;
}

std::vector<PublishedRow> beside_published(const StudyResult& result) {
  std::vector<PublishedRow> rows;
  for (const PolicyResult& p : result.policies)
    for (const Published& published : p.run.published) {
      if (published.out_of_memory) {
        PublishedRow row;
        row.label = p.run.label;
        row.metric = "status";
        row.simulated_status = name_of(p.status);
        row.published_fits = !*published.out_of_memory;
        row.source = published.source;
        rows.push_back(std::move(row));
      }
      const PolicyResult* against = row_of(result, published.against);
      const PolicyResult& base = against != nullptr ? *against : result.policies[result.baseline];
      for (const Published::Figure& f : published.figures) {
        PublishedRow row;
        row.label = p.run.label;
        row.metric = f.metric;
        row.simulated = simulated_value(p, base, f.metric);
        row.published = f.value;
        if (f.metric == "speedup") row.against = base.run.label;
        row.source = published.source;
        rows.push_back(std::move(row));
      }
    }
  return rows;
}

std::string published_table(const std::vector<PublishedRow>& rows) {
  if (rows.empty()) return "";
  TextTable table({"policy", "metric", "ours (simulated)", "published", "difference %", "source"});
  for (const std::size_t column : {1U, 5U}) table.align_left(column);
  for (const PublishedRow& row : rows) {
    if (row.metric == "status") {
      table.add(
          {row.label, "status", row.simulated_status, row.published_fits ? "ok" : "oom", "-", row.source});
      continue;
    }
    table.add({row.label, metric_cell(row), cell(row, row.simulated), cell(row, row.published),
               percent(row.difference_percent()), row.source});
  }
  return "Beside the published figures\n" + table.text();
}

json published_json(const std::vector<PublishedRow>& rows, const std::string& label) {
  const auto value = [](const std::optional<double>& v) { return v ? json(*v) : json(nullptr); };
  json list = json::array();
  for (const PublishedRow& row : rows) {
    if (row.label != label) continue;
    json node = {{"metric", row.metric}, {"source", row.source}};
    if (row.metric == "status") {
      node["simulated"] = row.simulated_status;
      node["published"] = row.published_fits ? "ok" : "oom";
    } else {
      node["simulated"] = value(row.simulated);
      node["published"] = value(row.published);
      node["difference_percent"] = value(row.difference_percent());
    }
    if (!row.against.empty()) node["against"] = row.against;
    list.push_back(std::move(node));
  }
  return list;
}

}  // namespace equipoise
