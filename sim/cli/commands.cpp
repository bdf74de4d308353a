#include "sim/cli/commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ostream>
#include <thread>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/report/screen.h"

namespace equipoise {
namespace {

std::atomic<bool> stop_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void on_stop_signal(int signal_number) {
  stop_wanted = true;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

Format parse_format(std::string_view text) {
  return static_cast<Format>(choice_of(text, "--format", kFormatNames));
}

std::int64_t parse_length(std::string_view text, std::string_view option) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  std::int64_t value = 0;
  if (!parse_size(text, value) || value < 1 || value > kMost)
    throw UserError(option, ": expected an integer from 1 to 2^31 (K, M, k and m allowed), found \"", text,
                    '"');
  return value;
}

std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view option) {
  std::vector<std::int64_t> lengths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = concatenated(option, " item ", lengths.size() + 1);
    lengths.push_back(parse_length(text.substr(begin, end - begin), item));
    begin = end + 1;
  }
  return lengths;
}

double parse_tokens(std::string_view text, std::string_view option) {
  constexpr std::string_view kUnits = "KMBT";
  double tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (const std::size_t unit = rest.size() == 1 ? kUnits.find(rest.front()) : std::string_view::npos;
      unit != std::string_view::npos) {
    tokens *= std::pow(1000.0, static_cast<double>(unit + 1));
    rest = {};
  }
  constexpr double kMost = 1e18;
  if (error != std::errc() || !rest.empty() || !(tokens >= 1) || tokens > kMost)
    throw UserError(option,
                    ": expected a number of tokens from 1 to 10^18, such as 300B or 2T (10^12), found ",
                    printable(text));
  return tokens;
}

int all_cores() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int terminal_columns(int otherwise) {
  const char* const text = std::getenv("COLUMNS");
  const std::string_view view(text == nullptr ? "" : text);
  int columns = 0;
  if (std::from_chars(view.data(), view.data() + view.size(), columns).ec == std::errc{} && columns > 0)
    return columns;
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::size_t screen_width() {
  return static_cast<std::size_t>(
      std::clamp(terminal_columns(int{kScreenWidth}), int{kLeastScreenWidth}, int{kScreenWidth}));
}

bool colors_wanted() {
  const char* const no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

const std::atomic<bool>& stop_on_interrupt() {
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
  return stop_wanted;
}

ProgressLine::ProgressLine(std::ostream& log, bool wanted)
    : log_(log), shown_(wanted && isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(const std::string& text) const {
  constexpr std::size_t kColumns = 79;  // because a longer line would wrap and remain
  if (shown_) log_ << "\r\033[K" << printable(text).substr(0, kColumns) << std::flush;
}

std::string time_left(double share, double seconds) {
  const auto left = static_cast<std::int64_t>(seconds / share * (1 - share)) + 1;
  std::string text = std::to_string(static_cast<int>(100 * share));
  return text.append(" %, ").append(std::to_string(left)).append(" s left");
}

std::string TimeLeft::text(double share) {
  using Seconds = std::chrono::duration<double>;
  constexpr double kBetweenTexts = 0.25, kBeforeFirst = 1;
  const auto now = std::chrono::steady_clock::now();
  const double elapsed = Seconds(now - begin_).count();
  if (!(share > 0) || elapsed < kBeforeFirst || Seconds(now - told_).count() < kBetweenTexts) return {};
  told_ = now;
  return time_left(share, elapsed);
}

}  // namespace equipoise
