#include "sim/report/study_screen.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "sim/framework/framework_runs.h"
#include "sim/report/standing.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"

namespace equipoise {
namespace {

// Kinds of notes that may change what a user does, most important first.
constexpr std::string_view kWarnings[] = {"anchored",
                                          "unlikely_nic",
                                          "network_carried",
                                          "recurrent_layers",
                                          "parallel_layers",
                                          "convolution_layers",
                                          "indexed_layers",
                                          "documents_repeated",
                                          "documents_dropped",
                                          "documents_truncated",
                                          "slices_dropped",
                                          "batches_differ",
                                          "tails",
                                          "recompute_differs",
                                          "queue_never_emptied",
                                          "queue_emptied_once",
                                          "idle_gpus",
                                          "bucket_broken",
                                          "lanes_unsynchronized",
                                          "unequal_micro_batches",
                                          "padded_packs",
                                          "network_unknown",
                                          "network_borrowed",
                                          "slowdowns_carried",
                                          "slowdowns_not_carried",
                                          "slowdowns_borrowed",
                                          "no_attention_kernel",
                                          "larger_node",
                                          "smaller_node",
                                          "part_node",
                                          "tensor_over_nodes",
                                          "no_effect",
                                          "no_effect_on_policy",
                                          "no_effect_on_shard",
                                          "key_passed_over"};

std::string window_text(std::int64_t tokens) {
  return tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K" : grouped(tokens);
}

// The sizes and the schedule that trials chose for the row, as its line shows them: " (chunk_size 64K, keep
// 4, PP 4 x 1)".
std::string chosen_text(const PolicyResult& row) {
  const PolicyRun& run = row.run;
  std::vector<std::string> chosen;
  for (const std::string_view key : run.chosen_sizes)
    chosen.push_back(
        concatenated(key, " ", window_text(std::get<std::int64_t>(pack_parameter(key)->get(run.pack)))));
  if (run.virtual_pipeline_chosen)
    chosen.push_back(concatenated("PP ", row.layout.pipeline, " x ", *run.virtual_pipeline));
  if (run.schedule_chosen) chosen.push_back(run.schedule);
  return chosen.empty() ? "" : " (" + joined(chosen) + ")";
}

std::string table_text(const StudyResult& result, std::size_t width) {
  ComparisonTable table{screen_header(), {}};
  for (const PolicyResult& row : result.policies) table.rows.push_back(screen_cells(row));
  keep_informative(table);
  // A screen of full width has room for MFU with any label.
  const TableFit fit{.width = width,
                     .expendable = std::span(kExpendable).subspan(width < kScreenWidth ? 0 : 1)};
  const std::size_t room = fit_columns(table, fit);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    const std::string chosen = table.rows[i].front() + (row.simulated() ? chosen_text(row) : "");
    if (columns_of(printable(chosen)) <= room)  // else the notes alone have it
      table.rows[i].front() = chosen;
  }
  return fitted_text(std::move(table), fit);
}

// "TP 2, CP 8, PP 4 x 2, DP 1", with EP where there are experts; `all`: axes of degree 1, too.
std::string axes_of(const Layout& l, bool all) {
  const std::string chunks = l.virtual_pipeline > 1 ? concatenated(" x ", l.virtual_pipeline) : "";
  std::vector<std::string> axes;
  for (const auto& [name, degree, more] : {std::tuple("TP ", l.tensor, ""),
                                           {"CP ", l.context, ""},
                                           {"PP ", l.pipeline, chunks.c_str()},
                                           {"DP ", l.data, ""},
                                           {"EP ", l.expert, ""}})
    if (degree > 1 || (all && std::string_view(name) != "EP "))
      axes.push_back(concatenated(name, degree, more));
  return all_joined(axes, ", ");
}

std::string head_of(const Study& study, const StudyResult& result, std::size_t width) {
  const std::string full = all_joined(head_parts(study, result, true), ", ");
  return full.size() <= width ? full : all_joined(head_parts(study, result, false), ", ");
}

using Command = std::vector<std::string>;  // words of a shell

// What to type next: the fastest row as a job, then a search over layouts.
std::vector<Command> next_of(const Study& study, const StudyResult& result, const ScreenContext& typed) {
  const bool is_file = typed.job.empty();
  const auto command = [&](const char* name, std::initializer_list<std::string> options) {
    Command words = {"equipoise", name, is_file ? word_of_shell(study.file) : "study.json"};
    for (const std::string& assignment : typed.set)
      words.insert(words.end(), {"--set", word_of_shell(assignment)});
    words.insert(words.end(), options);
    return words;
  };
  const PolicyResult* first = standing_of(result).first;
  const bool may_recompute =
      study.layout.recompute != Recompute::full && study.layout.recompute != Recompute::automatic;
  const std::initializer_list<std::string> kept = {"--out", "best"};
  const Command recomputed = command("study", {"--set", "parallel.recompute=auto"});
  if (first == nullptr)
    return may_recompute ? std::vector<Command>{recomputed, command("tune", kept)}
                         : std::vector<Command>{command("tune", kept)};
  const Command tune = command("tune", {"--max-delay", formatted("%g", result.max_delay), "--out", "best"});
  // The framework's own rows have no room, and a row that it does not run is no job.
  if (is_file && may_recompute && first->runs_in == RunsIn::no &&
      std::ranges::any_of(result.policies, [](const PolicyResult& row) {
        return row.runs_in != RunsIn::no &&
               (row.status == RowStatus::oom || row.status == RowStatus::unplaceable);
      }))
    return {recomputed, tune};
  if (!is_file) {
    Command init = {"equipoise", "init"};
    for (const std::string& word : typed.job) init.push_back(word_of_shell(word));
    init.insert(init.end(), {"--out", "study.json"});
    return {init, tune};
  }
  const FrameworkRuns* framework = framework_runs(study.framework.preset.name);
  const bool exports = framework != nullptr && !framework->target.empty() && first->runs_in != RunsIn::no;
  return {exports ? command("export", {"--row", word_of_shell(first->run.label), "--for",
                                       std::string(framework->target)})
                  : command("study", {"--out", "results"}),
          tune};
}

// What would make it run: all reasons after the first.
std::string advice_of_reasons(const PolicyResult& row) {
  const Notes& reasons = row.reasons;
  if (reasons.size() < 2 || row.memory_ignored) return "";
  return reason_text(Notes(reasons.begin() + 1, reasons.end()));
}

// What is above and below the table.
struct ScreenParts {
  std::string head;
  std::vector<VerdictLine> found;
  bool is_job = false;  // whether its cost is that of a job
  Noted noted;
  std::function<void(LabelledLines&, std::size_t)> add_last;  // takes how many notes are not shown
};

LabelledLines lines_below(const ScreenParts& parts, std::size_t width, std::size_t shown) {
  LabelledLines below(width);
  for (const auto& [word, says] : parts.found)
    below.add(word, text_of(says), word == "Fastest" ? 3 : word == "Cost" && !parts.is_job ? 1 : 2);
  const auto& [warnings, others] = parts.noted;
  for (const Warning& warning : std::span(warnings).first(shown)) below.add(warning);
  parts.add_last(below, warnings.size() - shown + others.size());
  return below;
}

// It has as many warnings as have room with what to do about them, and one at least.
std::string screen_of(const ScreenParts& parts, const StudyResult& result, std::size_t width) {
  constexpr std::size_t kLeastWarnings = 1;
  const std::string above = folded(parts.head, width) + table_text(result, width);
  const auto lines = static_cast<std::size_t>(std::ranges::count(above, '\n'));
  const std::size_t room = std::max(kScreenLines, lines + 13) * kScreenWidth / width - lines;
  std::size_t shown = std::min(kWarningsShown, parts.noted.warnings.size());
  LabelledLines below = lines_below(parts, width, shown);
  while (!below.cut_to(room) && shown > kLeastWarnings) below = lines_below(parts, width, --shown);
  return above + below.text();
}

}  // namespace

Noted noted_of(Notes notes, const StudyResult& result) {
  Noted noted;
  std::size_t unfinished = 0;
  for (const PolicyResult& row : result.policies)
    if (is_interrupted(row))
      ++unfinished;
    else if (row.status != RowStatus::ok)
      noted.warnings.push_back(
          {concatenated(name_of(row.status), ' ', row.run.label), reason_line(row), advice_of_reasons(row)});
  if (unfinished > 0) {
    const Note incomplete{
        "incomplete", "", {{"ended", result.policies.size() - unfinished}, {"rows", result.policies.size()}}};
    noted.warnings.insert(noted.warnings.begin(), {incomplete.kind, text_of(incomplete), ""});
  }
  for (const PolicyResult& row : result.policies)
    notes.insert(notes.end(), row.notes.begin(), row.notes.end());
  const auto importance = [](const Note& note) {
    return std::ranges::find(kWarnings, note.kind) - std::begin(kWarnings);
  };
  std::ranges::stable_sort(notes, {}, importance);
  for (const Note& note : notes) {
    if (importance(note) < std::ssize(kWarnings))
      noted.warnings.push_back({note.kind, text_of(note), advice_of(note)});
    else
      noted.others.push_back(text_of(note));
  }
  return noted;
}

std::vector<std::string> head_parts(const Study& study, const StudyResult& result, bool all_axes) {
  const std::string batch = study.batch.documents_per_step > 0
                                ? counted(study.batch.documents_per_step, "document") + " a step"
                                : window_text(study.batch.context_window) + " window";
  const std::string axes = axes_of(study.layout, all_axes);
  return {study.model.name,
          batch,
          counted(study.layout.gpus(), "GPU") + (axes.empty() ? "" : " (" + axes + ")"),
          result.profile,
          "framework " + study.framework.preset.name,
          "simulated"};
}

std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed) {
  const auto add_last = [&](LabelledLines& below, std::size_t notes) {
    if (!typed.is_program) return below.add_report({"report_by_frame", "", {}}, "notes", notes);
    below.add_report(page_in(typed.out), "--notes", notes);
    std::string_view word = "Next";
    for (const Command& command : next_of(study, result, typed))
      below.add_command(std::exchange(word, ""), command);
  };
  return screen_of({head_of(study, result, typed.width), verdict_of(study, result), result.tokens_of_job > 0,
                    noted_of(notes_of(study, result), result), add_last},
                   result, typed.width);
}

std::optional<Note> finding_of(const SavedResult& saved) {
  const StudyResult& result = saved.result;
  if (standing_of(result).first != nullptr &&
      std::ranges::all_of(result.policies, [](const PolicyResult& row) { return row.steps.empty(); }))
    return {};
  return fastest_line(result);
}

std::string saved_screen(const SavedResult& saved, std::size_t width) {
  const StudyResult& result = saved.result;
  std::vector<VerdictLine> found;
  if (const std::optional<Note> fastest = finding_of(saved)) found.push_back({"Fastest", *fastest});
  const auto add_last = [](LabelledLines& below, std::size_t notes) {
    below.add_report({"report_by_wide", "", {}}, "--wide", notes);
  };
  return screen_of(
      {printable(saved.study), std::move(found), false, noted_of(result.notes, result), add_last}, result,
      width);
}

}  // namespace equipoise
