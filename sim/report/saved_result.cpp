#include "sim/report/saved_result.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/words/note_json.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr double kPicoseconds = 1e12;

// A value that is null, or that an earlier version did not write, has the default.
template <class Value>
Value value_or(const json& node, const char* key, Value otherwise) {
  const auto found = node.find(key);
  return found == node.end() || found->is_null() ? otherwise : found->get<Value>();
}

Notes notes_in(const json& node, const char* key) {
  Notes notes;
  const auto found = node.find(key);
  if (found == node.end() || !found->is_array()) return notes;  // a forged file has none
  for (const json& note : *found) notes.push_back(note_of(note));
  return notes;
}

Notes reasons_of(const json& row) {
  if (row.contains("reasons")) return notes_in(row, "reasons");
  if (row.at("reason").is_null()) return {};
  return {note_of(row.at("reason"))};  // written by an earlier version
}

void read_memory(const json& memory, PolicyResult& row) {
  if (memory.is_null()) return;  // because nothing was planned
  row.capacity_bytes = memory.at("capacity_bytes").get<double>();
  for (const MemoryPartName& part : kMemoryParts)
    row.peak.parts.*part.bytes = value_or(memory, part.key, 0.0);
}

// A forged file may say anything, and a product of degrees is a number of GPUs.
int degree_in(const json& study, const char* key, int otherwise) {
  constexpr int kMostDegree = 1 << 15;
  return std::clamp(value_or(study, key, otherwise), 1, kMostDegree);
}

Layout layout_in(const json& study) {
  Layout layout;
  layout.tensor = degree_in(study, "tensor", 1);
  layout.context = degree_in(study, "context", 1);
  layout.pipeline = degree_in(study, "pipeline", 2);
  layout.data = degree_in(study, "data", 1);
  return layout;
}

std::optional<ErrorInterval> interval_in(const json& node) {
  if (!node.is_object() || !node.at("low").is_number()) return {};
  return ErrorInterval{node.at("low").get<double>(), node.at("high").get<double>(),
                       value_or(node, "rows", std::int64_t{0}), value_or(node, "sources", std::int64_t{0})};
}

std::optional<ExpectedError> expected_error_in(const json& provenance) {
  const auto found = provenance.find("expected_error");
  if (found == provenance.end() || !found->is_object()) return {};
  return ExpectedError{interval_in(*found),
                       interval_in(found->value("speed_up", json())),
                       interval_in(found->value("speed_up_of_layouts", json())),
                       value_or(*found, "nearest", std::string()),
                       value_or(*found, "nearest_mean_abs_error", 0.0),
                       value_or(*found, "is_of_ratio", false)};
}

PolicyResult read_row(const json& saved, const std::string& where, const Layout& layout) {
  PolicyResult row;
  row.run.label = saved.at("label").get<std::string>();
  row.run.name = value_or(saved, "policy", std::string());
  row.run.shard = value_or(saved, "shard", std::string());
  row.status = static_cast<RowStatus>(
      choice_of(saved.at("status").get<std::string>(), where + ".status", kRowStatusNames));
  row.reasons = reasons_of(saved);
  row.memory_tight = value_or(saved, "memory_tight", false);
  row.memory_ignored = value_or(saved, "memory_ignored", false);
  if (const std::string runs = value_or(saved, "runs_in", std::string()); !runs.empty())
    row.runs_in = static_cast<RunsIn>(choice_of(runs, where + ".runs_in", kRunsInNames));
  row.needs = notes_in(saved, "needs");
  row.metrics = read_metrics(saved.at("metrics"));
  read_memory(saved.at("memory"), row);
  row.layout = layout;
  row.pack_ms = value_or(saved.value("measured", json::object()), "pack_ms", 0.0);
  const json& provenance = saved.at("provenance");
  (void)provenance.get_ref<const json::object_t&>();  // throws if it is anything else
  row.use.calls = value_or(provenance, "predictions", std::int64_t{0});
  row.use.beyond_samples = value_or(provenance, "beyond_samples", std::int64_t{0});
  row.use.derived = value_or(provenance, "on_derived_tables", std::int64_t{0});
  row.use.seconds = value_or(provenance, "kernel_seconds", 0.0);
  row.use.beyond_seconds = value_or(provenance, "beyond_samples_seconds", 0.0);
  row.notes = notes_in(saved, "notes");
  return row;
}

void read_steps(const fs::path& file, StudyResult& result) {
  if (!fs::exists(file)) return;  // ratios need no file, intervals do
  const CsvTable table = CsvTable::read(file.string());
  for (std::size_t line = 0; line < table.rows(); ++line) {
    const std::string label = csv_cell(table.text(line, "policy"));
    const auto row = std::ranges::find_if(
        result.policies, [&](const PolicyResult& one) { return csv_cell(one.run.label) == label; });
    if (row == result.policies.end()) continue;
    StepFigures step;
    step.work.tokens = static_cast<std::int64_t>(table.number(line, "tokens").value_or(0));
    step.times.makespan = std::llround(table.number(line, "step_seconds").value_or(0) * kPicoseconds);
    row->steps.push_back(std::move(step));
  }
}

// A file of an earlier version lacks the number of global batches; its number of steps replaces it.
std::size_t fewest_steps(const StudyResult& result) {
  std::size_t fewest = 0;
  for (const PolicyResult& row : result.policies)
    if (!row.steps.empty()) fewest = fewest == 0 ? row.steps.size() : std::min(fewest, row.steps.size());
  return fewest;
}

}  // namespace

SavedResult read_summary(json summary, const std::string& path) {
  if (!summary.is_object() || summary.value("schema", json()) != "equipoise.summary/1")
    throw UserError(path, ": expected \"schema\": \"equipoise.summary/1\", as `study --out` writes it");
  SavedResult saved{path, std::move(summary), "", "", {}};
  std::string where = "study";
  try {
    const json& study = saved.summary.at("study");
    saved.study = study.at("name").get<std::string>();
    StudyResult& result = saved.result;
    result.trace_origin = value_or(study, "trace", std::string());
    result.documents = value_or(study, "documents", std::int64_t{0});
    result.tokens = value_or(study, "tokens", std::int64_t{0});
    result.dropped_tokens = value_or(study, "dropped_tokens", std::int64_t{0});
    result.family.framework = value_or(study, "framework", std::string());
    result.batches = value_or(study, "batches", std::size_t{0});
    result.max_delay = value_or(saved.summary.value("comparison", json::object()), "max_delay", 1.0);
    result.notes = notes_in(study, "notes");
    const Layout layout = layout_in(study);
    where = "policies";
    for (const json& row : saved.summary.at("policies")) {
      where = concatenated("policies[", result.policies.size(), "]");
      result.policies.push_back(read_row(row, path + ": " + where, layout));
      result.expected_error = expected_error_in(row.at("provenance"));  // the same in every row
    }
    saved.baseline = value_or(saved.summary, "baseline", std::string());
    for (std::size_t i = 0; i < result.policies.size(); ++i)
      if (result.policies[i].run.label == saved.baseline) result.baseline = i;
  } catch (const json::exception& e) {
    throw UserError(path, ": ", where, ": expected what `equipoise study --out` writes, found ",
                    printable(e.what()));
  }
  return saved;
}

SavedResult load_saved(const std::string& path) {
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "summary.json" : fs::path(path);
  const fs::path page = fs::path(path) / "report.html";
  if (!fs::exists(file) && fs::exists(page))
    throw UserError(
        path + ": found no summary.json (a sweep, a search or a validation?): open its " + page.string() +
        ", or give a sweep's case; of a sweep sweep.csv has all rows, of a search `study` its best.json");
  if (!fs::exists(file))
    throw UserError(file.string() +
                    ": no such file; expected a folder that `study --out` wrote (of a sweep: one of "
                    "its cases), or its summary.json");
  SavedResult saved = read_summary(read_json_file(file.string()), file.string());
  saved.path = path;
  read_steps(file.parent_path() / "steps.csv", saved.result);
  if (saved.result.batches == 0) saved.result.batches = fewest_steps(saved.result);
  return saved;
}

}  // namespace equipoise
