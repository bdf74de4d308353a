#include "sim/report/receipt.h"

#include <nlohmann/json.hpp>

#include "sim/metrics/metrics.h"
#include "sim/report/sha256.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

json hashes_of_inputs(const StudyInputs& inputs) {
  std::string bytes;
  for (const GlobalBatch& batch : inputs.documents.batches) {
    for (const Slice& s : batch.slices)
      bytes += std::to_string(s.document) + ':' + std::to_string(s.begin) + '-' + std::to_string(s.end) + ' ';
    bytes += '\n';
  }
  return {{"profile", sha256(inputs.profile.json().dump())}, {"documents", sha256(bytes)}};
}

std::string hash_of_row(const json& row) {
  return sha256(json{row.at("status"), row.at("reason"), row.at("metrics"), row.at("memory")}.dump());
}

std::string hash_of_row(const PolicyResult& row) {
  return hash_of_row(json{{"status", name_of(row.status)},
                          {"reason", row.reasons.empty() ? json(nullptr) : json(reason_text(row.reasons))},
                          {"metrics", metrics_json(row.metrics)},
                          {"memory", memory_json(row)}});
}

json checks_json(const std::vector<Check>& checks) {
  json list = json::array();
  for (const Check& check : checks)
    list.push_back({{"what", check.what},
                    {"holds", check.holds ? json(*check.holds) : json(nullptr)},
                    {"found", printable(check.found)}});
  return list;
}

json receipt_of(SavedRun run, const Study& study, const StudyInputs& inputs, const StudyResult& result,
                const std::vector<Check>& checks) {
  if (study.framework.carry_slowdowns) {  // where a sweep decided it, no key says so
    json& framework = run.study["framework"];
    if (framework.is_string()) framework = {{"preset", framework}};
    framework["carry_slowdowns"] = *study.framework.carry_slowdowns;
  }
  json rows = json::object();
  for (const PolicyResult& row : result.policies) rows[row.run.label] = hash_of_row(row);
  json receipt{
      {"program", run.version}, {"file", std::filesystem::absolute(run.path).lexically_normal().string()},
      {"study", run.study},     {"options", run.options},
      {"hash", kReceiptHash},   {"inputs", hashes_of_inputs(inputs)},
      {"rows", std::move(rows)}};
  if (!checks.empty()) receipt["checks"] = checks_json(checks);
  return receipt;
}

}  // namespace equipoise
