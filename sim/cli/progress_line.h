// What a long run is at, on the last line of a terminal; nothing is left of it, and nothing is shown
// elsewhere.
#pragma once

#include <unistd.h>

#include <cstddef>
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

}  // namespace equipoise
