#include "sim/report/study_outputs.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/files.h"
#include "sim/report/html_page.h"
#include "sim/report/plan_json.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_page.h"
#include "sim/report/summary_json.h"

namespace equipoise {

using nlohmann::json;

namespace {

// To add an output, write a function from a study's result to a text, and its row here.
constexpr StudyOutput kOutputs[] = {
    {"summary.json", "metrics, memory and provenance of every policy",
     [](const Study& study, const StudyResult& result) {
       return summary_json(study, result).dump(2) + "\n";
     }},
    {"steps.csv", "a line per policy and step",
     [](const Study&, const StudyResult& result) { return steps_csv(result); }},
    {"gpus.csv", "compute seconds of every GPU, mean over full steps",
     [](const Study&, const StudyResult& result) { return gpus_csv(result); }},
    {"plan.json", "the plan of every policy", plans_json_text},
    {"report.html", "all of it to look at, in one file", report_html},
};

}  // namespace

std::span<const StudyOutput> study_outputs() {
  return kOutputs;
}

std::vector<SummaryKey> summary_keys() {
  std::vector<SummaryKey> keys;
  std::istringstream lines{std::string(html_asset("summary_md"))};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t end = line.find("` | "), next = line.find(" | ", end + 4);
    const std::string key = line.substr(3, end - 3), unit = line.substr(end + 4, next - end - 4);
    const std::string what = line.substr(next + 3, line.size() - next - 5);
    const bool is_file = unit == "file";
    keys.push_back({is_file ? "file of study --out" : "key of summary.json", key, is_file ? "" : unit, what,
                    is_file ? key.substr(0, key.find('/')) : key.substr(key.rfind('.') + 1)});
  }
  return keys;
}

void write_outputs(const std::string& directory, const Study& study, const StudyResult& result,
                   const json& receipt) {
  for (const StudyOutput& output : kOutputs) {
    std::string text = output.text(study, result);
    if (!receipt.is_null() && output.file == kOutputs[0].file) {
      json summary = summary_json(study, result);
      summary["receipt"] = receipt;
      text = summary.dump(2) + '\n';
    }
    write_file_atomically((std::filesystem::path(directory) / output.file).string(), text);
  }
}

}  // namespace equipoise
