#include "sim/validation/measured_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "sim/validation/line_log.h"
#include "sim/validation/torch_log.h"
#include "traces/formats/bytes.h"
#include "traces/formats/lines.h"
#include "traces/json_text.h"

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
  if (looks_like_json(text))
    log = read_torch_steps(bytes, name);
  else if (looks_like_csv(text))
    log = read_csv(bytes, name);
  else if (std::optional<MeasuredLog> lines = read_line_log(text, name))
    log = *std::move(lines);
  else
    throw UserError(
        name,
        ": expected a CSV with columns step and step_seconds, a torch.profiler trace (JSON), or a "
        "log of ",
        line_log_forms(), ", found ", first_line(text));
  log.name = name;
  return log;
}

MeasuredLog read_measured_log(const std::string& path) {
  return parse_measured_log(formats::read_file(path, "measured steps").bytes, path);
}

}  // namespace equipoise
