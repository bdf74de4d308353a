// What all commands share: formats and sizes as users type them, threads, the terminal and Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

enum class Format { table, json, csv };
inline constexpr std::string_view kFormatNames[] = {"table", "json", "csv"};

// The exit status after Ctrl-C, by the convention of shells: 128 + SIGINT.
inline constexpr int kInterrupted = 130;

// Throws UserError for anything but table, json and csv.
Format parse_format(std::string_view text);

// A size as users write it: an integer from 1 to 2^31, K = 1024, M = 1024^2. `option` names it in the error.
std::int64_t parse_length(std::string_view text, std::string_view option);

// Sizes separated by commas: "1,1,2,4", "4K,128K".
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view option);

// A number of tokens of a whole job, in decimal units: 300B is 300 x 10^9. `option` names it in the error.
double parse_tokens(std::string_view text, std::string_view option);

// The cores of this machine, at least 1.
int all_cores();

// The width of stdout in columns: what COLUMNS says, else that of the terminal, else `otherwise`.
int terminal_columns(int otherwise);
// The width of a first output: that of stdout, but at least kLeastScreenWidth and at most kScreenWidth
// (sim/report/screen.h).
std::size_t screen_width();

// Whether to use colours: only on a terminal that has them, and only if NO_COLOR is not set.
bool colors_wanted();

// From the first call on, SIGINT and SIGTERM set the flag, so that a long run ends cleanly and keeps what is
// finished. A second signal ends the process at once.
const std::atomic<bool>& stop_on_interrupt();

// Shows the progress of a long run on the last line of a terminal and erases it at the end. It shows nothing
// if stderr is no terminal.
class ProgressLine {
 public:
  ProgressLine(std::ostream& log, bool wanted);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { show(""); }
  void show(const std::string& text) const;

 private:
  std::ostream& log_;
  bool shown_;
};

// The time left for work of which this share is done after so many seconds: "43 %, 12 s left".
std::string time_left(double share, double seconds);

// Gives the same text for work that begins with its construction: after a second, then from time to time.
class TimeLeft {
 public:
  // Empty if there is nothing new to show.
  std::string text(double share);

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), told_{};
};

}  // namespace equipoise
