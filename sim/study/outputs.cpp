// To add one: a function from a study's result to a text, and its row here.
#include "sim/study/outputs.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "policies/base/atomic_file.h"
#include "sim/study/study_html.h"
#include "sim/study/study_report.h"

namespace equipoise {
namespace {

constexpr StudyOutput kOutputs[] = {
    {"summary.json", "metrics, memory and provenance of every policy",
     [](const Study& study, const StudyResult& result) {
       return summary_json(study, result).dump(2) + "\n";
     }},
    {"steps.csv", "a line a policy and step",
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

void write_outputs(const std::string& directory, const Study& study, const StudyResult& result) {
  for (const StudyOutput& output : kOutputs)
    write_file_atomically((std::filesystem::path(directory) / output.file).string(),
                          output.text(study, result));
}

}  // namespace equipoise
