#include "sim/calibration/step_rows.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "policies/base/error.h"
#include "policies/base/parallel.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr const char* kNeeded[] = {"gpu", "model_id", "seq_len", "tp",       "cp",
                                   "pp",  "dp",       "mbs",     "gbs_seqs", "step_time_s"};
constexpr const char* kNeededOfModels[] = {"model_id", "n_layers",   "hidden",
                                           "n_heads",  "ffn_hidden", "vocab"};
constexpr double kMixedAdam = 4 + 2 * 2;  // bytes: fp32 master weight, two bf16 moments

CsvTable read_table(const std::string& path, std::span<const char* const> needed) {
  CsvTable table = CsvTable::read(path);
  for (const char* column : needed)
    if (!table.has(column)) throw UserError(path + ": expected a column called " + column + ", found none");
  return table;
}

// Why a row is no study; what it says is not wrong, so the others count.
struct NotThisRow {
  std::string why;
};

class RowReader {
 public:
  RowReader(const CsvTable& rows, const CsvTable* models, const StepTables& tables, std::size_t row)
      : rows_(rows), models_(models), tables_(tables), row_(row) {}

  [[nodiscard]] std::string text(const char* column) const { return std::string(rows_.text(row_, column)); }

  [[nodiscard]] std::int64_t size(const char* column) const {
    const std::optional<double> value = rows_.number(row_, column);
    if (!value) throw NotThisRow{std::string("no ") + column};
    if (!(*value >= 1 && *value <= 1e9) || *value != std::floor(*value))
      throw NotThisRow{std::string(column) + " " + text(column) + ", expected an integer from 1"};
    return static_cast<std::int64_t>(*value);
  }

  static std::string one_of(const char* column, std::string_view found,
                            std::initializer_list<std::string_view> allowed) {
    if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return std::string(found);
    std::string expected;
    for (const std::string_view word : allowed)
      if (!word.empty()) expected.append(expected.empty() ? "" : " or ").append(word);
    throw NotThisRow{std::string(column) + " \"" + std::string(found) + "\", expected " + expected};
  }

  [[nodiscard]] std::string word(const char* column, std::initializer_list<std::string_view> allowed) const {
    return one_of(column, text(column), allowed);
  }

  void check_gpus() const {
    if (text("n_gpus").empty()) return;
    const std::int64_t gpus = size("tp") * size("cp") * size("pp") * size("dp");
    if (size("n_gpus") != gpus)
      throw NotThisRow{"n_gpus " + text("n_gpus") + ", expected tp x cp x pp x dp = " + std::to_string(gpus)};
  }

  [[nodiscard]] std::vector<std::string> recompute_modes() const {
    const std::string said = text("act_recompute");
    const std::string mode = said.substr(0, said.find(' '));
    if (mode.empty()) return {"none", "full"};
    const bool partly = said.find(" on ") != std::string::npos;
    if (partly || (mode != "none" && mode != "selective" && mode != "full"))
      throw NotThisRow{"recompute " + said};
    return {mode};
  }

  [[nodiscard]] json model() const {
    const std::string id = text("model_id");
    if (models_ == nullptr) {
      if (text("layers_run").empty()) return id;
      throw NotThisRow{"layers_run needs a table of models"};
    }
    std::size_t at = 0;
    while (at < models_->rows() && models_->text(at, "model_id") != id) ++at;
    if (at == models_->rows()) throw NotThisRow{"unknown model " + id};
    const auto of_model = [&](const char* column) {
      const std::optional<double> value = models_->number(at, column);
      if (!value) throw NotThisRow{"model " + id + " without " + column};
      return static_cast<std::int64_t>(*value);
    };
    return {
        {"name", id},
        {"layers", text("layers_run").empty() ? of_model("n_layers") : size("layers_run")},
        {"hidden", of_model("hidden")},
        {"heads", of_model("n_heads")},
        {"kv_heads", models_->text(at, "n_kv_heads").empty() ? of_model("n_heads") : of_model("n_kv_heads")},
        {"ffn", of_model("ffn_hidden")},
        {"vocab", of_model("vocab")},
        {"gated_ffn", one_of("gated_mlp", models_->text(at, "gated_mlp"), {"1", "0"}) == "1"}};
  }

  [[nodiscard]] std::string profile() const {
    if (!tables_.profile.empty()) return tables_.profile;
    const std::string gpu = text("gpu");
    for (const auto& [word, name] : {std::pair{"H200", "h200-sxm"}, std::pair{"H100", "h100-sxm"}})
      if (gpu.find(word) != std::string::npos) return name;
    throw NotThisRow{"gpu " + gpu + " without a profile (--profile)"};
  }

  // What the row states of its framework.
  [[nodiscard]] json framework() const {
    const bool is_path = tables_.preset.find('/') != std::string::npos || tables_.preset.ends_with(".json");
    json node = {{"preset", is_path ? std::filesystem::absolute(tables_.preset).string() : tables_.preset}};
    const std::string attention = word("attention_impl", {"", "flash-attention", "cudnn"});
    if (attention == "flash-attention") node["attention_kernel"] = "flash-attention-2";
    if (attention == "cudnn") node["attention_kernel"] = "";  // or its like: the profile's default
    if (word("optimizer_state_dtype", {"", "bf16", "fp32"}) == "bf16") node["optimizer_bytes"] = kMixedAdam;
    return node;
  }

  [[nodiscard]] json study(const std::string& recompute) const {
    const std::string precision = text("precision");
    if (!precision.empty() && precision != "bf16" && !precision.starts_with("fp8"))
      throw NotThisRow{"precision " + precision};
    check_gpus();
    const std::string notes = text("notes");
    json parallel = {{"tensor", size("tp")},   {"context", size("cp")},
                     {"pipeline", size("pp")}, {"data", size("dp")},
                     {"recompute", recompute}, {"virtual_pipeline", text("vp").empty() ? 1 : size("vp")}};
    if (notes.find("SHARD_GRAD_OP") != std::string::npos) parallel["zero"] = 2;  // FSDP's name for it
    if (notes.find("ring") != std::string::npos) parallel["context_comm"] = "ring";
    return {{"name", text("row_id")},
            {"trace", {{"uniform", size("seq_len")}}},
            {"model", model()},
            {"cluster", {{"profile", profile()}}},
            {"parallel", std::move(parallel)},
            {"framework", framework()},
            {"batch",
             {{"context_window", size("seq_len")},
              {"sequences_per_step", size("gbs_seqs")},
              {"micro_batch_size", size("mbs")},
              {"steps", 1}}},
            {"precision", precision.starts_with("fp8") ? "fp8" : "bf16"},
            {"policies", {"plain"}}};
  }

 private:
  const CsvTable& rows_;
  const CsvTable* models_;
  const StepTables& tables_;
  std::size_t row_;
};

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
  for (const std::string& mode : reader.recompute_modes()) {
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
            benchmark_of(group),
            precision.empty() ? "bf16" : precision,
            mode,
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

double StepRow::seconds(const Slowdowns& slowdowns) const {
  Study slowed = study;
  for (FrameworkOptions* options : {&slowed.framework.on_fitted_gpus, &slowed.framework.elsewhere}) {
    options->gemm_slowdown = slowdowns[0];
    options->attention_slowdown = slowdowns[1];
    options->elementwise_slowdown = slowdowns[2];
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
