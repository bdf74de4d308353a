#include "sim/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/study_table.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr double kPicoseconds = 1e12;

const json& label_of(const SavedRow& row) {
  return row.policy["label"];
}

std::string csv_label_of(const SavedRow& row) {
  return csv_cell(label_of(row).get<std::string>());
}

double number_or_zero(const json& node, const char* key) {
  const auto found = node.find(key);
  return found != node.end() && found->is_number() ? found->get<double>() : 0;
}

void read_steps(const fs::path& file, std::vector<SavedRow>& rows) {
  if (!fs::exists(file)) return;  // ratios are there without it, intervals are not
  const CsvTable table = CsvTable::read(file.string());
  for (std::size_t line = 0; line < table.rows(); ++line) {
    const auto row = std::ranges::find(rows, csv_cell(table.text(line, "policy")), csv_label_of);
    if (row == rows.end()) continue;
    StepResult step;
    step.work.tokens = static_cast<std::int64_t>(table.number(line, "tokens").value_or(0));
    step.times.makespan = std::llround(table.number(line, "step_seconds").value_or(0) * kPicoseconds);
    row->steps.push_back(std::move(step));
  }
}

void check_summary(const json& summary, const std::string& path) {
  if (!summary.is_object() || summary.value("schema", json()) != "equipoise.summary/1")
    throw UserError(path + ": expected \"schema\": \"equipoise.summary/1\", as `study --out` writes it");
  try {
    (void)summary.at("study").at("name").get<std::string>();
    for (const json& policy : summary.at("policies"))
      if (!policy.at("label").is_string() || !policy.at("status").is_string() ||
          !policy.at("metrics").is_object() || !policy.value("provenance", json::object()).is_object())
        throw UserError(path + ": policies: expected label, status, metrics and provenance of each");
  } catch (const json::exception& e) {
    throw UserError(path + ": expected a whole summary of a study, found " + printable(e.what()));
  }
}

}  // namespace

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
  SavedResult saved{path, read_json_file(file.string()), {}};
  check_summary(saved.summary, file.string());
  for (const json& policy : saved.summary["policies"]) {
    SavedRow row{policy, {}, {}};
    row.totals.seconds = number_or_zero(policy["metrics"], "total_seconds");
    row.totals.tokens = number_or_zero(policy["metrics"], "total_tokens");
    row.totals.steps = static_cast<int>(number_or_zero(policy["metrics"], "steps"));
    saved.rows.push_back(std::move(row));
  }
  read_steps(file.parent_path() / "steps.csv", saved.rows);
  return saved;
}

static std::string figure(const json& policy, std::string_view key, double scale, int digits) {
  const auto found = policy["metrics"].find(std::string(key));
  const bool known = found != policy["metrics"].end() && found->is_number();
  return known ? fixed(found->get<double>() * scale, digits) : "-";
}

// The column's figure as tables print it, without what it stands beside.
static std::string printed(const ResultColumn& column, const json& policy) {
  return figure(policy, column.key, column.scale, column.digits);
}

// The same with that, as the study's table has it; and what is none of the metrics.
static std::string cell_of(const ResultColumn& column, const json& policy, bool has_pipeline) {
  if (column.key == "bubble_ratio" && !has_pipeline) {
    const std::string recompute = figure(policy, "recompute_ratio", 100, 1);
    return recompute == "-" || recompute == "0.0" ? "-" : recompute + " recompute";
  }
  if (column.text == nullptr && !column.key.empty()) return printed(column, policy);
  const auto metric = [&](const char* key) {
    const json value = policy["metrics"].value(key, json());
    return value.is_number() ? Metric(value.get<double>()) : Metric();
  };
  Metrics m;  // as far as a column puts more than one of them together
  m.speedup = metric("speedup");
  m.speedup_low = metric("speedup_low");
  m.speedup_high = metric("speedup_high");
  m.token_delay_mean = metric("token_delay_mean");
  m.token_delay_steady = metric("token_delay_steady");
  m.token_delay_max = metric("token_delay_max");
  const json memory = policy.value("memory", json()), measured = policy.value("measured", json());
  return column.printed({m, number_or_zero(memory, "capacity_bytes"), number_or_zero(memory, "peak_bytes"),
                         number_or_zero(measured, "pack_ms")});
}

std::string saved_table(const SavedResult& saved) {
  const json& study = saved.summary["study"];
  const bool has_pipeline = study.value("pipeline", json(2)) != 1;
  const bool with_status =
      std::ranges::any_of(saved.rows, [](const SavedRow& row) { return row.policy["status"] != "ok"; });
  ComparisonTable comparison{comparison_header(with_status), {}};
  for (const SavedRow& row : saved.rows) {
    std::vector<std::string>& cells = comparison.rows.emplace_back(1, row.policy["label"].get<std::string>());
    const bool ignored = row.policy.value("memory_ignored", json()) == true;
    if (with_status) cells.push_back(ignored ? "oom, ignored" : row.policy["status"].get<std::string>());
    for (const ResultColumn& column : result_columns())
      if (column.is_printed()) cells.push_back(cell_of(column, row.policy, has_pipeline));
  }
  leave_out_equal(comparison);
  TextTable table(comparison.header);
  if (with_status) table.align_left(1);
  for (std::vector<std::string>& row : comparison.rows) table.add(std::move(row));
  std::string text = printable(study["name"].get<std::string>()) + "\n" + table.text();
  if (const auto notes = study.find("notes"); notes != study.end() && notes->is_array())
    for (const json& note : *notes)
      if (const json said = note.is_object() ? note.value("text", json()) : note; said.is_string())
        text += "note: " + printable(said.get<std::string>()) + "\n";
  return text;
}

std::string saved_csv(const SavedResult& saved) {
  std::string text = "policy,status";
  for (const ResultColumn& column : result_columns())
    if (column.is_metric()) text += "," + std::string(column.key);
  for (const SavedRow& row : saved.rows) {
    text += "\n" + csv_cell(row.policy["label"].get<std::string>()) + "," +
            row.policy["status"].get<std::string>();
    for (const ResultColumn& column : result_columns())
      if (column.is_metric()) {
        const json value = row.policy["metrics"].value(std::string(column.key), json());
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
  const auto between = [&](std::string_view begin, std::string_view end) {
    const std::size_t from = text.find(begin);
    const std::size_t to = from == std::string::npos ? from : text.find(end, from + begin.size());
    if (to == std::string::npos) throw UserError(file + ": expected a page that `study --out` wrote");
    return text.substr(from + begin.size(), to - from - begin.size());
  };
  const std::string content = between("<main id=\"report\">\n", "\n<noscript>");
  const json data = parse_json(between("id=\"data\">", "</script>"), file);
  return html_page({saved.summary["study"]["name"], content}, data);
}

namespace {

std::string word_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Each leaf by its path: parallel.context, policies[1].queues.
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

// What a result says of how it came about, beside its figures.
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
    for (const char* key : {"profile", "framework", "kernels", "slowdowns", "derived"})
      flatten(provenance.value(key, json()), row + key, leaves);
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

RowChange change_of(const SavedRow& before, const SavedRow& after, bool same_documents) {
  RowChange change{before.policy["label"], &before, &after, {}, {}, {}, ""};
  const std::string was = before.policy["status"], is = after.policy["status"];
  Metrics metrics = after.totals;
  const bool has_steps = !before.steps.empty() && !after.steps.empty();
  const auto batches = same_documents && has_steps ? std::min(before.steps.size(), after.steps.size()) : 0;
  compare(before.totals, before.steps, batches, after.steps, metrics);
  change.ratio = metrics.speedup;
  change.low = metrics.speedup_low;
  change.high = metrics.speedup_high;
  if (was != is)
    change.verdict = was + " -> " + is;
  else if (!change.ratio)
    change.verdict = is;
  else if (*change.ratio == 1)
    change.verdict = "the same";
  else if (change.low && change.high && *change.low <= 1 && *change.high >= 1)
    change.verdict = "not told apart";
  else
    change.verdict =
        std::string(*change.ratio > 1 ? "faster" : "slower") + (change.low ? "" : " (no interval)");
  return change;
}

// "wlb faster 1.05x; plain-4d not told apart".
std::string verdict_of_rows(const std::vector<RowChange>& rows) {
  std::vector<std::string> kinds;
  std::string text;
  for (const RowChange& row : rows)
    if (std::find(kinds.begin(), kinds.end(), row.verdict) == kinds.end()) kinds.push_back(row.verdict);
  for (const std::string& kind : kinds) {
    std::vector<std::string> names;
    for (const RowChange& row : rows)
      if (row.verdict == kind)
        names.push_back(listed(row.label) +
                        (row.ratio && *row.ratio != 1 ? " " + fixed(*row.ratio, 3) + "x" : ""));
    text += (text.empty() ? "" : "; ") + kind + ": " + all_joined(names);
  }
  return text;
}

}  // namespace

SavedComparison compare_saved(const SavedResult& before, const SavedResult& after) {
  SavedComparison found;
  const json &one = before.summary["study"], &other = after.summary["study"];
  found.same_documents = true;
  for (const char* key : {"trace", "documents", "tokens"})
    found.same_documents = found.same_documents && one.value(key, json()) == other.value(key, json());
  for (const SavedRow& row : before.rows) {
    const auto match = std::ranges::find(after.rows, row.policy["label"], label_of);
    if (match != after.rows.end())
      found.rows.push_back(change_of(row, *match, found.same_documents));
    else
      found.rows.push_back({row.policy["label"], &row, nullptr, {}, {}, {}, "only in the first"});
  }
  for (const SavedRow& row : after.rows)
    if (std::ranges::find(before.rows, row.policy["label"], label_of) == before.rows.end())
      found.rows.push_back({row.policy["label"], nullptr, &row, {}, {}, {}, "only in the second"});
  found.differences = differences_between(before.summary, after.summary);
  found.verdict = verdict_of_rows(found.rows);
  return found;
}

namespace {

// Columns whose figures stand side by side, by what their titles begin with.
constexpr std::string_view kPaired[] = {"step s", "tokens/s/GPU",  "speed-up",
                                        "delay",  "mem. free GiB", "pack ms"};

std::string pair_text(const RowChange& row, std::string_view title) {
  const auto columns = result_columns();
  const ResultColumn& column =
      *std::ranges::find_if(columns, [&](const auto& c) { return c.title.starts_with(title); });
  const auto side = [&](const SavedRow* r) {
    if (r == nullptr) return std::string("-");
    return column.key.empty() ? cell_of(column, r->policy, true) : printed(column, r->policy);
  };
  const std::string before = side(row.before), after = side(row.after);
  return before == "-" && after == "-" ? "-" : before + " -> " + after;
}
std::string ratio_text(const RowChange& row) {
  if (!row.ratio) return "-";
  const std::string ratio = fixed(*row.ratio, 3) + "x";
  return row.low && row.high ? ratio + " (" + fixed(*row.low, 3) + "-" + fixed(*row.high, 3) + ")" : ratio;
}

std::vector<std::string> header_of_pairs() {
  std::vector<std::string> header = {"policy"};
  header.insert(header.end(), std::begin(kPaired), std::end(kPaired));
  header.insert(header.end(), {"second/first (95 %)", "verdict"});
  return header;
}

std::vector<std::string> cells_of(const RowChange& row) {
  std::vector<std::string> cells = {row.label};
  for (const std::string_view title : kPaired) cells.push_back(pair_text(row, title));
  cells.insert(cells.end(), {ratio_text(row), row.verdict});
  return cells;
}

std::string titles(const SavedResult& before, const SavedResult& after) {
  const auto title = [](const SavedResult& r) {
    return printable(r.path) + " (" + printable(r.summary["study"]["name"].get<std::string>()) + ")";
  };
  return title(before) + " -> " + title(after);
}

std::string document_note(const SavedComparison& found) {
  return found.same_documents
             ? "Both runs trained the same documents: intervals are a paired bootstrap of their steps."
             : "The runs trained other documents: ratios have no interval.";
}

}  // namespace

std::string comparison_text(const SavedResult& before, const SavedResult& after,
                            const SavedComparison& found) {
  TextTable table(header_of_pairs());
  table.align_left(std::size(kPaired) + 2);
  for (const RowChange& row : found.rows) table.add(cells_of(row));
  std::string text = titles(before, after) + "\n" + table.text() + printable(found.verdict) + ".\n";
  TextTable settings({"what differs", "first", "second"});
  for (const std::size_t left : {1U, 2U}) settings.align_left(left);
  for (const Difference& d : found.differences) settings.add({d.key, d.before, d.after});
  text += found.differences.empty() ? "Their settings do not differ.\n" : settings.text();
  return text + "(simulated. " + document_note(found) + ")\n";
}

ordered_json comparison_json(const SavedResult& before, const SavedResult& after,
                             const SavedComparison& found) {
  const auto value = [](const std::optional<double>& v) {
    return v ? ordered_json(*v) : ordered_json(nullptr);
  };
  const auto side = [](const SavedRow* row) -> ordered_json {
    if (row == nullptr) return nullptr;
    ordered_json node = {{"status", row->policy["status"]}, {"reason", row->policy.value("reason", json())}};
    for (const char* key : {"step_seconds", "tokens_per_second_per_gpu", "speedup", "peak_memory_bytes"})
      node[key] = row->policy["metrics"].value(key, json());
    const json measured = row->policy.value("measured", json());
    node["pack_ms"] = measured.is_object() ? measured.value("pack_ms", json()) : json();
    node["beyond_samples_share"] =
        row->policy.value("provenance", json::object()).value("beyond_samples_share", json());
    node["notes"] = row->policy.value("notes", json::array());
    return node;
  };
  const auto notes = [](const SavedResult& saved) { return saved.summary["study"].value("notes", json()); };
  ordered_json rows = ordered_json::array(), differences = ordered_json::array();
  for (const RowChange& row : found.rows)
    rows.push_back({{"label", row.label},
                    {"first", side(row.before)},
                    {"second", side(row.after)},
                    {"ratio", value(row.ratio)},
                    {"low", value(row.low)},
                    {"high", value(row.high)},
                    {"verdict", row.verdict}});
  for (const Difference& d : found.differences)
    differences.push_back({{"key", d.key}, {"first", d.before}, {"second", d.after}});
  return {{"schema", "equipoise.comparison/1"},
          {"first", printable(before.path)},
          {"second", printable(after.path)},
          {"verdict", found.verdict},
          {"same_documents", found.same_documents},
          {"rows", std::move(rows)},
          {"differences", std::move(differences)},
          {"first_notes", notes(before)},
          {"second_notes", notes(after)}};
}

std::string comparison_csv(const SavedComparison& found) {
  std::string text =
      "policy,first_step_seconds,second_step_seconds,first_status,second_status,ratio,low,high,verdict\n";
  const auto cell = [](const std::optional<double>& v) { return v ? json(*v).dump() : std::string(); };
  const auto step = [](const SavedRow* row) {
    const json value = row == nullptr ? json() : row->policy["metrics"].value("step_seconds", json());
    return value.is_number() ? value.dump() : std::string();
  };
  const auto status = [](const SavedRow* row) {
    return row == nullptr ? std::string() : row->policy["status"].get<std::string>();
  };
  for (const RowChange& row : found.rows)
    text += csv_cell(row.label) + "," + step(row.before) + "," + step(row.after) + "," + status(row.before) +
            "," + status(row.after) + "," + cell(row.ratio) + "," + cell(row.low) + "," + cell(row.high) +
            "," + csv_cell(row.verdict) + "\n";
  return text;
}

std::string comparison_page(const SavedResult& before, const SavedResult& after,
                            const SavedComparison& found) {
  std::vector<std::vector<std::string>> changes;
  for (const RowChange& row : found.rows) changes.push_back(cells_of(row));
  std::string content = html_head(titles(before, after), found.verdict, {}, {document_note(found)}) +
                        "<section id=\"changes\">\n<h2>Row by row</h2>\n" +
                        html_table("changes-table", header_of_pairs(), changes) + "</section>\n";
  for (const RowChange& row : found.rows)
    if (row.after != nullptr && row.after->policy.value("reason", json()).is_string())
      content += html_paragraph(row.label + ": " + row.after->policy["reason"].get<std::string>(), "reason");
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
