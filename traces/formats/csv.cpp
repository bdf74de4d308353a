// One column of a CSV or TSV file; the first row is a header unless every field of it is a number.
#include "policies/base/csv.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "policies/base/error.h"
#include "traces/formats/formats.h"

namespace equipoise::formats {
namespace {

// Names of a column that holds lengths, most telling first; compared without case.
constexpr std::array<std::string_view, 16> kLengthNames = {
    "length",       "lengths", "num_tokens", "n_tokens", "tokens",          "token_count",
    "token_length", "seq_len", "seq_lens",   "seqlen",   "sequence_length", "input_ids",
    "doc_length",   "doc_len", "len",        "token_ids"};

std::string lower(std::string_view text) {
  std::string out(trimmed(text));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + std::string(trimmed(name));
  return out.size() > 200 ? out.substr(0, 200) + "..." : out;
}

// Which column holds the lengths. `header` is the first row; it may be numbers if the file has no header.
std::size_t choose_column(const std::vector<std::string>& header, bool has_names, const std::string& column,
                          const std::string& name) {
  if (!column.empty()) {
    for (std::size_t i = 0; i < header.size(); ++i)
      if (has_names && trimmed(header[i]) == column) return i;
    const std::int64_t index = parse_length(column);
    if (index >= 0 && index < static_cast<std::int64_t>(header.size()))
      return static_cast<std::size_t>(index);
    throw UserError(name + ": no column '" + column + "'; the file has " +
                    (has_names ? "columns " + listed(header)
                               : std::to_string(header.size()) + " columns without names, counted from 0"));
  }
  if (has_names)
    for (const std::string_view wanted : kLengthNames)
      for (std::size_t i = 0; i < header.size(); ++i)
        if (lower(header[i]) == wanted) return i;
  if (header.size() == 1) return 0;
  throw UserError(name + ": cannot tell which of " + std::to_string(header.size()) +
                  " columns holds the lengths; name it (--column): " + listed(header));
}

}  // namespace

Lengths read_csv(std::string_view bytes, const std::string& name, const std::string& column, char separator) {
  CsvRecords reader(bytes, name, separator);
  std::vector<std::string> row;
  Lengths lengths;
  if (!reader.next(row)) return lengths;
  const bool has_names = !std::all_of(row.begin(), row.end(), [](const std::string& field) {
    const std::string_view text = trimmed(field);
    return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos;
  });
  const std::size_t index = choose_column(row, has_names, column, name);
  const std::size_t columns = row.size();
  if (has_names && !reader.next(row)) return lengths;
  lengths.reserve(bytes.size() / 16);
  do {
    const std::string where = name + ":" + std::to_string(reader.line());
    if (index >= row.size())
      throw UserError(where + ": found " + std::to_string(row.size()) + " columns; expected at least " +
                      std::to_string(index + 1));
    if (row.size() > columns)
      throw UserError(where + ": found " + std::to_string(row.size()) + " fields; expected at most " +
                      std::to_string(columns) +
                      " as in the first row (a field that holds the separator is quoted)");
    const std::string_view text = trimmed(row[index]);
    const std::int64_t value = parse_length(text);
    if (!is_length(value)) refuse_length(where, text);
    lengths.push_back(value);
  } while (reader.next(row));
  return lengths;
}

}  // namespace equipoise::formats
