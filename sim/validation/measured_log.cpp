#include "sim/validation/measured_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "sim/validation/torch_log.h"
#include "traces/formats/bytes.h"
#include "traces/formats/lines.h"

namespace equipoise {
namespace {

// --- CSV

constexpr std::array<std::string_view, 6> kColumns = {"policy",       "step", "tokens",
                                                      "step_seconds", "op",   "seconds"};
constexpr double kMostWhole = 9007199254740992.0;  // 2^53

class CsvReader {
 public:
  explicit CsvReader(const CsvTable& table) : table_(table) {}

  void read_row(std::size_t row, MeasuredLog& log) const {
    const std::string policy = printable(table_.text(row, "policy"));
    const std::int64_t step = whole(row, "step", true);
    const auto seconds = table_.number(row, "step_seconds");
    const std::string op = printable(table_.text(row, "op"));
    if (seconds)
      log.steps.push_back({policy, step, 1, time(row, "step_seconds"), whole(row, "tokens", false)});
    if (!op.empty()) log.ops.push_back({policy, step, op, time(row, "seconds")});
    if (!seconds && op.empty()) refuse(row, "step_seconds", "seconds > 0, or an op");
  }

 private:
  [[noreturn]] void refuse(std::size_t row, std::string_view column, const std::string& expected) const {
    const std::string found = printable(table_.text(row, column));
    throw UserError(table_.path(), ":", table_.line(row), ": ", column, ": expected ", expected, ", found ",
                    found.empty() ? "nothing" : found);
  }
  [[nodiscard]] double time(std::size_t row, std::string_view column) const {
    const double value = table_.number(row, column).value_or(0);
    if (!is_step_time(value)) refuse(row, column, "seconds > 0");
    return value;
  }
  [[nodiscard]] std::int64_t whole(std::size_t row, std::string_view column, bool needed) const {
    const auto value = table_.number(row, column);
    if (!value && !needed) return 0;
    if (!value || !(*value >= 0 && *value <= kMostWhole) || *value != std::floor(*value))
      refuse(row, column, "a whole number >= 0");
    return static_cast<std::int64_t>(*value);
  }

  const CsvTable& table_;
};

MeasuredLog read_csv(std::string_view text, const std::string& name) {
  const CsvTable table = CsvTable::parse(text, name);
  for (const std::string_view column : {"step", "step_seconds"})
    if (!table.has(column))
      throw UserError(name, ":1: expected columns step and step_seconds, found ",
                      printable(joined(table.header())));
  if (table.has("op") != table.has("seconds"))
    throw UserError(name, ":1: expected columns op and seconds together, found one of them");
  MeasuredLog log;
  log.form = "CSV";
  const CsvReader reader(table);
  for (std::size_t row = 0; row < table.rows(); ++row) reader.read_row(row, log);
  if (log.steps.empty()) throw UserError(name, ": expected a line with step_seconds, found none");
  std::vector<std::string> unused;
  for (const std::string& column : table.header())
    if (std::ranges::find(kColumns, column) == kColumns.end()) unused.push_back(printable(column));
  if (!unused.empty())
    log.notes.push_back(
        {"columns_not_used", printable(name), {{"unused", joined(unused)}, {"used", joined(kColumns)}}});
  return log;
}

// --- Megatron-LM

// Every log of Megatron-LM has this in its lines.
constexpr std::string_view kMegatronTime = "elapsed time per iteration (ms):";
constexpr std::int64_t kWarmUp = 3;  // iterations: allocation, autotuning, the first collectives
constexpr std::int64_t kMostIterations = std::int64_t{1} << 40;

// The number after `key` and spaces, if there is one.
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
    throw UserError(where, ": expected ", expected, ", found \"",
                    printable(line.substr(0, utf8_prefix(line.substr(0, 100)))), "\"");
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

// The smallest distance between consecutive entries. A restart goes back and does not count.
std::int64_t interval_of(const std::vector<Entry>& entries) {
  std::int64_t least = 0;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const std::int64_t distance = entries[i].iteration - entries[i - 1].iteration;
    if (distance > 0 && (least == 0 || distance < least)) least = distance;
  }
  return std::max<std::int64_t>(1, least);
}

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
  const std::size_t excluded = entries.size() - log.steps.size();
  if (log.steps.empty()) {
    const Entry& last = entries.back();
    const std::int64_t count = std::min(interval, last.iteration);
    log.steps.push_back({"", last.iteration - count, count, last.seconds, 0});
    log.notes.push_back(
        {"only_last_entry", printable(name), {{"entries", entries.size()}, {"warm_up", kWarmUp}}});
  } else if (excluded > 0) {
    log.notes.push_back({"warm_up_excluded",
                         printable(name),
                         {{"excluded", excluded}, {"entries", entries.size()}, {"warm_up", kWarmUp}}});
  }
  if (interval > 1) log.notes.push_back({"mean_of_iterations", printable(name), {{"iterations", interval}}});
  return log;
}

// --- Which form it is

std::string first_line(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string_view line = text.substr(0, std::min(text.find_first_of("\r\n"), text.size()));
  const bool cut = line.size() > kMost;
  if (cut) line = line.substr(0, utf8_prefix(line.substr(0, kMost)));
  std::string quoted = "\"";
  quoted.append(printable(line)).append(cut ? "...\"" : "\"");
  return line.empty() ? "nothing" : quoted;
}

bool looks_like_csv(std::string_view text) {
  const std::string_view header = text.substr(0, std::min(text.find('\n'), text.size()));
  return header.find("step_seconds") != std::string_view::npos;
}

}  // namespace

MeasuredLog parse_measured_log(std::string_view bytes, const std::string& name) {
  const std::size_t start = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  const std::string_view text = start == std::string_view::npos ? std::string_view() : bytes.substr(start);
  MeasuredLog log;
  if (text.starts_with('{') || text.starts_with('['))
    // A Megatron-LM line may begin with a time in brackets.
    log = text.find(kMegatronTime) != std::string_view::npos ? read_megatron(text, name)
                                                             : read_torch_steps(bytes, name);
  else if (text.find(kMegatronTime) != std::string_view::npos)
    log = read_megatron(text, name);
  else if (looks_like_csv(text))
    log = read_csv(bytes, name);
  else
    throw UserError(name,
                    ": expected a CSV with columns step and step_seconds, a Megatron-LM log (lines with \"",
                    kMegatronTime, "\") or a torch.profiler trace (JSON), found ", first_line(text));
  log.name = name;
  return log;
}

MeasuredLog read_measured_log(const std::string& path) {
  return parse_measured_log(formats::read_file(path, "measured steps").bytes, path);
}

}  // namespace equipoise
