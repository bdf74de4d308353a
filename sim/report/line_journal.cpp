#include "sim/report/line_journal.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

[[noreturn]] static void cannot_write(const std::string& path, const std::string& why) {
  throw UserError("--out ", path, ": cannot write: ", why);
}

static json asked_of(const json& node, const JournalKind& kind, const std::string& where) {
  if (node.at("schema") != kind.schema)
    throw UserError(where, ": expected a journal of `", kind.command, "` (", kind.schema, ")");
  return node.at("asked");
}

std::string differing(const json& one, const json& other, const std::string& decides) {
  std::vector<std::string> keys;
  if (one.is_object() && other.is_object())
    for (const json& change : json::diff(one, other)) {
      const std::string path = change["path"].get<std::string>().substr(1);
      std::string key = path.substr(0, path.find('/'));
      if (key == "inputs" && path != key) key = json::json_pointer('/' + path).back();  // names which of them
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  return (keys.empty() ? decides : joined(keys)) + " differ" + (keys.size() == 1 ? "s" : "");
}

bool has_whole_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  return std::getline(in, line) && !in.eof();
}

JournalHead read_line_journal(const std::string& path, const JournalKind& kind, const JournalEntry& entry) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(path, ": cannot read: ", std::strerror(errno));
  JournalHead head;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) break;  // without a line end it is half written
    const std::string where = path + ":" + std::to_string(number);
    const json node = parse_json_line(line, where);
    try {
      if (number == 1)
        head.asked = asked_of(node, kind, where);
      else
        entry(node, where);
    } catch (const json::exception&) {
      throw UserError(where, ": expected a line that `", kind.command, "` wrote, found another");
    }
    head.whole_bytes += line.size() + 1;
  }
  if (head.whole_bytes == 0)
    throw UserError(path, ": expected a journal of `", kind.command, "`, found no whole line");
  return head;
}

LineJournal::LineJournal(std::string path, const JournalKind& kind, const json& asked, bool resume,
                         const JournalEntry& entry)
    : path_(std::move(path)) {
  const bool goes_on = resume && has_whole_line(path_);
  std::error_code error;
  if (goes_on) {
    const JournalHead head = read_line_journal(path_, kind, entry);
    if (head.asked != asked)
      throw UserError("--resume: ", path_, " is of another ", kind.job, " (",
                      differing(head.asked, asked, kind.decides),
                      "); expected the same ones, or no --resume");
    std::filesystem::resize_file(path_, head.whole_bytes, error);
    if (error) cannot_write(path_, error.message());
  }
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  require_no_input(path_);
  file_ = std::fopen(path_.c_str(), goes_on ? "ab" : "wb");
  if (file_ == nullptr) cannot_write(path_, std::strerror(errno));
  if (!goes_on) write(json({{"schema", kind.schema}, {"asked", asked}}).dump() + "\n");
}

LineJournal::~LineJournal() {
  if (file_ != nullptr) std::fclose(file_);
}

void LineJournal::write(const std::string& lines) {
  if (std::fwrite(lines.data(), 1, lines.size(), file_) != lines.size() || std::fflush(file_) != 0)
    cannot_write(path_, std::strerror(errno));
}

}  // namespace equipoise
