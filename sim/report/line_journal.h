// What a long command has finished, in a file that survives when the process is killed. Its first line of
// JSON says what was asked; a line follows for each finished item. A killed run leaves at most its last line
// half written. That part is ignored, and removed when the command continues.
#pragma once

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace equipoise {

struct JournalKind {
  const char* schema;
  const char* command;  // the command that writes it, for errors
  const char* job;      // the kind of job: "sweep"
  const char* decides;  // what must be equal for a run to continue
};

struct JournalHead {
  nlohmann::json asked;
  std::uintmax_t whole_bytes = 0;  // bytes in whole lines
};

// Takes a line after the first; `where` is file:line. It may throw UserError, or nlohmann::json::exception
// for a line of another kind.
using JournalEntry = std::function<void(const nlohmann::json& node, const std::string& where)>;

// The keys in which two requests differ: "budget, gpus differ"; or `decides` if no key shows the difference.
std::string differing(const nlohmann::json& one, const nlohmann::json& other, const std::string& decides);

// A run that was killed before its first line was whole leaves nothing to continue from.
bool has_whole_line(const std::string& path);

// Throws UserError with file and line.
JournalHead read_line_journal(const std::string& path, const JournalKind& kind, const JournalEntry& entry);

class LineJournal {
 public:
  // `asked` has everything that decides a result; a journal of any other request is refused. With `resume` an
  // older journal's lines go to `entry` and new ones are appended, otherwise it is overwritten. Throws
  // UserError.
  LineJournal(std::string path, const JournalKind& kind, const nlohmann::json& asked, bool resume,
              const JournalEntry& entry);
  LineJournal(const LineJournal&) = delete;
  LineJournal& operator=(const LineJournal&) = delete;
  ~LineJournal();

  // Hands whole lines, each with its end, to the system before it returns, so that they survive the process.
  void write(const std::string& lines);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace equipoise
