#include "sim/report/comparison.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/screen.h"
#include "sim/report/standing.h"
#include "sim/report/study_screen.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string saved_table(const SavedResult& saved) {
  const StudyResult& result = saved.result;
  const ComparisonTable comparison = comparison_of(result);
  TextTable table(comparison.header);
  if (!all_ok(result)) table.align_left(1);
  for (const std::vector<std::string>& row : comparison.rows) table.add(row);
  std::string text = printable(saved.study) + "\n" + table.text();
  if (const std::optional<Note> found = finding_of(saved))
    text += "Fastest: " + printable(text_of(*found)) + "\n";
  const auto [warnings, others] = noted_of(result.notes, result);
  for (const Warning& warning : warnings) text += "warning: " + printable(warning.text) + "\n";
  for (const std::string& note : others) text += "note: " + printable(note) + "\n";
  return text;
}

std::string saved_csv(const SavedResult& saved) {
  std::string text = "policy,status";
  for (const ResultColumn& column : result_columns())
    if (column.is_metric()) text += "," + std::string(column.key);
  for (const PolicyResult& row : saved.result.policies) {
    text += "\n" + csv_cell(row.run.label) + "," + name_of(row.status);
    const json metrics = metrics_json(row.metrics);
    for (const ResultColumn& column : result_columns())
      if (column.is_metric()) {
        const json& value = metrics.at(column.key);
        text += "," + (value.is_number() ? value.dump() : std::string());
      }
  }
  return text + "\n";
}

std::string saved_page(const SavedResult& saved) {
  const fs::path folder =
      fs::is_directory(saved.path) ? fs::path(saved.path) : fs::path(saved.path).parent_path();
  const std::string file = (folder / "report.html").string();
  if (!fs::exists(file))
    throw UserError(
        file +
        ": not there, and summary.json and steps.csv hold no pipelines, no memory by stage and no "
        "loads of GPUs: `study --out` writes them; without --out the table is printed");
  const std::string text = read_text_file(file);
  forget_input(file);  // a page may be made again from what it holds
  const auto between = [&](std::string_view begin, std::string_view end) {
    const std::size_t from = text.find(begin);
    const std::size_t to = from == std::string::npos ? from : text.find(end, from + begin.size());
    if (to == std::string::npos) throw UserError(file + ": expected a page that `study --out` wrote");
    return text.substr(from + begin.size(), to - from - begin.size());
  };
  const std::string content = between("<main id=\"report\">\n", "\n<noscript>");
  const json data = parse_json(between("id=\"data\">", "</script>"), file);
  return html_page({saved.study, content}, data);
}

namespace {

std::string word_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Lists each leaf by its path: parallel.context, policies[1].queues.
void flatten(const json& node, const std::string& path, std::map<std::string, std::string>& leaves) {
  if (node.is_object() && !node.empty())
    for (const auto& [key, value] : node.items())
      flatten(value, path.empty() ? key : path + "." + key, leaves);
  else if (node.is_array() &&
           std::any_of(node.begin(), node.end(), [](const json& n) { return n.is_object(); }))
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten(node[i], path + "[" + std::to_string(i) + "]", leaves);
  else
    leaves[path] = word_of(node);
}

// The settings that led to a result, without its figures.
std::map<std::string, std::string> settings_of(const json& summary, const json& other) {
  std::map<std::string, std::string> leaves;
  json study = summary["study"];
  study.erase("notes");
  if (study.contains("settings")) flatten(study["settings"], "", leaves);
  study.erase("settings");
  flatten(study, "result", leaves);
  flatten(summary.value("version", json(nullptr)), "program version", leaves);
  flatten(summary.value("baseline", json(nullptr)), "baseline", leaves);
  if (const json own = summary.value("receipt", json()), theirs = other.value("receipt", json());
      own.is_object() && theirs.is_object()) {
    flatten(own.value("options", json()), "option", leaves);
    const json inputs = own.value("inputs", json());
    for (const auto& [what, hash] : inputs.items())
      leaves["contents of " + what + " (sha256)"] = word_of(hash).substr(0, 12);
  }
  for (const json& policy : summary["policies"]) {
    const std::string row = policy["label"].get<std::string>() + ": ";
    const auto is_shared = [&](const json& theirs) { return theirs["label"] == policy["label"]; };
    if (std::none_of(other["policies"].begin(), other["policies"].end(), is_shared)) continue;
    for (const char* key : {"policy", "shard"}) flatten(policy.value(key, json()), row + key, leaves);
    const json provenance = policy.value("provenance", json::object());
    for (const char* key : {"profile", "framework", "kernels", "slowdowns"})
      flatten(provenance.value(key, json()), row + key, leaves);
    const json derived = provenance.value("derived", json());  // sizes that follow from the settings
    for (const auto& [key, value] : derived.items()) flatten(value, "derived for " + row + key, leaves);
  }
  return leaves;
}

std::vector<Difference> differences_between(const json& before, const json& after) {
  const auto first = settings_of(before, after), second = settings_of(after, before);
  std::vector<Difference> list;
  for (const auto& [key, value] : first) {
    const auto other = second.find(key);
    if (other == second.end() || other->second != value)
      list.push_back({key, value, other == second.end() ? "-" : other->second});
  }
  for (const auto& [key, value] : second)
    if (!first.contains(key)) list.push_back({key, "-", value});
  return list;
}

RowChange change_of(const PolicyResult& before, const PolicyResult& after, std::size_t batches,
                    const std::optional<ExpectedError>& model) {
  RowChange change{before.run.label, &before, &after, ratio_of(after, before, batches, model), ""};
  const std::string was = name_of(before.status), is = name_of(after.status);
  const auto& [ratio, low, high, model_low, model_high] = change.ratio;
  if (was != is)
    change.verdict = was + " -> " + is;
  else if (!ratio)
    change.verdict = is;
  else if (*ratio == 1)
    change.verdict = "the same";
  else if (change.ratio.tied().value_or(false))
    change.verdict = "tied";
  else
    change.verdict = concatenated(low ? "significantly " : "", *ratio > 1 ? "faster" : "slower",
                                  before.layout.gpus() == after.layout.gpus() ? "" : " per GPU",
                                  low ? "" : " (no interval)");
  return change;
}

// "faster: wlb 1.05x; the same: plain-4d".
std::string verdict_of_rows(const std::vector<RowChange>& rows) {
  std::vector<std::string> kinds;
  std::string text;
  for (const RowChange& row : rows)
    if (std::find(kinds.begin(), kinds.end(), row.verdict) == kinds.end()) kinds.push_back(row.verdict);
  for (const std::string& kind : kinds) {
    std::vector<std::string> names;
    for (const RowChange& row : rows)
      if (row.verdict == kind)
        names.push_back(listed(row.label) + (row.ratio.ratio && *row.ratio.ratio != 1
                                                 ? " " + fixed(*row.ratio.ratio, 3) + "x"
                                                 : ""));
    text += (text.empty() ? "" : "; ") + kind + ": " + all_joined(names);
  }
  return text;
}

std::int64_t gpus_of(const StudyResult& result) {
  return result.policies.empty() ? 0 : result.policies.front().layout.gpus();
}

// The hash of the documents in a result's receipt; empty without one.
std::string hash_of_documents(const SavedResult& saved) {
  static const json::json_pointer kPlace("/receipt/inputs/documents");
  if (!saved.summary.contains(kPlace) || !saved.summary.at(kPlace).is_string()) return "";
  return saved.summary.at(kPlace).get<std::string>();
}

// Without receipts a trace's name decides, which depends on the folder that a run began in.
bool have_same_documents(const SavedResult& before, const SavedResult& after) {
  const std::string one = hash_of_documents(before), other = hash_of_documents(after);
  if (!one.empty() && !other.empty()) return one == other;
  return before.result.trace_origin == after.result.trace_origin &&
         before.result.documents == after.result.documents && before.result.tokens == after.result.tokens;
}

}  // namespace

SavedComparison compare_saved(const SavedResult& before, const SavedResult& after) {
  SavedComparison found;
  const StudyResult &one = before.result, &other = after.result;
  found.same_documents = have_same_documents(before, after);
  const std::size_t batches = found.same_documents ? std::min(one.batches, other.batches) : 0;
  const bool one_kind = one.expected_error && other.expected_error &&
                        one.expected_error->nearest == other.expected_error->nearest;
  const auto expected_error = one_kind ? other.expected_error : std::nullopt;
  for (const PolicyResult& row : one.policies) {
    if (const PolicyResult* match = row_with_label(other, row.run.label))
      found.rows.push_back(change_of(row, *match, batches, expected_error));
    else
      found.rows.push_back({row.run.label, &row, nullptr, {}, "only in the first"});
  }
  for (const PolicyResult& row : other.policies)
    if (row_with_label(one, row.run.label) == nullptr)
      found.rows.push_back({row.run.label, nullptr, &row, {}, "only in the second"});
  found.differences = differences_between(before.summary, after.summary);
  found.verdict = verdict_of_rows(found.rows);
  return found;
}

namespace {

// The columns whose figures are shown side by side, by the beginning of their titles.
constexpr std::string_view kPaired[] = {"step s", "tokens/s/GPU",  "speed-up",
                                        "delay",  "mem. free GiB", "pack ms"};

std::string pair_text(const RowChange& row, std::string_view title) {
  const auto side = [&](const PolicyResult* of) {
    return of == nullptr ? std::string("-") : cell_of(*of, title, true);
  };
  const std::string before = side(row.before), after = side(row.after);
  return before == "-" && after == "-" ? "-" : before + " -> " + after;
}
std::string ratio_text(const RowChange& row) {
  const auto& [ratio, low, high, model_low, model_high] = row.ratio;
  if (!ratio) return "-";
  const std::string text = fixed(*ratio, 3) + "x";
  return low && high ? text + " (" + fixed(*low, 3) + "-" + fixed(*high, 3) + ")" : text;
}

// The interval of the prediction of a row's ratio, which decides ties, too.
std::string prediction_text(const RowChange& row) {
  const RowRatio& ratio = row.ratio;
  return ratio.model_low && ratio.model_high ? fixed(*ratio.model_low, 3) + "-" + fixed(*ratio.model_high, 3)
                                             : "-";
}

std::vector<std::string> header_of_pairs() {
  std::vector<std::string> header = {"policy"};
  header.insert(header.end(), std::begin(kPaired), std::end(kPaired));
  header.insert(header.end(), {"second/first (95 %)", "prediction (90 %)", "verdict"});
  return header;
}

std::vector<std::string> cells_of(const RowChange& row) {
  std::vector<std::string> cells = {row.label};
  for (const std::string_view title : kPaired) cells.push_back(pair_text(row, title));
  cells.insert(cells.end(), {ratio_text(row), prediction_text(row), row.verdict});
  return cells;
}

std::string titles(const SavedResult& before, const SavedResult& after) {
  const auto title = [](const SavedResult& r) { return printable(r.path) + " (" + printable(r.study) + ")"; };
  return title(before) + " -> " + title(after);
}

// What the ratios are of, and what decides a tie.
std::string ratio_note(const SavedResult& before, const SavedResult& after, const SavedComparison& found) {
  std::string text = "Times are simulated.";
  if (std::ranges::none_of(found.rows, [](const RowChange& row) { return row.ratio.ratio.has_value(); }))
    return text;
  const auto any = [&](Metric RowRatio::*bound) {
    return std::ranges::any_of(found.rows,
                               [&](const RowChange& row) { return (row.ratio.*bound).has_value(); });
  };
  text += !found.same_documents ? " The runs trained other documents: ratios have no interval."
          : any(&RowRatio::low)
              ? " Both runs trained the same documents: intervals are a paired bootstrap of their steps."
              : " Their steps are too few for intervals.";
  if (gpus_of(before.result) != gpus_of(after.result))
    text += concatenated(" The first used ", counted(gpus_of(before.result), "GPU"), ", the second ",
                         gpus_of(after.result), ": ratios are per GPU.");
  if (any(&RowRatio::low))
    text += any(&RowRatio::model_low)
                ? " Two rows are tied if either interval contains 1: the one of sampling or that of the "
                  "prediction."
                : " The error of the prediction of these ratios is not known, so that it decides no tie.";
  return text;
}

}  // namespace

std::string comparison_text(const SavedResult& before, const SavedResult& after, const SavedComparison& found,
                            std::size_t width) {
  constexpr Expendable kExpendableOfPairs[] = {{"pack ms", std::string::npos},
                                               {"speed-up", std::string::npos},
                                               {"delay", std::string::npos},
                                               {"step s", std::string::npos},
                                               {"mem. free GiB", std::string::npos},
                                               {"prediction (90 %)", 12},
                                               {"tokens/s/GPU", 12}};
  ComparisonTable table{header_of_pairs(), {}};
  for (const RowChange& row : found.rows) table.rows.push_back(cells_of(row));
  std::string text = folded(titles(before, after), width);
  text += fitted_text(std::move(table), {.width = width, .expendable = kExpendableOfPairs});
  text += folded(printable(found.verdict) + '.', width);
  TextTable settings({"what differs", "first", "second"});
  for (const std::size_t left : {1U, 2U}) settings.align_left(left);
  for (const Difference& d : found.differences) settings.add({d.key, d.before, d.after});
  text += found.differences.empty() ? "Their settings do not differ.\n" : settings.text(width);
  return text + folded("(" + ratio_note(before, after, found) + ")", width);
}

ordered_json comparison_json(const SavedResult& before, const SavedResult& after,
                             const SavedComparison& found) {
  const auto value = [](const std::optional<double>& v) {
    return v ? ordered_json(*v) : ordered_json(nullptr);
  };
  const auto side = [](const PolicyResult* row) -> ordered_json {
    if (row == nullptr) return nullptr;
    ordered_json node = {{"status", name_of(row->status)},
                         {"gpus", row->layout.gpus()},
                         {"reason", row->reasons.empty() ? json(nullptr) : json(reason_text(row->reasons))}};
    const json metrics = metrics_json(row->metrics);
    for (const char* key : {"step_seconds", "tokens_per_second_per_gpu", "speedup", "peak_memory_bytes"})
      node[key] = metrics.at(key);
    node["pack_ms"] = row->pack_ms > 0 ? json(row->pack_ms) : json(nullptr);
    // Results of before kernel times were kept have none.
    node["beyond_samples_share"] =
        row->use.seconds > 0 ? json(beyond_samples_share(row->use)) : json(nullptr);
    node["notes"] = json(row->notes);
    return node;
  };
  ordered_json rows = ordered_json::array(), differences = ordered_json::array();
  for (const RowChange& row : found.rows)
    rows.push_back({{"label", row.label},
                    {"first", side(row.before)},
                    {"second", side(row.after)},
                    {"ratio", value(row.ratio.ratio)},
                    {"low", value(row.ratio.low)},
                    {"high", value(row.ratio.high)},
                    {"model_low", value(row.ratio.model_low)},
                    {"model_high", value(row.ratio.model_high)},
                    {"verdict", row.verdict}});
  for (const Difference& d : found.differences)
    differences.push_back({{"key", d.key}, {"first", d.before}, {"second", d.after}});
  return {{"schema", "equipoise.comparison/1"},      {"first", printable(before.path)},
          {"second", printable(after.path)},         {"verdict", found.verdict},
          {"same_documents", found.same_documents},  {"rows", std::move(rows)},
          {"differences", std::move(differences)},   {"first_notes", json(before.result.notes)},
          {"second_notes", json(after.result.notes)}};
}

std::string comparison_csv(const SavedComparison& found) {
  std::string text =
      "policy,first_step_seconds,second_step_seconds,first_status,second_status,ratio,low,high,model_low,"
      "model_high,verdict\n";
  const auto cell = [](const std::optional<double>& v) { return v ? json(*v).dump() : std::string(); };
  const auto step = [&](const PolicyResult* row) {
    return row == nullptr ? std::string() : cell(row->metrics.step_seconds);
  };
  const auto status = [](const PolicyResult* row) {
    return row == nullptr ? std::string() : std::string(name_of(row->status));
  };
  for (const RowChange& row : found.rows)
    text += csv_cell(row.label) + "," + step(row.before) + "," + step(row.after) + "," + status(row.before) +
            "," + status(row.after) + "," + cell(row.ratio.ratio) + "," + cell(row.ratio.low) + "," +
            cell(row.ratio.high) + "," + cell(row.ratio.model_low) + "," + cell(row.ratio.model_high) + "," +
            csv_cell(row.verdict) + "\n";
  return text;
}

std::string comparison_page(const SavedResult& before, const SavedResult& after,
                            const SavedComparison& found) {
  std::vector<std::vector<std::string>> changes;
  for (const RowChange& row : found.rows) changes.push_back(cells_of(row));
  std::string headline = found.verdict;
  headline.replace(0, 1, 1, static_cast<char>(std::toupper(static_cast<unsigned char>(headline.front()))));
  std::string content = html_head(titles(before, after), headline, {ratio_note(before, after, found)}, {}) +
                        "<section id=\"changes\">\n<h2>Row by row</h2>\n" +
                        html_table("changes-table", header_of_pairs(), changes) + "</section>\n";
  for (const RowChange& row : found.rows)
    if (row.after != nullptr && !row.after->reasons.empty())
      content += html_paragraph(row.label + ": " + reason_text(row.after->reasons), "reason");
  if (!found.differences.empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const Difference& d : found.differences) rows.push_back({d.key, d.before, d.after});
    content += "<section id=\"settings\">\n<h2>What differs</h2>\n" +
               html_table("settings-table", {"what differs", "first", "second"}, rows) + "</section>\n";
  }
  return html_page({"Two results: " + found.verdict, content},
                   {{"schema", "equipoise.report/1"},
                    {"kind", "comparison"},
                    {"comparison", comparison_json(before, after, found)}});
}

}  // namespace equipoise
