#include "sim/cli/sweep_journal.h"

#include <filesystem>

#include "policies/base/error.h"
#include "sim/report/result_files.h"
#include "sim/report/study_html.h"

namespace equipoise {

using nlohmann::json;

namespace {

JournalEntry into(std::map<std::size_t, CaseText>& finished) {
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

}  // namespace

SweepJournalText read_sweep_journal(const std::string& path) {
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

}  // namespace equipoise
