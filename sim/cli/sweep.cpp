#include "sim/cli/sweep.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <ostream>
#include <set>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_merge.h"
#include "sim/cli/merged_parts.h"
#include "sim/report/result_csv.h"
#include "sim/report/summary_json.h"
#include "sim/study/read/naming.h"
#include "sim/study/row/details.h"
#include "sim/study/study_inputs.h"
#include "traces/json_object.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Loads each profile once, so that a wrong name is found before any case runs.
void check_profiles(const std::vector<StudyCase>& cases) {
  std::set<std::string> known;
  for (const StudyCase& c : cases) {
    if (c.name.empty() || !known.insert(c.study.cluster.profile).second) continue;
    (void)naming(c.name + ": " + c.study.file + ": cluster.profile",
                 [&] { return Profile::load(c.study.cluster.profile); });
  }
}

// Counts the cases before they are made: a few long lists give more than fit in memory.
void check_case_count(const std::vector<std::string>& sweeps, std::int64_t most) {
  double cases = 1;
  for (const std::string& sweep : sweeps)
    cases *= static_cast<double>(std::count(sweep.begin(), sweep.end(), ',') + 1);
  if (cases <= static_cast<double>(most)) return;
  std::ostringstream count;
  count << std::fixed << std::setprecision(0) << cases;
  throw UserError("--sweep: expected at most " + std::to_string(most) + " cases, found " + count.str() +
                  "; fewer values, or --max-cases " + count.str());
}

// What one case holds until it has run.
double case_bytes(const StudyCase& c) {
  std::size_t bytes = sizeof(StudyCase) + c.name.size() + c.study.policies.size() * sizeof(PolicyRun);
  for (const std::string& assignment : c.assignments) bytes += sizeof(std::string) + assignment.size();
  return static_cast<double>(bytes);
}

}  // namespace

std::vector<StudyCase> read_cases(const json& file, const std::string& path,
                                  const std::vector<std::string>& set, const std::vector<std::string>& sweeps,
                                  std::int64_t max_cases, const MemoryLimit& limit) {
  check_case_count(sweeps, max_cases);
  std::vector<StudyCase> cases(1);
  cases.front().assignments = set;
  for (const std::string& sweep : sweeps) {
    const std::size_t equals = sweep.find('=');
    if (equals == std::string::npos || equals + 1 == sweep.size())
      throw UserError("--sweep " + sweep + ": expected key=a,b,c, e.g. batch.context_window=64K,128K");
    const std::string key = sweep.substr(0, equals);
    if (const auto first = std::find_if(sweeps.begin(), sweeps.end(),
                                        [&](const std::string& s) { return s.rfind(key + "=", 0) == 0; });
        &*first != &sweep)
      throw UserError("--sweep " + key + ": expected each key once, found " + *first + " and " + sweep);
    std::vector<StudyCase> product;
    for (const StudyCase& base : cases) {
      std::istringstream values(sweep.substr(equals + 1));
      for (std::string value; std::getline(values, value, ',');) {
        StudyCase next = base;
        const std::string assignment = sweep.substr(0, equals + 1) + value;
        next.assignments.push_back(assignment);
        if (!next.name.empty()) next.name += ' ';
        next.name += printable(assignment);
        product.push_back(std::move(next));
      }
    }
    cases = std::move(product);
  }
  for (StudyCase& c : cases) {
    const auto read = [&] {
      const json content = file_of(c, file);
      c.study = c.name.empty() ? parse_study(content, path) : parse_case(content, path);
    };
    c.name.empty() ? read() : naming(c.name, read);
    if (&c == &cases.front())
      require_memory("--sweep: " + std::to_string(cases.size()) + " cases",
                     case_bytes(c) * static_cast<double>(cases.size()), limit, "fewer values");
  }
  check_profiles(cases);
  std::vector<Study*> possible;
  for (StudyCase& c : cases)
    if (c.study.impossible.empty()) possible.push_back(&c.study);
  if (cases.size() > 1) use_one_rule(possible);
  if (possible.empty()) throw UserError(cases.front().name + ": " + cases.front().study.impossible);
  return cases;
}

json file_of(const StudyCase& c, json file) {
  set_study_keys(file, c.assignments);
  return file;
}

void check_folders(const std::vector<StudyCase>& cases) {
  std::map<std::string, std::string> case_of;
  for (const StudyCase& c : cases) {
    const auto [known, is_new] = case_of.emplace(file_name(c.name), c.name);
    if (!is_new && known->second != c.name)
      throw UserError("--sweep: " + known->second + " and " + c.name +
                      ": expected a folder of --out for each, found " + known->first + " for both");
  }
}

CaseText case_text(const std::string& name, const Study& study, const StudyResult& result, json page) {
  CaseText text{sweep_case(name, study, result), summary_json(study, result), "", {}, std::move(page)};
  text.summary["case"] = name;
  std::istringstream lines(summary_csv(study, result));
  std::getline(lines, text.csv_header);
  text.csv_header.insert(0, "case,");
  for (std::string line; std::getline(lines, line);) text.csv.push_back(csv_cell(name) + "," + line);
  return text;
}

json to_json(const CaseText& text) {
  return {{"case", text.table.name},
          {"lines", text.table.lines},
          {"reasons", text.table.reasons},
          {"source", text.table.source},
          {"summary", text.summary},
          {"csv_header", text.csv_header},
          {"csv", text.csv},
          {"page", text.page}};
}

CaseText case_text(const json& node) {
  return {{node.at("case").get<std::string>(), node.at("lines").get<std::vector<std::vector<std::string>>>(),
           node.at("reasons").get<std::string>(), node.at("source").get<std::string>()},
          node.at("summary"),
          node.at("csv_header").get<std::string>(),
          node.at("csv").get<std::vector<std::string>>(),
          node.at("page")};
}

void SweepPrinter::add(const CaseText& text) {
  if (of_seeds_) spread_.add(text.table.name, text.page);
  if (format_ == Format::table) table_.add(text.table);
  if (format_ == Format::json) summaries_.push_back(text.summary);
  if (csv_.empty()) csv_ = text.csv_header + "\n";
  for (const std::string& line : text.csv) csv_ += line + "\n";
  page_.add(text.page);
}

void SweepPrinter::finish() {
  if (of_seeds_) {
    out_ << (format_ == Format::json  ? spread_.as_json().dump(2) + "\n"
             : format_ == Format::csv ? spread_.csv()
                                      : spread_.table());
    return;
  }
  if (format_ == Format::json) out_ << json(summaries_).dump(2) << '\n';
  if (!table_.empty()) out_ << table_.text();
  if (format_ == Format::csv) out_ << csv_;
}

void SweepPrinter::write(const std::string& folder) const {
  write_file_atomically(folder + "/report.html", page_.html());
  write_file_atomically(folder + "/sweep.csv", csv_);
  if (of_seeds_) write_file_atomically(folder + "/seeds.csv", spread_.csv());
}

static JournalEntry into(std::map<std::size_t, CaseText>& finished) {
  return [&finished](const json& node, const std::string& where) {
    CaseText text = case_text(node);
    const std::size_t cells = 1 + comparison_header(true).size();  // with the case's name in front
    for (const std::vector<std::string>& line : text.table.lines)
      if (line.size() != cells)
        throw UserError(where + ": lines: expected " + std::to_string(cells) + " cells, found " +
                        std::to_string(line.size()) + " (another version of the program?)");
    SweepPage().add(text.page);  // throws if it is none
    finished.emplace(node.at("n").get<std::size_t>(), std::move(text));
  };
}

static SweepJournalText read_sweep_journal(const std::string& path) {
  SweepJournalText text;
  text.asked = read_line_journal(path, kSweepJournalKind, into(text.finished)).asked;
  return text;
}

SweepJournal::SweepJournal(std::string path, const json& asked, bool resume)
    : lines_(std::move(path), kSweepJournalKind, asked, resume, into(finished_)) {}

const CaseText* SweepJournal::find(std::size_t number) const {
  const auto found = finished_.find(number);
  return found == finished_.end() ? nullptr : &found->second;
}

void SweepJournal::add(std::size_t number, const CaseText& text) {
  json line = to_json(text);
  line["n"] = number;
  lines_.write(line.dump() + "\n");
}

void SweepJournal::remove() const {
  std::error_code ignored;
  std::filesystem::remove(lines_.path(), ignored);
}

int merge_sweep(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out) {
  PartsFound parts(kSweepJournalKind);
  std::map<std::size_t, CaseText> finished;
  std::map<std::size_t, std::string> folder_of;
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / kSweepJournal).string();
    SweepJournalText text = read_sweep_journal(path);
    parts.add(std::move(text.asked), path);
    for (const auto& [number, one] : text.finished) folder_of[number] = folder;
    finished.merge(text.finished);
  }
  const auto cases = refusing_other_types(
      folders.front(), [&] { return parts.whole().at("cases").get<std::vector<std::string>>(); });
  SweepPrinter printer(options.format, parts.whole().contains("seeds"), out);
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (!finished.contains(i))
      throw UserError("merge: expected all " + std::to_string(cases.size()) + " cases, found " +
                      std::to_string(finished.size()) + "; " + cases[i] +
                      " is not finished: run its shard again with --resume");
  for (const auto& [number, text] : finished) {
    if (number >= cases.size() || text.table.name != cases[number] ||
        cases[number].find('=') == std::string::npos)
      throw UserError("merge: " + folder_of[number] + ": n " + std::to_string(number) + ": found " +
                      text.table.name + ", which is no such case of this sweep");
    const std::string name = file_name(text.table.name);
    StagedFolder folder(std::filesystem::path(options.out) / name, "merge");
    std::filesystem::copy(std::filesystem::path(folder_of[number]) / name, folder.path(),
                          std::filesystem::copy_options::recursive);
    folder.commit();
    printer.add(text);
  }
  printer.write(options.out);
  printer.finish();
  return 0;
}

}  // namespace equipoise
