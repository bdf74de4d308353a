#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "sim/validation/log_forms.h"

namespace equipoise::logs {
namespace {

constexpr std::int64_t kWarmUp = 3;  // iterations: allocation, autotuning, the first collectives
constexpr std::int64_t kMostIterations = std::int64_t{1} << 40;

// The number after `key`, behind spaces; nothing if there is none.
template <class Number>
std::optional<Number> number_after(std::string_view line, std::string_view key) {
  const std::size_t found = line.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const std::size_t begin = line.find_first_not_of(' ', found + key.size());
  if (begin == std::string_view::npos) return std::nullopt;
  Number value{};
  const auto [rest, error] = std::from_chars(line.data() + begin, line.data() + line.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

struct Entry {
  std::int64_t iteration = 0;
  double seconds = 0;
};

Entry read_line(std::string_view line, const std::string& where) {
  const auto iteration = number_after<std::int64_t>(line, " iteration ");
  const auto milliseconds = number_after<double>(line, kMegatronTime);
  const auto refuse = [&](const char* expected) {
    throw UserError(where + ": expected " + expected + ", found \"" +
                    printable(line.substr(0, utf8_prefix(line.substr(0, 100)))) + "\"");
  };
  if (!iteration || *iteration < 1 || *iteration > kMostIterations) refuse("\" iteration N/\" with N >= 1");
  if (!milliseconds || !is_step_time(*milliseconds / 1e3)) refuse("a time > 0 after \"(ms):\"");
  return {*iteration, *milliseconds / 1e3};
}

std::vector<Entry> read_entries(std::string_view text, const std::string& name) {
  std::vector<Entry> entries;
  std::size_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line(" ");  // so that an iteration at the very begin has one, too
    line.append(text.substr(at, end - at));
    ++line_number;
    at = end + 1;
    if (line.find(kMegatronTime) != std::string::npos)
      entries.push_back(read_line(line, name + ":" + std::to_string(line_number)));
  }
  return entries;
}

// The smallest distance of entries that follow each other; a restart goes back and counts for nothing.
std::int64_t interval_of(const std::vector<Entry>& entries) {
  std::int64_t least = 0;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const std::int64_t distance = entries[i].iteration - entries[i - 1].iteration;
    if (distance > 0 && (least == 0 || distance < least)) least = distance;
  }
  return std::max<std::int64_t>(1, least);
}

}  // namespace

MeasuredLog read_megatron(std::string_view text, const std::string& name) {
  const std::vector<Entry> entries = read_entries(text, name);
  const std::int64_t interval = interval_of(entries);
  const std::int64_t first = std::max<std::int64_t>(0, entries.front().iteration - interval);
  MeasuredLog log;
  log.form = "Megatron-LM log";
  for (const Entry& entry : entries) {
    const std::int64_t count = std::min(interval, entry.iteration), step = entry.iteration - count;
    if (step >= first + kWarmUp) log.steps.push_back({"", step, count, entry.seconds, 0});
  }
  const std::size_t left_out = entries.size() - log.steps.size();
  if (log.steps.empty()) {
    const Entry& last = entries.back();
    const std::int64_t count = std::min(interval, last.iteration);
    log.steps.push_back({"", last.iteration - count, count, last.seconds, 0});
    log.notes.push_back(name + ": only the last of " + std::to_string(entries.size()) +
                        " entries is used; all have warm-up in them (the first " + std::to_string(kWarmUp) +
                        " iterations)");
  } else if (left_out > 0) {
    log.notes.push_back(name + ": " + std::to_string(left_out) + " of " + std::to_string(entries.size()) +
                        " entries are left out as warm-up (the first " + std::to_string(kWarmUp) +
                        " iterations)");
  }
  if (interval > 1)
    log.notes.push_back(name + ": each entry is the mean of " + std::to_string(interval) + " iterations");
  return log;
}

}  // namespace equipoise::logs
