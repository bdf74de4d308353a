#include "sim/cli/sweep.h"

#include <filesystem>
#include <ostream>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "sim/cli/command_merge.h"
#include "sim/cli/merged_parts.h"
#include "sim/study/row/details.h"
#include "traces/json_object.h"

namespace equipoise {

using nlohmann::json;

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
  if (format_ == Format::table) table_.add(text.table);
  if (format_ == Format::json) summaries_.push_back(text.summary);
  if (csv_.empty()) csv_ = text.csv_header + "\n";
  for (const std::string& line : text.csv) csv_ += line + "\n";
  page_.add(text.page);
}

void SweepPrinter::finish() {
  if (format_ == Format::json) out_ << json(summaries_).dump(2) << '\n';
  if (!table_.empty()) out_ << table_.text();
  if (format_ == Format::csv) out_ << csv_;
}

void SweepPrinter::write(const std::string& folder) const {
  write_file_atomically(folder + "/report.html", page_.html());
  write_file_atomically(folder + "/sweep.csv", csv_);
}

static JournalEntry into(std::map<std::size_t, CaseText>& finished) {
  return [&finished](const json& node, const std::string& where) {
    CaseText text = case_text(node);
    const std::size_t cells = 1 + comparison_header(true).size();  // the case's name before them
    for (const std::vector<std::string>& line : text.table.lines)
      if (line.size() != cells)
        throw UserError(where + ": lines: expected " + std::to_string(cells) + " cells, found " +
                        std::to_string(line.size()) + " (another version of the program?)");
    SweepPage().add(text.page);  // throws where it is none
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
  SweepPrinter printer(options.format, out);
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
