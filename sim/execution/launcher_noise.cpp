#include "sim/execution/launcher_noise.h"

#include <array>
#include <charconv>
#include <csignal>
#include <cstring>

namespace equipoise::execution {
namespace {

constexpr std::size_t kBannerDashes = 74;

bool contains(std::string_view line, std::string_view part) {
  return line.find(part) != std::string_view::npos;
}

bool is_banner_edge(std::string_view line) {
  return line.size() >= kBannerDashes && line.find_first_not_of('-') == std::string_view::npos;
}

bool is_log(std::string_view line) {
  constexpr std::array<std::string_view, 5> kLogs = {"ORTE_ERROR_LOG", "PMIX ERROR", "PMIX_ERROR",
                                                     "sent help message", "orte_base_help_aggregate"};
  if (line.rfind("mpirun", 0) == 0 && contains(line, ": Forwarding signal ")) return true;
  if (line.empty() || line.front() != '[') return false;
  for (const std::string_view log : kLogs)
    if (contains(line, log)) return true;
  return false;
}

std::optional<int> number_after(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(at + words.size());
  int number = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

bool LauncherNoise::keeps(std::string_view line) {
  if (is_banner_edge(line)) {
    in_banner_ = !in_banner_;
    return false;
  }
  if (!in_banner_) return !is_log(line);
  learn(line);
  return false;
}

void LauncherNoise::learn(std::string_view line) {
  banners_ += std::string(line) + '\n';
  const auto rank = number_after(line, "noticed that process rank ");
  const auto signal = number_after(line, "exited on signal ");
  if (rank && signal && !killed_) killed_ = Killed{*rank, *signal};
  if (contains(line, "non-zero status") || contains(line, "a non-zero exit code") ||
      contains(line, "MPI_ABORT was invoked") || contains(line, "exiting improperly"))
    rank_status_ = true;
}

std::string text_of_signal(int signal) {
  const char* name = strsignal(signal);
  std::string text = "signal " + std::to_string(signal) + " (" + (name != nullptr ? name : "unknown") + ")";
  return signal == SIGKILL ? text + ": out of memory?" : text;
}

}  // namespace equipoise::execution
