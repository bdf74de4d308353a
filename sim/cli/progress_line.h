// What a long run is at, on the last line of a terminal; nothing is left of it, and nothing is shown
// elsewhere.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include "policies/base/utf8.h"

namespace equipoise {

class ProgressLine {
 public:
  ProgressLine(std::ostream& log, bool wanted) : log_(log), shown_(wanted && isatty(STDERR_FILENO) == 1) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { show(""); }
  void show(const std::string& text) const {
    constexpr std::size_t kColumns = 79;  // a longer line would wrap and stay
    if (shown_) log_ << "\r\033[K" << printable(text).substr(0, kColumns) << std::flush;
  }

 private:
  std::ostream& log_;
  bool shown_;
};

// Of something of which this share is done after so many seconds: "43 %, 12 s left".
inline std::string time_left(double share, double seconds) {
  const auto left = static_cast<std::int64_t>(seconds / share * (1 - share)) + 1;
  std::string text = std::to_string(static_cast<int>(100 * share));
  return text.append(" %, ").append(std::to_string(left)).append(" s left");
}

// Says that of what began with it: after a second, then now and then.
class TimeLeft {
 public:
  // Empty while there is nothing new to say.
  std::string text(double share) {
    using Seconds = std::chrono::duration<double>;
    constexpr double kBetweenTexts = 0.25, kBeforeFirst = 1;
    const auto now = std::chrono::steady_clock::now();
    const double elapsed = Seconds(now - begin_).count();
    if (!(share > 0) || elapsed < kBeforeFirst || Seconds(now - told_).count() < kBetweenTexts) return {};
    told_ = now;
    return time_left(share, elapsed);
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), told_{};
};

}  // namespace equipoise
