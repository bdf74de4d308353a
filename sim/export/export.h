// A row of a study as the flags or the config of a training framework, and what of it no flag says.
//
// A framework is a table: a row a flag, with the function that gives its value. A second table has what the
// framework cannot be told: it is in comments of what is printed, each with the reason and the nearest
// thing. To add a flag: its row in megatron.cpp or pytorch.cpp.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/note.h"
#include "sim/study/study_result.h"

namespace equipoise {

// What the tables read: the study, and its row as it ran, with all derived values filled in.
class ExportedRow {
 public:
  ExportedRow(const Study& of_study, const PolicyResult& of_row);

  const Study& study;
  const PolicyResult& row;

  // The row's layout, with the most layers that any of the plan's micro-batches recomputes. Frameworks have
  // one number for all micro-batches, and with that number all of them fit.
  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] const ModelShape& model() const { return study.model; }
  [[nodiscard]] const FrameworkOptions& framework() const { return study.framework.in_training; }
  [[nodiscard]] bool has_windows() const { return study.batch.documents_per_step == 0; }
  [[nodiscard]] std::string_view schedule() const;
  [[nodiscard]] const std::string& shard() const { return row.shard.empty() ? row.run.shard : row.shard; }
  // Fewest and most micro-batches of a full step, over all lanes; 0 if none ran.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> micro_batches() const;
  // Sequences of a step and micro-batches of a lane. They are the study's windows if lanes share them evenly,
  // else the plan's packs; 0 if its steps or lanes differ.
  struct BatchSizes {
    std::int64_t sequences = 0, of_lane = 0;
  };
  [[nodiscard]] BatchSizes batch() const;
  // Most tokens of a micro-batch, as the policy's sizes allow.
  [[nodiscard]] std::int64_t micro_batch_tokens() const;
  // The figures below are the plan's.
  [[nodiscard]] std::int64_t largest_micro_batch() const { return largest_micro_batch_; }
  [[nodiscard]] std::int64_t longest_document() const { return longest_document_; }
  [[nodiscard]] std::int64_t documents() const {  // mean of documents that begin in a step
    const auto steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(row.plan.steps.size()));
    return (documents_ + steps / 2) / steps;
  }
  [[nodiscard]] std::vector<int> layers_of_stages() const;
  [[nodiscard]] bool has_even_stages() const;
  [[nodiscard]] const std::vector<int>& recomputed_of_stages() const { return recomputed_of_stages_; }
  // How many layers micro-batches recompute, if they differ: "0 to 11 of 32 layers by micro-batch".
  [[nodiscard]] const std::string& recomputed_by_micro_batch() const { return recomputed_by_micro_batch_; }

 private:
  Layout layout_;
  std::int64_t largest_micro_batch_ = 0, longest_document_ = 0, documents_ = 0;
  std::vector<int> recomputed_of_stages_;
  std::string recomputed_by_micro_batch_;
};

struct Setting {
  std::string_view name;  // a flag, or a dotted path
  // Null is not written; true is a flag without a value.
  nlohmann::ordered_json (*value)(const ExportedRow&);
};

struct Gap {
  std::string_view key;                      // a key of the study
  std::string (*found)(const ExportedRow&);  // the row's value that is lost; empty if nothing is
  std::string_view why, nearest;
};

enum class ExportForm { arguments, overrides, json_text, toml };

struct Exporter {
  std::string_view name;    // after --for
  std::string_view source;  // the software that defines these names
  std::string_view use;
  std::string_view presets;  // framework presets that it serves, each followed by a space
  ExportForm form;
  std::span<const Setting> settings;
  std::span<const Gap> gaps;
  // The policy that packs as the flags alone do, sharded per-document. Empty if the framework itself does not
  // pack and mask documents.
  std::string_view alone = {};
};

std::span<const Exporter> exporters();
// Throws UserError with the known names and `also`.
const Exporter& exporter_of(std::string_view name, std::string_view also = {});

// Names what the framework cannot express. These notes belong to no row yet.
Notes lost_notes(const Exporter& to, const ExportedRow& row);
// The key that no flag can express, and why. `layout` looks at the study's layout, whatever is packed; `row`
// at the CP degrees of its first row. Empty if there is none.
enum class Untold { layout, row };
std::pair<std::string, std::string> untold(const Exporter& to, const Study& study, Untold part);
// "0.104 s per step of 65,530 tokens, 61565 tokens/s/GPU"
std::string simulated_text(const PolicyResult& row);
// The flags or the config, with `notes` as comments in it.
std::string export_text(const Exporter& to, const ExportedRow& row, const Notes& notes);

// The search or the sweep of a study as an array job of Slurm, which merges the results at its end.
struct SlurmJob {
  std::string file;                     // the study
  std::vector<std::string> set, sweep;  // key=a and key=a,b,c; without `sweep` the job is `tune`
  int tasks = 8;
};
std::string slurm_script(const SlurmJob& job);

// What the tables of the frameworks share.
namespace exported {

using Value = nlohmann::ordered_json;

// The number, unless it is the default.
inline Value above(std::int64_t least, std::int64_t number) {
  return number > least ? Value(number) : Value();
}
inline Value where(bool holds, Value value) {
  return holds ? std::move(value) : Value();
}
// A gap's text if the gap holds.
inline std::string found_if(bool holds, std::string text) {
  return holds ? std::move(text) : std::string();
}
// The policy with those of its options that differ from their defaults: "wlb (queues 2)".
std::string policy_text(const ExportedRow& row);

// What the row does that the framework's own loader and pipeline do not; empty if nothing.
std::string packed_otherwise(const FrameworkRuns& framework, const ExportedRow& row);
std::string scheduled_otherwise(const FrameworkRuns& framework, const ExportedRow& row);

// For plans whose number of micro-batches differs from that of the study's windows.
inline constexpr Gap kCountOfPlan = {
    "micro_batches",
    [](const ExportedRow& r) {
      const auto [least, most] = r.micro_batches();
      const std::int64_t made = r.batch().of_lane * r.layout().data;
      if (most == 0 || (least == made && most == made)) return std::string();
      return (least < most ? std::to_string(least) + " to " : "") + std::to_string(most) + " a step";
    },
    "a global batch is one number, of samples as long as a window",
    "the one that counts the plan's micro-batches, each a sample, once they are fed"};

inline constexpr Gap kRecomputeOfPlan = {
    "recompute", [](const ExportedRow& r) { return r.recomputed_by_micro_batch(); },
    "one setting holds for all micro-batches, and nothing changes it between them",
    "the most that any of them recomputes, as written, which costs the others time"};

// For plans with micro-batches longer than the framework's sample length.
inline constexpr Gap kLargerMicroBatches = {"largest micro-batch",
                                            [](const ExportedRow& r) {
                                              const std::int64_t most = r.largest_micro_batch();
                                              const bool fits = most <= r.study.batch.context_window *
                                                                            r.study.batch.micro_batch_size;
                                              return fits ? std::string() : std::to_string(most) + " tokens";
                                            },
                                            "a micro-batch has the length of the dataset's samples",
                                            "a length of so many, for a dataset of the plan's micro-batches"};

inline Value lora_rank(const ExportedRow& r) {
  return where(r.model().training.adapted != 0, r.model().training.lora_dim);
}
inline constexpr Gap kLora = {
    "lora",
    [](const ExportedRow& r) {
      const Training& training = r.model().training;
      return training.adapted != 0 ? "dim " + std::to_string(training.lora_dim) : std::string();
    },
    "adapters are added to the layers of a model that your script has built",
    "peft's LoraConfig, Megatron Bridge's LoRA(target_modules, dim), verl's model.lora_rank"};

inline constexpr std::string_view kFeedIt =
    "its micro-batches, as equipoise.loader (Python) or plan.json of `study --out` give them";

}  // namespace exported
}  // namespace equipoise
