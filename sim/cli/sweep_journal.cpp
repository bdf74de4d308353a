#include "sim/cli/sweep_journal.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "policies/base/error.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr const char* kSchema = "equipoise.sweep-journal/1";

}  // namespace

SweepJournalText read_sweep_journal(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(path + ": cannot read: " + std::strerror(errno));
  SweepJournalText text;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) break;  // no line end: half written
    const std::string where = path + ":" + std::to_string(number);
    const json node = parse_json_line(line, where);
    try {
      if (number > 1)
        text.finished.emplace(node.at("n").get<std::size_t>(), case_text(node));
      else if (node.at("schema") == kSchema)
        text.asked = node.at("asked");
      else
        throw UserError(where + ": expected a journal of `equipoise study --sweep` (" + kSchema + ")");
    } catch (const json::exception&) {
      throw UserError(where + ": expected a line that `equipoise study --sweep` wrote, found another");
    }
    text.whole_bytes += line.size() + 1;
  }
  if (text.whole_bytes == 0)
    throw UserError(path + ": expected a journal of `equipoise study --sweep`, found no whole line");
  return text;
}

SweepJournal::SweepJournal(std::string path, const json& asked, bool resume) : path_(std::move(path)) {
  const bool goes_on = resume && std::filesystem::exists(path_);
  std::error_code error;
  if (goes_on) {
    SweepJournalText text = read_sweep_journal(path_);
    if (text.asked != asked)
      throw UserError("--resume: " + path_ +
                      " is of another sweep (study, cases or options differ); expected the same ones, or no "
                      "--resume");
    finished_ = std::move(text.finished);
    std::filesystem::resize_file(path_, text.whole_bytes, error);
    if (error) throw UserError("--out " + path_ + ": cannot write: " + error.message());
  }
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  file_ = std::fopen(path_.c_str(), goes_on ? "ab" : "wb");
  if (file_ == nullptr) throw UserError("--out " + path_ + ": cannot write: " + std::strerror(errno));
  if (!goes_on) write(json({{"schema", kSchema}, {"asked", asked}}).dump());
}

SweepJournal::~SweepJournal() {
  if (file_ != nullptr) std::fclose(file_);
}

const CaseText* SweepJournal::find(std::size_t number) const {
  const auto found = finished_.find(number);
  return found == finished_.end() ? nullptr : &found->second;
}

void SweepJournal::add(std::size_t number, const CaseText& text) {
  json line = to_json(text);
  line["n"] = number;
  write(line.dump());
}

void SweepJournal::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void SweepJournal::write(const std::string& text) {
  const std::string line = text + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
    throw UserError("--out " + path_ + ": cannot write: " + std::strerror(errno));
}

}  // namespace equipoise
