// A row of a study as the flags or the config of a training framework, and what of it no flag says.
//
// A framework is a table: a row a flag, with the function that gives its value. A second table has what the
// framework cannot be told: it stands as comments in what is printed, each with the reason and the nearest
// thing. To add a flag: its row in megatron.cpp or pytorch.cpp.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

// What the tables ask: the study, and its row as it ran, with all that was derived filled in.
struct ExportedRow {
  const Study& study;
  const PolicyResult& row;

  [[nodiscard]] const Layout& layout() const { return row.layout; }
  [[nodiscard]] const ModelShape& model() const { return study.model; }
  [[nodiscard]] const FrameworkOptions& framework() const { return study.framework.in_training; }
  [[nodiscard]] bool has_windows() const { return study.batch.documents_per_step == 0; }
  [[nodiscard]] std::string_view schedule() const;
  // Most tokens of a micro-batch.
  [[nodiscard]] std::int64_t micro_batch_tokens() const;
  [[nodiscard]] std::vector<int> layers_of_stages() const;
  [[nodiscard]] bool has_even_stages() const;
  // Layers that each virtual stage recomputes.
  [[nodiscard]] std::vector<int> recomputed_of_stages() const;
};

struct Setting {
  std::string_view name;  // a flag, or a dotted path
  // Null: not written. True: a flag without a value.
  nlohmann::ordered_json (*value)(const ExportedRow&);
};

struct Gap {
  std::string_view key;                      // of the study
  std::string (*found)(const ExportedRow&);  // what the row has of it; empty where nothing is lost
  std::string_view why, nearest;
};

enum class ExportForm { arguments, overrides, json, toml };

struct Exporter {
  std::string_view name;  // after --for
  std::string_view source;  // whose names these are
  std::string_view use;
  std::string_view presets;  // framework presets whose times hold for it, each with a space behind it
  ExportForm form;
  std::span<const Setting> settings;
  std::span<const Gap> gaps;
};

std::span<const Exporter> exporters();
// Throws UserError with the known names, `also` among them.
const Exporter& exporter_of(std::string_view name, std::string_view also = {});

// What cannot be expressed, a line each.
std::vector<std::string> lost_lines(const Exporter& to, const ExportedRow& row);
// Why no flag says the study's layout, whatever is packed, or lets its first row have CP degrees of its own;
// empty where nothing is lost.
enum class Untold { layout, row };
std::string untold(const Exporter& to, const Study& study, Untold part);
// The flags or the config, `lost` in it as comments.
std::string export_text(const Exporter& to, const ExportedRow& row, const std::vector<std::string>& lost);

// The search or the sweep of a study as an array job of Slurm, its results merged in the end.
struct SlurmJob {
  std::string file;                // the study
  std::vector<std::string> sweep;  // key=a,b,c; empty: `tune`
  int tasks = 8;
};
std::string slurm_script(const SlurmJob& job);

// Tables of single frameworks, and what they share.
Exporter megatron_exporter();
Exporter nemo_exporter();
Exporter deepspeed_exporter();
Exporter torchtitan_exporter();
Exporter verl_exporter();

namespace exported {

using Value = nlohmann::ordered_json;

// The number where it is no default.
inline Value above(std::int64_t least, std::int64_t number) {
  return number > least ? Value(number) : Value();
}
inline Value where(bool holds, Value value) {
  return holds ? std::move(value) : Value();
}
// The policy with what its options say beside their defaults: "wlb (queues 2)".
std::string policy_text(const ExportedRow& row);

inline constexpr std::string_view kFeedIt =
    "its micro-batches, as equipoise.BatchSampler (Python) or plan.json of `study --out` give them";

}  // namespace exported
}  // namespace equipoise
