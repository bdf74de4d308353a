#include "sim/cli/sweep_journal.h"

#include <filesystem>

namespace equipoise {

using nlohmann::json;

namespace {

JournalEntry into(std::map<std::size_t, CaseText>& finished) {
  return [&finished](const json& node, const std::string&) {
    finished.emplace(node.at("n").get<std::size_t>(), case_text(node));
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
