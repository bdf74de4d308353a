#include "sim/export/export.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "policies/base/text.h"
#include "policies/steps.h"
#include "sim/export/megatron.h"
#include "sim/export/pytorch.h"
#include "sim/report/words/words.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/row/runs_in.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

using nlohmann::ordered_json;

ExportedRow::ExportedRow(const Study& of_study, const PolicyResult& of_row)
    : study(of_study), row(of_row), layout_(row.layout), recomputed_of_stages_(at(layout_.virtual_stages())) {
  const RecomputedLayers recomputed(model(), layout_);
  std::vector<int>& stages = recomputed_of_stages_;
  const auto count_stages = [&](const auto& what) {
    for (std::size_t v = 0; v < stages.size(); ++v)
      stages[v] = std::max(stages[v], recomputed.of_stage(static_cast<int>(v), what));
  };
  if (row.plan.steps.empty()) count_stages(kStudyRecompute);
  bool any_own = false;
  for (const Step& step : row.plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        if (m.slices.empty()) continue;
        any_own = any_own || !m.recompute_by_stage.empty() || m.recompute_layers != kStudyRecompute;
        count_stages(m);
        largest_micro_batch_ = std::max(largest_micro_batch_, m.tokens());
        for (const Slice& slice : m.slices) longest_document_ = std::max(longest_document_, slice.tokens());
        documents_ += std::ranges::count(m.slices, 0, &Slice::begin);
      }
  const int all = model().all_layers();
  const auto [least, most] = row.facts.recomputed_layers(layout_, all);
  if (least < most)
    recomputed_by_micro_batch_ = std::to_string(least) + " to " + std::to_string(most) + " of " +
                                 counted(all, "layer") + " by " +
                                 (row.run.recompute_by_stage ? "stage and micro-batch" : "micro-batch");
  if (any_own) {
    const int sum = sum_of(stages);
    layout_.recompute_layers = row.run.recompute_by_stage ? std::min(all, sum) : most;
    if (most > 0 || layout_.recompute == Recompute::full) layout_.recompute = Recompute::layers;
  }
  if (layout_.recompute == Recompute::layers && layout_.recompute_layers == 0)
    layout_.recompute = Recompute::none;
}

std::string_view ExportedRow::schedule() const {
  return schedule_policy_of(study, row.run).name;
}

std::pair<std::int64_t, std::int64_t> ExportedRow::micro_batches() const {
  std::int64_t least = 0, most = 0;
  for (std::size_t i = 0; i < row.steps.size(); ++i) {
    if (row.steps[i].plan.tail) continue;
    const auto count = static_cast<std::int64_t>(row.steps[i].micro_batches);
    least = most == 0 ? count : std::min(least, count);
    most = std::max(most, count);
  }
  return {least, most};
}

ExportedRow::BatchSizes ExportedRow::batch() const {
  const std::int64_t each = study.batch.micro_batch_size, lanes = layout().data;
  const std::int64_t windows = study.batch.sequences_per_step;
  if (has_windows() && windows % (each * lanes) == 0) return {windows, windows / (each * lanes)};
  const auto [least, most] = micro_batches();
  if (least != most || most % lanes != 0) return {};
  return {most * each, most / lanes};
}

std::int64_t ExportedRow::micro_batch_tokens() const {
  if (const std::int64_t budget = row.run.pack.of<TokenBudget>().tokens_per_micro_batch; budget > 0)
    return budget;
  const auto bound = row.run.policy().micro_batch_tokens;
  const std::int64_t most = bound != nullptr ? bound(row.run.pack) : 0;
  return most > 0 ? most : study.batch.context_window * study.batch.micro_batch_size;
}

std::vector<int> ExportedRow::layers_of_stages() const {
  ModelShape alone = model();
  alone.mtp_layers = 0;  // frameworks count MTP layers separately
  return equipoise::layers_of_stages(alone, layout());
}

bool ExportedRow::has_even_stages() const {
  const std::vector<int> layers = layers_of_stages();
  return std::equal(layers.begin() + 1, layers.end(), layers.begin());
}

namespace exported {

std::string packed_otherwise(const FrameworkRuns& framework, const ExportedRow& row) {
  return lists(framework.packs, row.row.run.name) ? "" : policy_text(row);
}

std::string scheduled_otherwise(const FrameworkRuns& framework, const ExportedRow& row) {
  const bool runs = row.layout().pipeline == 1 || lists(framework.schedules, row.schedule());
  return std::string(runs ? "" : row.schedule());
}

std::string policy_text(const ExportedRow& row) {
  const PolicyRun& run = row.row.run;
  std::string options;
  for (const PackParameter& option : run.policy().parameters) {
    const ordered_json value = keys::default_of(option, run.pack);
    if (value.is_null() || (!run.says(option.key) && value == keys::default_of(option, PackOptions())))
      continue;
    options += (options.empty() ? "" : ", ") + std::string(option.key) + " " +
               (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return run.name + (options.empty() ? "" : " (" + options + ")");
}

}  // namespace exported

std::span<const Exporter> exporters() {
  static const Exporter kAll[] = {megatron_exporter(), nemo_exporter(), deepspeed_exporter(),
                                  torchtitan_exporter(), verl_exporter()};
  return kAll;
}

const Exporter& exporter_of(std::string_view name, std::string_view also) {
  std::vector<std::string_view> known;
  for (const Exporter& one : exporters()) {
    if (one.name == name) return one;
    known.push_back(one.name);
  }
  if (!also.empty()) known.push_back(also);
  refuse_name("--for", name, known);
}

namespace {

constexpr std::string_view kDegreesOfRow = "parallel.context";

// What no framework can be told through flags.
constexpr Gap kGapsOfAll[] = {
    {"frozen",
     [](const ExportedRow& r) {
       const Training& training = r.model().training;
       if (training.frozen == 0 || training.adapted != 0) return std::string();
       const int layers = training.frozen_layers;
       return layers > 0 ? "the first " + counted(layers, "layer") : std::string("parts of the model");
     },
     "what is frozen is said of parameters, in your script",
     "requires_grad_(False) before the optimizer is made"},
    {kDegreesOfRow,
     [](const ExportedRow& r) {
       const std::string& name = r.row.run.name;
       const bool own =
           r.row.run.policy().derives == Derives::groups || name == "flexsp" || name == "dynamic-cp";
       const std::string groups = all_joined(r.row.run.pack.groups, ", ", [](const Group& g) {
         return std::to_string(g.length) + ":" + std::to_string(g.context);
       });
       if (own) return "by micro-batch" + (groups.empty() ? "" : " (groups " + groups + ")");
       const std::set<int> degrees = other_degrees(r.row);
       if (degrees.empty()) return std::string();
       return "of some lanes " + all_joined(degrees, ", ", [](int degree) { return std::to_string(degree); });
     },
     "one CP degree holds for all micro-batches",
     "a policy without degrees of its own (Megatron-LM has --hybrid-context-parallel without a pipeline)"},
    {"framework.loss",
     [](const ExportedRow& r) {
       return exported::found_if(r.framework().loss == LossKind::chunked, "chunked");
     },
     "a loss that holds no logits is put into the model's own code",
     "fused; in models of Hugging Face Liger Kernel's apply_liger_kernel_to_YOUR_MODEL (verl: "
     "model.use_liger=True)"},
    {"model",
     [](const ExportedRow& r) {
       const ModelShape& m = r.model();
       std::vector<std::string> mixers;
       if (m.recurrence) mixers.push_back("layers of " + std::string(m.recurrence->facts().name));
       if (m.gated_attention) mixers.emplace_back("attention whose output a gate scales");
       if (m.indexer) mixers.emplace_back("attention to keys that an indexer chooses");
       if (m.parallel_ffn) mixers.emplace_back("attention and FFN side by side");
       return all_joined(mixers);
     },
     "the mixers of layers are your model's own",
     "a model class that has them (Megatron-LM: --hybrid-layer-pattern, --attention-output-gate, "
     "--experimental-attention-variant dsa)"},
    {"stage_attention_exchange",
     [](const ExportedRow& r) { return exported::found_if(r.layout().evens_out_stages(), "true"); },
     "stages attend to their own micro-batches", "slices of equal work (policy sequence-slices)"},
    {"parallel.activation_offload",
     [](const ExportedRow& r) {
       const double share = r.layout().activation_offload;
       return share > 0 ? fixed(share, 2) : std::string();
     },
     "frameworks offload whole layers or modules, not a share of each",
     "cpu_offloading_num_layers, or fine-grained activation offloading of as many modules"},
};

}  // namespace

Notes lost_notes(const Exporter& to, const ExportedRow& row) {
  Notes lost;
  const auto add = [&](std::string_view key, const std::string& found, std::string_view why,
                       const std::string& nearest) {
    lost.push_back(
        {"not_expressed", "", {{"key", key}, {"found", found}, {"why", why}, {"nearest", nearest}}});
  };
  const std::string& preset = row.study.framework.preset.name;
  if (to.presets.find(preset + " ") == std::string_view::npos)
    add("framework", preset, "the times are of its kernels and its overlap",
        concatenated("--set framework=", to.presets.substr(0, to.presets.find(' ')), ", before it is tuned"));
  for (const std::span<const Gap> gaps : {to.gaps, std::span<const Gap>(kGapsOfAll)})
    for (const Gap& gap : gaps)
      if (const std::string found = gap.found(row); !found.empty())
        add(gap.key, printable(found), gap.why, std::string(gap.nearest));
  return lost;
}

std::pair<std::string, std::string> untold(const Exporter& to, const Study& study, Untold part) {
  PolicyResult row;
  row.run = study.policies.front();
  row.layout = study.layout;
  std::vector<std::string_view> asked = {"parallel.context_comm"};
  if (part == Untold::layout) {  // as if its row had no keys of its own
    row.run.schedule.clear();
    row.run.recompute_by_stage = false;
    for (const Gap& gap : to.gaps)
      if (gap.key.starts_with("parallel.") || gap.key == "schedule" || gap.key == "recompute")
        asked.push_back(gap.key);
  } else {
    asked.push_back(kDegreesOfRow);
    if (row.run.schedule_auto) row.run.schedule = "seq1f1b";  // the row may choose its schedule
    if (!row.run.schedule.empty()) asked.push_back("schedule");
    row.layout.context_comm = row.run.context_comm.value_or(ContextComm{});
    row.layout.context = row.run.context_comm ? std::max(2, row.layout.context) : 1;
  }
  for (const std::span<const Gap> gaps : {to.gaps, std::span<const Gap>(kGapsOfAll)})
    for (const Gap& gap : gaps)
      if (std::find(asked.begin(), asked.end(), gap.key) != asked.end())
        if (const std::string found = gap.found({study, row}); !found.empty())
          return {std::string(gap.key), "--for " + std::string(to.name) + ": " + std::string(gap.key) + " " +
                                            printable(found) + ": " + std::string(gap.why)};
  return {};
}

namespace {

// Quotes a text so that a shell takes it as one word.
std::string quoted(const std::string& text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./=+:,%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string word_of(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string comments(const Exporter& to, const ExportedRow& row, const Notes& notes) {
  std::string text = "# " + printable(row.study.name + ": " + row.row.run.label) + ", for " +
                     std::string(to.source) + "\n# " + std::string(to.use) + "\n# " +
                     counted(row.layout().gpus(), "GPU") + "; simulated: " + simulated_text(row.row) + "\n";
  for (const Note& note : notes) text += "# " + text_of(note) + "\n";
  return text;
}

// The flags as an array of a shell, one per line.
std::string arguments_text(const Exporter& to, const ExportedRow& row) {
  std::string text = "ARGUMENTS=(\n";
  for (const Setting& setting : to.settings) {
    const ordered_json value = setting.value(row);
    if (value.is_null() || value == false) continue;
    text += "  " + std::string(setting.name);
    if (value.is_array())
      for (const ordered_json& word : value) text += " " + quoted(word_of(word));
    else if (value != true)
      text += " " + quoted(word_of(value));
    text += "\n";
  }
  return text + ")\n";
}

std::string overrides_text(const Exporter& to, const ExportedRow& row) {
  std::string text = "OVERRIDES=(\n";
  for (const Setting& setting : to.settings)
    if (const ordered_json value = setting.value(row); !value.is_null())
      text += "  " + quoted(std::string(setting.name) + "=" + word_of(value)) + "\n";
  return text + ")\n";
}

ordered_json tree_of(const Exporter& to, const ExportedRow& row) {
  ordered_json tree = ordered_json::object();
  for (const Setting& setting : to.settings) {
    const ordered_json value = setting.value(row);
    if (value.is_null()) continue;
    ordered_json* node = &tree;
    std::string_view path = setting.name;
    for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
      node = &(*node)[std::string(path.substr(0, dot))];
      path.remove_prefix(dot + 1);
    }
    (*node)[std::string(path)] = value;
  }
  return tree;
}

// TOML with two levels, a section for each object. JSON's strings, numbers and lists are valid TOML.
std::string toml_text(const ordered_json& tree) {
  std::string text;
  for (const auto& [section, keys] : tree.items()) {
    text += "\n[" + section + "]\n";
    for (const auto& [key, value] : keys.items()) text += key + " = " + value.dump() + "\n";
  }
  return text;
}

}  // namespace

std::string simulated_text(const PolicyResult& row) {
  const Metrics& m = row.metrics;
  if (!m.step_seconds) return "no step ran (" + printable(reason_text(row.reasons)) + ")";
  return fixed(*m.step_seconds, 3) + " s per step of " +
         grouped(std::llround(m.tokens_per_step.value_or(0))) + " tokens, " +
         fixed(m.tokens_per_second_per_gpu.value_or(0), 0) + " tokens/s/GPU";
}

std::string export_text(const Exporter& to, const ExportedRow& row, const Notes& notes) {
  const std::string text = comments(to, row, notes);
  if (to.form == ExportForm::arguments) return text + arguments_text(to, row);
  if (to.form == ExportForm::overrides) return text + overrides_text(to, row);
  ordered_json tree = tree_of(to, row);
  if (to.form == ExportForm::toml) return text + toml_text(tree);
  // JSON has no comments, so notes go under a key that DeepSpeed ignores.
  ordered_json lines = ordered_json::array();
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    lines.push_back(text.substr(begin + 2, text.find('\n', begin) - begin - 2));
  ordered_json file = {{"_comment", std::move(lines)}};
  file.update(tree);
  return file.dump(2) + "\n";
}

std::string slurm_script(const SlurmJob& job) {
  std::string work = job.sweep.empty() ? "tune" : "study";
  std::string words;
  for (const std::string& value : job.set) words += " --set " + quoted(value);
  for (const std::string& axis : job.sweep) words += " --sweep " + quoted(axis);
  const std::string what = job.sweep.empty() ? "search" : "sweep";
  return "#!/bin/bash\n"
         "# The " +
         what + " of a study as " + counted(job.tasks, "task") +
         " of one array job.\n"
         "# `bash THIS_FILE` submits it and, after it, the merge; a task that is submitted again goes on "
         "where it was.\n" +
         (job.sweep.empty() ? "# --budget and --minutes of `equipoise tune` go into the last command.\n"
                            : "") +
         "# What your cluster asks for, for the tasks and the merge: export SBATCH_ACCOUNT=, "
         "SBATCH_PARTITION=, SBATCH_TIMELIMIT=.\n"
         "#SBATCH --job-name=equipoise\n"
         "#SBATCH --array=0-" +
         std::to_string(job.tasks - 1) +
         "\n"
         "#SBATCH --nodes=1\n#SBATCH --ntasks=1\n"
         "#SBATCH --cpus-per-task=8\n"
         "set -euo pipefail\n"
         "STUDY=" +
         quoted(job.file) +
         "\n"
         "OUT=${OUT:-equipoise-out}\n"
         "EQUIPOISE=${EQUIPOISE:-equipoise}\n"
         "if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then\n"
         "  job=$(sbatch --parsable \"$0\")\n"
         "  sbatch --dependency=afterok:\"${job%%;*}\" --wrap \"'$EQUIPOISE' merge '$OUT' '$OUT-parts'\"\n"
         "  exit\n"
         "fi\n"
         "\"$EQUIPOISE\" " +
         work + " \"$STUDY\"" + words + " --shard \"$SLURM_ARRAY_TASK_ID/" + std::to_string(job.tasks) +
         "\" \\\n"
         "  --out \"$OUT-parts\" --resume --jobs \"${SLURM_CPUS_PER_TASK:-1}\" --quiet\n";
}

}  // namespace equipoise
