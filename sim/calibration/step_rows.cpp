#include "sim/calibration/step_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "sim/calibration/row_reader.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr const char* kNeeded[] = {"gpu", "model_id", "seq_len", "tp",       "cp",
                                   "pp",  "dp",       "mbs",     "gbs_seqs", "step_time_s"};
constexpr const char* kNeededOfModels[] = {"model_id", "n_layers",   "hidden",
                                           "n_heads",  "ffn_hidden", "vocab"};

CsvTable read_table(const std::string& path, std::span<const char* const> needed) {
  CsvTable table = CsvTable::read(path);
  for (const char* column : needed)
    if (!table.has(column)) throw UserError(path + ": expected a column called " + column + ", found none");
  return table;
}

double simulated(const Study& study, const StudyInputs& inputs, bool ignore_memory) {
  RunStudyOptions options;
  options.find_fits = false;
  options.ignore_memory = ignore_memory;
  const StudyResult result = run_study(study, inputs, options);
  const PolicyResult& row = result.policies.front();
  if (!row.simulated()) throw NotThisRow{row.reason};
  return *row.metrics.step_seconds;
}

StepRow make_row(const RowReader& reader, const std::string& where) {
  std::string why;
  const bool stated = !reader.text("act_recompute").empty();
  for (const json& mode : reader.recompute_modes()) {
    Study study = parse_study(reader.study(mode), where);
    StudyInputs inputs = load_inputs(study);
    try {
      (void)simulated(study, inputs, stated);
    } catch (const NotThisRow& not_this) {
      why = not_this.why;
      continue;
    }
    const std::string group = reader.text("group");
    const std::string precision = reader.text("precision");
    return {reader.text("row_id"),
            group,
            reader.benchmark(),
            precision.empty() ? "bf16" : precision,
            mode.is_string() ? mode.get<std::string>() : reader.text("act_recompute"),
            0,
            std::move(study),
            std::move(inputs)};
  }
  throw NotThisRow{why};
}

}  // namespace

std::string benchmark_of(const std::string& group) {
  std::string_view name = group;
  const size_t version = name.find_last_not_of("0123456789.");
  if (version != name.npos && version + 1 < name.size()) {
    if (name[version] == '_')
      name = name.substr(0, version);
    else if (version > 0 && name[version] == 'v' && name[version - 1] == '_')
      name = name.substr(0, version - 1);
  }
  for (const std::string_view precision : {"_bf16", "_fp8-linear", "_fp8"})
    if (name.ends_with(precision)) {
      name.remove_suffix(precision.size());
      break;
    }
  return std::string(name);
}

double StepRow::seconds(const Slowdowns& slowdowns, std::optional<ExpertTimes> experts) const {
  Study slowed = study;
  for (FrameworkOptions* options : {&slowed.framework.on_fitted_gpus, &slowed.framework.elsewhere}) {
    options->gemm_slowdown = slowdowns[0];
    options->attention_slowdown = slowdowns[1];
    options->elementwise_slowdown = slowdowns[2];
    if (!experts) continue;
    options->expert_gemm_slowdown = experts->gemm_slowdown;
    options->expert_product_seconds = experts->product_seconds;
  }
  return simulated(slowed, inputs, true);
}

double StepRow::seconds_as_preset() const {
  return simulated(study, inputs, true);
}

StepRows read_step_rows(const StepTables& tables, int jobs) {
  const CsvTable rows = read_table(tables.rows, kNeeded);
  std::optional<CsvTable> models;
  if (!tables.models.empty()) models = read_table(tables.models, kNeededOfModels);
  std::vector<std::optional<StepRow>> made(rows.rows());
  std::vector<std::string> why(rows.rows()), ids(rows.rows());
  parallel_for(jobs, rows.rows(), [&](int, std::size_t i) {
    const RowReader reader(rows, models ? &*models : nullptr, tables, i);
    ids[i] = reader.text("row_id").empty() ? "line " + std::to_string(rows.line(i)) : reader.text("row_id");
    try {
      const std::optional<double> published = rows.number(i, "step_time_s");
      if (!published) throw NotThisRow{"no step time"};
      if (!(*published > 0)) throw NotThisRow{"a step time of " + reader.text("step_time_s")};
      made[i] = make_row(reader, tables.rows + ": " + ids[i]);
      made[i]->id = ids[i];
      made[i]->published = *published;
      if (made[i]->benchmark.empty()) made[i]->group = made[i]->benchmark = ids[i];
    } catch (const NotThisRow& not_this) {
      why[i] = not_this.why;
    } catch (const UserError& e) {
      why[i] = e.what();
    }
  });
  StepRows result;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i])
      result.rows.push_back(std::move(*made[i]));
    else
      result.left_out.push_back({ids[i], why[i]});
  return result;
}

}  // namespace equipoise
