// What a long command has finished, in a file that survives being killed: a line of JSON that says what was
// asked, then a line for each thing that is done. A killed run leaves the last line half written at most;
// that part is not read, and cut off when the command goes on.
#pragma once

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace equipoise {

struct JournalKind {
  const char* schema;
  const char* command;  // whose journal it is, for errors
  const char* job;      // what it is a journal of: "sweep"
  const char* decides;  // what has to be the same to go on
};

struct JournalHead {
  nlohmann::json asked;
  std::uintmax_t whole_bytes = 0;  // of whole lines
};

// Takes a line after the first; `where` is file:line. May throw UserError, and nlohmann::json::exception
// where the line is not one of this kind.
using JournalEntry = std::function<void(const nlohmann::json& node, const std::string& where)>;

// What differs between what two runs were asked for: "budget, gpus differ"; where no key says so, `decides`.
std::string differing(const nlohmann::json& one, const nlohmann::json& other, const std::string& decides);

// A run that was killed before its first line was whole has left nothing to go on with.
bool has_whole_line(const std::string& path);

// Throws UserError naming file and line.
JournalHead read_line_journal(const std::string& path, const JournalKind& kind, const JournalEntry& entry);

class LineJournal {
 public:
  // `asked`: all that decides a result; a journal that was asked for anything else is refused. With `resume`
  // an older journal's lines go to `entry` and new ones after them, otherwise it is overwritten. Throws
  // UserError.
  LineJournal(std::string path, const JournalKind& kind, const nlohmann::json& asked, bool resume,
              const JournalEntry& entry);
  LineJournal(const LineJournal&) = delete;
  LineJournal& operator=(const LineJournal&) = delete;
  ~LineJournal();

  // Whole lines, each with its end, handed to the system before this returns: they survive the process.
  void write(const std::string& lines);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace equipoise
