#include "profiler/measure/check_report.h"

#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "traces/json_text.h"

namespace equipoise::measure {
namespace {

using nlohmann::json;

json error_json(double error) {
  return std::isfinite(error) ? json(error) : json("not finite");
}

json check_json(const std::vector<kernels::CheckResult>& results) {
  json list = json::array();
  for (const kernels::CheckResult& result : results) {
    list.push_back({{"op", result.op},
                    {"tensor", result.tensor},
                    {"shape", result.shape},
                    {"error", error_json(result.error)},
                    {"limit", result.limit}});
  }
  return list;
}

// Worst error of each (op, tensor): what a profile keeps of the checks.
json check_summary(const std::vector<kernels::CheckResult>& results) {
  std::map<std::string, const kernels::CheckResult*> worst;
  for (const kernels::CheckResult& result : results) {
    const kernels::CheckResult*& entry = worst[result.op + " " + result.tensor];
    if (entry == nullptr || entry->error < result.error) entry = &result;
  }
  json summary = json::object();
  for (const auto& [name, result] : worst) {
    summary[name] = {
        {"worst_error", error_json(result->error)}, {"limit", result->limit}, {"shape", result->shape}};
  }
  return summary;
}

// Adds what the samples file at `path` says of ops that `results` do not have.
void keep_earlier(const std::vector<kernels::CheckResult>& results, const std::string& path, json& checks) {
  const auto part = [](const json& node, const char* key, const json& otherwise) {
    const auto it = node.is_object() ? node.find(key) : node.end();
    return it != node.end() && it->type() == otherwise.type() ? *it : otherwise;
  };
  if (!std::filesystem::exists(path)) return;
  const json earlier = part(read_json_file(path), "checks", json::object());
  const json summary = part(earlier, "summary", json::object());
  std::set<std::string> now;
  for (const kernels::CheckResult& result : results) now.insert(result.op);
  for (const json& result : part(earlier, "all", json::array()))
    if (now.count(part(result, "op", "").get<std::string>()) == 0) checks["all"].push_back(result);
  for (const auto& [name, result] : summary.items())
    if (now.count(name.substr(0, name.find(' '))) == 0) checks["summary"][name] = result;
}

}  // namespace

std::vector<kernels::CheckResult> checks_of(kernels::Backend& backend, const std::set<std::string>& families,
                                            std::uint64_t seed) {
  struct Part {
    const char* family;
    std::vector<kernels::CheckResult> (*check)(kernels::Backend&, std::uint64_t);
  };
  std::vector<kernels::CheckResult> results;
  for (const Part& part : {Part{"attention", kernels::check_attention}, Part{"gemm", kernels::check_gemm},
                           Part{"elementwise", kernels::check_rows}}) {
    if (!families.empty() && families.count(part.family) == 0) continue;
    try {
      const std::vector<kernels::CheckResult> more = part.check(backend, ++seed);
      results.insert(results.end(), more.begin(), more.end());
    } catch (const std::exception& e) {
      results.push_back({part.family, "not run", e.what(), std::numeric_limits<double>::infinity(), 0});
    }
  }
  return results;
}

const kernels::CheckResult* worst_of(const std::vector<kernels::CheckResult>& results) {
  const kernels::CheckResult* worst = nullptr;
  for (const kernels::CheckResult& result : results) {
    if (worst == nullptr || result.error * worst->limit > worst->error * result.limit) worst = &result;
  }
  return worst;
}

json checks_json(const std::vector<kernels::CheckResult>& results, const std::string& earlier) {
  json checks = {{"summary", check_summary(results)}, {"all", check_json(results)}};
  if (!earlier.empty()) keep_earlier(results, earlier, checks);
  return checks;
}

}  // namespace equipoise::measure
