#include "sim/report/receipt.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/sha256.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

// Whether a study's value is a path: of a path key, or of a preset or profile that looks like a file.
static bool names_file(std::string_view key, std::string_view value) {
  if (key == "hf_config" || key == "file") return true;
  for (const std::string_view title : {"name", "label", "baseline", "source"})
    if (key == title) return false;
  return value.find('/') != std::string_view::npos || value.ends_with(".json");
}

void add_hashes_of_files(const json& named, const std::string& folder, json& hashes, std::string_view key) {
  if (named.is_object())
    for (const auto& [inner, one] : named.items()) add_hashes_of_files(one, folder, hashes, inner);
  if (named.is_array())
    for (const json& one : named) add_hashes_of_files(one, folder, hashes, key);
  if (!named.is_string()) return;
  const std::string& name = named.get_ref<const std::string&>();
  if (!names_file(key, name)) return;
  const std::string path = (std::filesystem::path(folder) / name).string();
  std::error_code ignored;
  if (hashes.contains(name) || name.find('\0') != std::string::npos ||
      !std::filesystem::is_regular_file(path, ignored))
    return;
  Sha256 hash;
  read_blocks(path, "", [&](std::string_view block) { hash.add(block); });
  hashes[name] = hash.text();
}

json options_json(const RunStudyOptions& run) {
  const OpFidelity& op = run.steps.op;
  std::vector<std::string> stragglers;
  for (const auto& [gpu, speed] : op.stragglers)
    stragglers.push_back(std::to_string(gpu) + ':' + json(speed).dump());
  return {{"fidelity", kFidelityNames[at(run.steps.fidelity)]},
          {"fold_tp", op.fold_tp},
          {"contention", op.contention},
          {"jitter", op.jitter},
          {"jitter_seed", op.seed},
          {"stragglers", all_joined(stragglers, ",")},
          {"ignore_memory", run.ignore_memory}};
}

RunStudyOptions options_of_json(const json& options) {
  RunStudyOptions run;
  run.steps.fidelity = parse_fidelity(options.at("fidelity"));
  run.steps.op = {options.value("fold_tp", true), options.value("contention", false),
                  options.value("jitter", 0.0), options.value("jitter_seed", std::uint64_t{0}),
                  parse_stragglers(options.value("stragglers", ""))};
  run.ignore_memory = options.at("ignore_memory");
  return run;
}

json hashes_of_inputs(const StudyInputs& inputs, json study, const std::string& folder) {
  Sha256 documents;
  for (const GlobalBatch& batch : inputs.documents.batches) {
    std::string line;
    for (const Slice& s : batch.slices)
      line += std::to_string(s.document) + ':' + std::to_string(s.begin) + '-' + std::to_string(s.end) + ' ';
    documents.add(line + '\n');
  }
  study.erase("trace");  // the documents' own key has more: which of them are used
  json hashes = json::object();
  add_hashes_of_files(study, folder, hashes);
  hashes["profile"] = sha256(inputs.profile.json().dump());
  hashes["documents"] = documents.text();
  return hashes;
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

SummaryHashes hashes_of_summary(json summary) {
  SummaryHashes hashes{json::object(), ""};
  for (json& row : summary.at("policies")) {
    row.erase("measured");
    json label = row.at("label");
    hashes.rows[label.get<std::string>()] = sha256(row.dump());
    row = std::move(label);  // the rest has the rows' order
  }
  if (const auto receipt = summary.find("receipt"); receipt != summary.end()) receipt->erase("written");
  hashes.rest = sha256(summary.dump());
  return hashes;
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
  if (study.framework.carry_slowdowns) {  // no key shows it if a sweep decided it
    json& framework = run.study["framework"];
    if (framework.is_string()) framework = {{"preset", framework}};
    framework["carry_slowdowns"] = *study.framework.carry_slowdowns;
  }
  json rows = json::object();
  for (const PolicyResult& row : result.policies) rows[row.run.label] = hash_of_row(row);
  const std::filesystem::path file = std::filesystem::absolute(run.path).lexically_normal();
  json receipt{
      {"program", run.version}, {"file", file.string()},
      {"study", run.study},     {"options", run.options},
      {"hash", kReceiptHash},   {"inputs", hashes_of_inputs(inputs, run.study, file.parent_path().string())},
      {"rows", std::move(rows)}};
  if (!checks.empty()) receipt["checks"] = checks_json(checks);
  json summary = summary_json(study, result);
  summary["receipt"] = receipt;
  SummaryHashes written = hashes_of_summary(std::move(summary));
  receipt["written"] = {{"rows", std::move(written.rows)}, {"rest", std::move(written.rest)}};
  return receipt;
}

}  // namespace equipoise
