#include "sim/report/study_screen.h"

#include <algorithm>
#include <filesystem>
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

constexpr std::size_t kMostLines = 25, kWordWidth = 10;

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

// A column of result_columns() by its title, and the heading that replaces it here.
struct ScreenColumn {
  std::string_view title, shown;
};
constexpr ScreenColumn kScreenColumns[] = {
    {"tokens/s/GPU", "tokens/s/GPU"}, {"speed-up (95 %)", "speed-up (95 %)"}, {"MFU %", "MFU %"},
    {"mem. free GiB", "free GiB"},    {"delay (steady, max)", "mean delay"},  {"runs in", "runs in"}};

std::string clipped(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width) return text;
  std::string kept;
  for (std::size_t i = 0; i < text.size() && columns_of(kept) + 3 < width; ++i) {
    kept += text[i];
    while (i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xC0U) == 0x80U)
      kept += text[++i];
  }
  return kept + "...";
}

// Words in lines of at most `width` columns. `more` ends each line but the last.
std::vector<std::string> wrapped(std::span<const std::string> words, std::size_t width,
                                 const std::string& more = "") {
  std::vector<std::string> lines(1);
  for (const std::string& word : words) {
    std::string& line = lines.back();
    if (line.empty() || columns_of(line) + 1 + columns_of(word) + more.size() <= width) {
      line += (line.empty() ? "" : " ") + word;
    } else {
      line += more;
      lines.push_back(word);
    }
  }
  return lines;
}

// A number stays on the line of its "%".
std::vector<std::string> words_of(const std::string& text, std::size_t width) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    if (text.compare(end, 2, " %") == 0) end = std::min(text.find(' ', end + 1), text.size());
    words.push_back(clipped(text.substr(begin, end - begin), width));
    begin = end + 1;
  }
  return words;
}

// The lines below the table. Each part may be cut to a number of lines where the screen has no room for all;
// the end of it that says what to do is never cut.
class Lines {
 public:
  explicit Lines(std::size_t width) : columns_(width - kWordWidth) {}

  void add(std::string_view word, std::string text, std::size_t least, const std::string& advice = "") {
    text.resize(text.size() - advice.size());
    Part part{std::string(word),
              words_of(printable(text), columns_),
              words_of(printable(advice), columns_),
              {},
              least};
    part.lines = wrapped(joined_words(part.words, part.advice), columns_);
    parts_.push_back(std::move(part));
  }
  // A command is never cut, and may be pasted into a shell as it is.
  void add_command(std::string_view word, std::span<const std::string> words) {
    parts_.push_back({std::string(word), {}, {}, wrapped(words, columns_, " \\"), words.size()});
  }

  // Whether they then have at most so many lines.
  bool cut_to(std::size_t room) {
    for (auto part = parts_.rbegin(); part != parts_.rend() && size() > room; ++part)
      cut(*part, std::max(part->least, part->lines.size() - std::min(part->lines.size(), size() - room)));
    return size() <= room;
  }

  [[nodiscard]] std::string text() const {
    std::string all;
    for (const Part& part : parts_)
      for (std::size_t i = 0; i < part.lines.size(); ++i) {
        std::string word = i == 0 ? part.word : "";
        word.resize(kWordWidth, ' ');
        all += word + part.lines[i] + '\n';
      }
    return all;
  }

 private:
  struct Part {
    std::string word;
    std::vector<std::string> words, advice;
    std::vector<std::string> lines;
    std::size_t least;  // lines that are never cut
  };

  static std::vector<std::string> joined_words(std::vector<std::string> words,
                                               const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  [[nodiscard]] std::size_t size() const {
    std::size_t lines = 0;
    for (const Part& part : parts_) lines += part.lines.size();
    return lines;
  }

  // Before words that say what to do the text ends with a clause: a half one would be read on into them.
  void cut(Part& part, std::size_t lines) {
    while (part.lines.size() > lines && !part.words.empty()) {
      part.advice.empty() ? part.words.pop_back() : drop_clause(part.words);
      std::vector<std::string> shown = part.words;
      shown.emplace_back(part.advice.empty() ? "..." : "...;");
      part.lines = wrapped(joined_words(shown, part.advice), columns_);
    }
  }

  // Removes what follows the last comma, colon or opening bracket; the last word where there is none.
  static void drop_clause(std::vector<std::string>& words) {
    const auto ends_clause = [](const std::string& word) {
      return word.ends_with(',') || word.ends_with(':');
    };
    std::size_t end = words.size() - 1;
    while (end > 0 && !words[end].starts_with('(') && !ends_clause(words[end - 1])) --end;
    if (end == 0) return words.pop_back();
    words.resize(end);
    if (ends_clause(words.back())) words.back().pop_back();
  }

  std::size_t columns_;
  std::vector<Part> parts_;
};

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

bool is_interrupted(const PolicyResult& row) {
  return !row.reasons.empty() && row.reasons.front().kind == "interrupted_row";
}

std::vector<std::string> cells_of(const PolicyResult& row) {
  std::vector<std::string> cells = {row.run.label + (row.memory_ignored ? " (oom, ignored)" : "")};
  for (const ScreenColumn& column : kScreenColumns)
    cells.push_back(cell_of(row, column.title, column.title.starts_with("delay")));
  if (!row.simulated()) cells[1] = is_interrupted(row) ? "interrupted" : name_of(row.status);
  return cells;
}

void drop_column(ComparisonTable& table, std::size_t place) {
  table.header.erase(table.header.begin() + static_cast<std::ptrdiff_t>(place));
  for (auto& row : table.rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(place));
}

// The columns of all cells but a row's first.
std::size_t width_of_others(const ComparisonTable& table) {
  std::size_t others = 0;
  for (std::size_t c = 1; c < table.header.size(); ++c) {
    std::size_t widest = columns_of(table.header[c]);
    for (const auto& row : table.rows) widest = std::max(widest, columns_of(row[c]));
    others += 2 + widest;
  }
  return others;
}

// The table without uninformative columns: if no row delays tokens, or all rows run in the framework. A
// narrow screen has room for labels rather than for MFU.
std::string table_text(const StudyResult& result, std::size_t width) {
  ComparisonTable table{{"policy"}, {}};
  for (const ScreenColumn& column : kScreenColumns) table.header.emplace_back(column.shown);
  for (const PolicyResult& row : result.policies) table.rows.push_back(cells_of(row));
  const auto all_of_column = [&](std::size_t place, std::initializer_list<std::string_view> nothing) {
    return std::ranges::all_of(table.rows,
                               [&](const auto& row) { return std::ranges::count(nothing, row[place]) > 0; });
  };
  if (all_of_column(6, {"-", "yes"})) drop_column(table, 6);
  if (all_of_column(5, {"-", "0.00"})) drop_column(table, 5);
  std::size_t longest = 0;
  for (const auto& row : table.rows) longest = std::max(longest, columns_of(printable(row.front())));
  if (width < kScreenWidth && longest + width_of_others(table) > width) drop_column(table, 3);
  const std::size_t others = width_of_others(table);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    const std::string label = printable(table.rows[i].front());
    const std::string chosen = row.simulated() ? label + chosen_text(row) : label;
    const bool has_room = columns_of(chosen) + others <= width;  // else the notes alone have it
    table.rows[i].front() = clipped(has_room ? chosen : label, width - std::min(width, others));
  }
  TextTable text(table.header);
  for (auto& row : table.rows) text.add(std::move(row));
  return text.text();
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
  const std::string batch = study.batch.documents_per_step > 0
                                ? counted(study.batch.documents_per_step, "document") + " a step"
                                : window_text(study.batch.context_window) + " window";
  const auto head = [&](bool all) {
    const std::string axes = axes_of(study.layout, all);
    return concatenated(study.model.name, ", ", batch, ", ", counted(study.layout.gpus(), "GPU"),
                        axes.empty() ? "" : " (" + axes + ")", ", ", result.profile, ", framework ",
                        study.framework.preset.name, ", simulated");
  };
  const std::string full = head(true);
  return full.size() <= width ? full : clipped(head(false), width);
}

// Quotes a word for a shell, unless no letter in it is special.
std::string word_of(const std::string& text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./:=+-,").find(c) != std::string_view::npos;
  });
  if (is_plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

using Command = std::vector<std::string>;  // words of a shell

// What to type next: the fastest row as a job, then a search over layouts.
std::vector<Command> next_of(const Study& study, const StudyResult& result, const ScreenContext& typed) {
  const bool is_file = typed.job.empty();
  const auto command = [&](const char* name, std::initializer_list<std::string> options) {
    Command words = {"equipoise", name, is_file ? word_of(study.file) : "study.json"};
    for (const std::string& assignment : typed.set) words.insert(words.end(), {"--set", word_of(assignment)});
    words.insert(words.end(), options);
    return words;
  };
  const PolicyResult* first = standing_of(result).first;
  const bool may_recompute =
      study.layout.recompute != Recompute::full && study.layout.recompute != Recompute::automatic;
  const Command recomputed = command("study", {"--set", "parallel.recompute=auto"});
  if (first == nullptr)
    return may_recompute ? std::vector<Command>{recomputed, command("tune", {})}
                         : std::vector<Command>{command("tune", {})};
  const Command tune = command("tune", {"--max-delay", formatted("%g", result.max_delay)});
  // The framework's own rows have no room, and a row that it does not run is no job.
  if (is_file && may_recompute && first->runs_in == RunsIn::no &&
      std::ranges::any_of(result.policies, [](const PolicyResult& row) {
        return row.runs_in != RunsIn::no &&
               (row.status == RowStatus::oom || row.status == RowStatus::unplaceable);
      }))
    return {recomputed, tune};
  if (!is_file) {
    Command init = {"equipoise", "init"};
    for (const std::string& word : typed.job) init.push_back(word_of(word));
    init.insert(init.end(), {"--out", "study.json"});
    return {init, tune};
  }
  const FrameworkRuns* framework = framework_runs(study.framework.preset.name);
  const bool exports = framework != nullptr && !framework->target.empty() && first->runs_in != RunsIn::no;
  return {exports ? command("export",
                            {"--row", word_of(first->run.label), "--for", std::string(framework->target)})
                  : command("study", {"--out", "results"}),
          tune};
}

// What would make it run: all reasons after the first.
std::string advice_of_reasons(const PolicyResult& row) {
  const Notes& reasons = row.reasons;
  if (reasons.size() < 2 || row.memory_ignored) return "";
  return reason_text(Notes(reasons.begin() + 1, reasons.end()));
}

// As many warnings as have room with what to do about them, and one at least; columns of what they say that
// stay.
constexpr std::size_t kLeastWarnings = 1, kColumnsOfWarning = 40;

Lines lines_below(const Study& study, const StudyResult& result, const ScreenContext& typed,
                  const Noted& noted, std::size_t shown) {
  Lines below(typed.width);
  for (const auto& [word, says] : verdict_of(study, result))
    below.add(word, text_of(says),
              word == "Fastest"                             ? 3
              : word == "Cost" && result.tokens_of_job <= 0 ? 1
                                                            : 2);
  for (const Warning& warning : std::span(noted.warnings).first(shown))
    below.add("Warning", warning.text,
              1 + (kColumnsOfWarning + columns_of(warning.advice)) / (typed.width - kWordWidth),
              warning.advice);
  Notes more;
  if (const std::size_t left = noted.warnings.size() - shown + noted.others; left > 0)
    more.push_back({"more_notes", "", {{"notes", left}}});
  const std::string page = (std::filesystem::path(typed.out) / "report.html").string();
  below.add("Report",
            text_of(typed.out.empty() ? Note{"report_by_out", "", {{"more", more}}}
                                      : Note{"report_at", "", {{"file", page}, {"more", more}}}),
            1);
  std::string_view word = "Next";
  for (const Command& command : next_of(study, result, typed))
    below.add_command(std::exchange(word, ""), command);
  return below;
}

}  // namespace

Noted noted_of(const Study& study, const StudyResult& result) {
  Noted noted;
  std::size_t unfinished = 0;
  for (const PolicyResult& row : result.policies)
    if (is_interrupted(row))
      ++unfinished;
    else if (row.status != RowStatus::ok)
      noted.warnings.push_back({"", reason_line(row), advice_of_reasons(row)});
  if (unfinished > 0) {
    const Note incomplete{
        "incomplete", "", {{"ended", result.policies.size() - unfinished}, {"rows", result.policies.size()}}};
    noted.warnings.insert(noted.warnings.begin(), {incomplete.kind, text_of(incomplete), ""});
  }
  Notes notes = notes_of(study, result);
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
      ++noted.others;
  }
  return noted;
}

std::string study_screen(const Study& study, const StudyResult& result, const ScreenContext& typed) {
  const std::string above = head_of(study, result, typed.width) + '\n' + table_text(result, typed.width);
  const auto lines = static_cast<std::size_t>(std::ranges::count(above, '\n'));
  const std::size_t room = std::max(kMostLines, lines + 13) * kScreenWidth / typed.width - lines;
  const Noted noted = noted_of(study, result);
  std::size_t shown = std::min(kWarningsShown, noted.warnings.size());
  Lines below = lines_below(study, result, typed, noted, shown);
  while (!below.cut_to(room) && shown > kLeastWarnings)
    below = lines_below(study, result, typed, noted, --shown);
  return above + below.text();
}

}  // namespace equipoise
