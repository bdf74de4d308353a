#include "traces/formats/lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/random.h"
#include "policies/base/text.h"
#include "traces/formats/packed_row.h"
#include "traces/json_text.h"
#include "traces/synth.h"

namespace equipoise::formats {

void refuse_length(const std::string& where, std::string_view found) {
  throw UserError(where, ": found ", shown(found), "; expected a document length, an integer from 1 to ",
                  kLongestDocument, " (tokens)");
}

std::int64_t parse_length(std::string_view text) {
  if (text.empty()) return -1;
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = std::min<std::int64_t>(value * 10 + (c - '0'), kLongestDocument + 1);
  }
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view found) {
  constexpr std::size_t kShown = 40;
  std::string out = "'";
  for (const char c : found.substr(0, kShown)) out += c >= ' ' && c <= '~' ? c : '?';
  out += '\'';
  if (found.size() > kShown) out += "...";
  return out;
}

// Reads one integer per line. A byte order mark, blank lines and lines that start with # are skipped.
Lengths read_text(std::string_view bytes, const std::string& name) {
  Lengths lengths;
  lengths.reserve(bytes.size() / 4);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors write one
  if (bytes.substr(0, kByteOrderMark.size()) == kByteOrderMark) bytes.remove_prefix(kByteOrderMark.size());
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  for (std::int64_t line = 1; at < end; ++line) {
    // A line with only digits, the common case, is parsed in one pass over its bytes.
    const char* const begin = at;
    std::int64_t value = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - begin < 12) value = value * 10 + (*at++ - '0');
    if ((at == end || *at == '\n') && at != begin && is_length(value)) {
      lengths.push_back(value);
      ++at;
      continue;
    }
    at = std::find(at, end, '\n');
    const std::string_view text = trimmed({begin, static_cast<std::size_t>(at - begin)});
    if (at < end) ++at;
    if (text.empty() || text.front() == '#') continue;
    value = parse_length(text);
    if (!is_length(value)) refuse_length(name + ":" + std::to_string(line), text);
    lengths.push_back(value);
  }
  return lengths;
}

std::string text_bytes(const Lengths& lengths) {
  std::string out;
  out.reserve(lengths.size() * 6);
  std::array<char, 24> digits{};
  for (const std::int64_t length : lengths) {
    const auto [last, error] = std::to_chars(digits.data(), digits.data() + digits.size(), length);
    out.append(digits.data(), static_cast<std::size_t>(last - digits.data()));
    out += '\n';
  }
  return out;
}

// Reads one column of a CSV or TSV file. The first row is a header unless all its fields are numbers.

// Names of columns with lengths, the most specific first. Their case does not matter.
constexpr std::array<std::string_view, 16> kLengthNames = {
    "length",       "lengths", "num_tokens", "n_tokens", "tokens",          "token_count",
    "token_length", "seq_len", "seq_lens",   "seqlen",   "sequence_length", "input_ids",
    "doc_length",   "doc_len", "len",        "token_ids"};

static std::string lower(std::string_view text) {
  std::string out(trimmed(text));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

static std::string listed(const std::vector<std::string>& names) {
  const std::string out = all_joined(names, ", ", trimmed);
  return out.size() > 200 ? out.substr(0, 200) + "..." : out;
}

// The columns whose names say that they have lengths, the most specific first.
static std::vector<std::size_t> obvious_columns(const std::vector<std::string>& header) {
  std::vector<std::size_t> columns;
  for (const std::string_view wanted : kLengthNames)
    for (std::size_t i = 0; i < header.size(); ++i)
      if (lower(header[i]) == wanted) columns.push_back(i);
  return columns;
}

// The index of the column with the lengths. `header` is the first row, which holds numbers in a file without
// header.
static std::size_t choose_column(const std::vector<std::string>& header, bool has_names,
                                 const std::string& column, const std::string& name) {
  if (!column.empty()) {
    for (std::size_t i = 0; i < header.size(); ++i)
      if (has_names && trimmed(header[i]) == column) return i;
    const std::int64_t index = parse_length(column);
    if (index >= 0 && index < static_cast<std::int64_t>(header.size()))
      return static_cast<std::size_t>(index);
    throw UserError(name, ": no column '", column, "'; the file has ",
                    (has_names ? "columns " + listed(header)
                               : std::to_string(header.size()) + " columns without names, counted from 0"));
  }
  if (has_names)
    if (const std::vector<std::size_t> obvious = obvious_columns(header); !obvious.empty())
      return obvious.front();
  if (header.size() == 1) return 0;
  throw UserError(name, ": cannot tell which of ", header.size(),
                  " columns holds the lengths; name it (--column): ", listed(header));
}

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
  const std::vector<std::string> header = row;
  const std::vector<std::size_t> others =
      has_names && column.empty() ? obvious_columns(header) : std::vector<std::size_t>();
  if (has_names && !reader.next(row)) return lengths;
  lengths.reserve(bytes.size() / 16);
  do {
    const std::string where = name + ":" + std::to_string(reader.line());
    if (index >= row.size())
      throw UserError(where, ": found ", row.size(), " columns; expected at least ", index + 1);
    if (row.size() > columns)
      throw UserError(where, ": found ", row.size(), " fields; expected at most ", columns,
                      " as in the first row (a field that holds the separator is quoted)");
    const std::string_view text = trimmed(row[index]);
    const std::int64_t value = parse_length(text);
    if (!is_length(value)) refuse_length(where, text);
    for (const std::size_t other : others)
      if (const std::int64_t also = other < row.size() ? parse_length(trimmed(row[other])) : -1;
          also >= 0 && also != value)
        throw UserError(where, ": ", trimmed(header[index]), " is ", value, " and ", trimmed(header[other]),
                        " is ", also, ": which of them counts tokens? Name it (--column)");
    lengths.push_back(value);
  } while (reader.next(row));
  return lengths;
}

// Reads one JSON object per line. The field is an integer (the length) or a flat array of a row's tokens,
// which may be a pack (packed_row.h), so that such files need no conversion. A line may also be the bare
// integer or array. Without a name, only fields with no other meaning are used, because an "id" is a number,
// too.

namespace {

using nlohmann::json;

std::string keys_of(const json& object) {
  std::string out;
  for (const auto& [key, value] : object.items())
    if (value.is_object() && !value.empty())
      for (const auto& [inner, below] : value.items()) out += (out.empty() ? "" : ", ") + key + "." + inner;
    else
      out += (out.empty() ? "" : ", ") + key;
  return out.size() > 200 ? out.substr(0, 200) + "..." : out;
}

// Follows "a.b.c"; a key that itself contains dots is found first.
const json* descend(const json& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  if (const auto whole = object.find(field); whole != object.end()) return &*whole;
  const std::size_t dot = field.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto outer = object.find(field.substr(0, dot));
  return outer == object.end() ? nullptr : descend(*outer, field.substr(dot + 1));
}

constexpr std::array<std::string_view, 4> kLengthFields = {"length", "num_tokens", "n_tokens", "token_count"};

// Messages of a chat, whose text has no length yet.
bool is_chat(const json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

// What text lacks to be a trace.
constexpr std::string_view kRecord = "; of text without lengths `equipoise trace record` counts its tokens";

std::int64_t length_of(const json& value, const std::string& where) {
  std::int64_t length = -1;
  if (value.is_string())
    throw UserError(where, ": found ", shown_json(value), "; expected a length", kRecord);
  if (value.is_number_unsigned())
    length = static_cast<std::int64_t>(std::min<std::uint64_t>(
        value.get<std::uint64_t>(), static_cast<std::uint64_t>(kLongestDocument) + 1));
  if (!is_length(length)) refuse_length(where, shown_json(value));
  return length;
}

[[noreturn]] void refuse_unlike(const std::string& where, std::string_view one, std::int64_t of_one,
                                std::string_view other, std::int64_t of_other) {
  throw UserError(where, ": ", one, " is ", of_one, " and ", other, " is ", of_other,
                  ": which of them counts tokens? Name it by --column (trace.column of a study)");
}

// Adds a row for which nobody named the field of lengths: its only field of lengths, or its tokens. Several
// fields have to agree. `chosen` is the field of earlier rows.
void add_row(const json& row, const std::string& where, std::string& chosen, Lengths& lengths) {
  if (!chosen.empty() && !row.contains(chosen))
    throw UserError(where, ": no field '", chosen, "'; the object has ", keys_of(row));
  std::string_view first;
  std::int64_t length = 0;
  for (const std::string_view name : kLengthFields) {
    const auto at = row.find(name);
    if (at == row.end() || at->is_null()) continue;
    const std::int64_t found = length_of(*at, where);
    if (!first.empty() && found != length) refuse_unlike(where, first, length, name, found);
    if (first.empty()) first = name, length = found;
  }
  if (chosen.empty()) chosen = first;
  if (has_token_fields(row)) {
    const std::size_t before = lengths.size();
    add_documents(row, where, lengths);
    const std::int64_t tokens = std::accumulate(lengths.begin() + static_cast<std::ptrdiff_t>(before),
                                                lengths.end(), std::int64_t{0});
    const auto ids = row.find("input_ids");
    const auto padded = ids != row.end() && ids->is_array() ? static_cast<std::int64_t>(ids->size()) : tokens;
    if (!first.empty() && length != tokens && length != padded)
      refuse_unlike(where, first, length, "the number of its tokens", tokens);
  } else if (!first.empty()) {
    lengths.push_back(length);
  } else {
    throw UserError(
        where,
        ": cannot tell which field holds the length: expected length, num_tokens, n_tokens, "
        "token_count or input_ids, or its name by --column (trace.column of a study); found ",
        keys_of(row),
        (std::ranges::any_of(row, [](const json& value) { return value.is_string() || is_chat(value); })
             ? std::string(kRecord)
             : ""));
  }
}

// The object that contains the last part of a field's name.
const json& holder_of(const json& row, const std::string& field) {
  const std::size_t dot = field.rfind('.');
  if (row.contains(field) || dot == std::string::npos) return row;
  const json* const outer = descend(row, std::string_view(field).substr(0, dot));
  return outer == nullptr ? row : *outer;
}

}  // namespace

Lengths read_jsonl(std::string_view bytes, const std::string& name, const std::string& field) {
  Lengths lengths;
  std::string chosen;
  for (std::int64_t line = 1; !bytes.empty(); ++line) {
    const std::size_t size = std::min(bytes.find('\n'), bytes.size());
    const std::string_view text = trimmed(bytes.substr(0, size));
    bytes.remove_prefix(std::min(size + 1, bytes.size()));
    if (text.empty()) continue;
    const std::string where = name + ":" + std::to_string(line);
    const json value = parse_python_json_line(text, where);
    if (value.is_object() && field.empty()) {
      add_row(value, where, chosen, lengths);
      continue;
    }
    const json* const found = value.is_object() ? descend(value, field) : &value;
    if (found == nullptr) throw UserError(where, ": no field '", field, "'; the object has ", keys_of(value));
    if (found->is_array())
      add_documents_of(value.is_object() ? holder_of(value, field) : value, value.is_object() ? field : "",
                       *found, where, lengths);
    else
      lengths.push_back(length_of(*found, where));
  }
  return lengths;
}

// Megatron-LM's description of mock fine-tuning lengths (--sft-mock-dataset-config-json), so that a mock run
// and its simulation can share one file:
//   {"mode": "distribution", "type": "lognormal", "min_seq_len": 1024, "max_seq_len": 8192,
//    "mean_seq_len": 4096, "lognormal_sigma": 1.1}
//       draws exp(ln(mean) - sigma^2 / 2 + sigma * z), clipped to [min, max]
//   {"mode": "file", "path": "x.csv"}
//       lengths from a file, relative to the JSON
// The distribution is Megatron's. The draws differ, since NumPy's generator is not reproduced here.

namespace {

constexpr double kUnit = 0x1p-53;

const json& member(const json& object, const char* key, const std::string& name) {
  const auto it = object.find(key);
  if (it == object.end()) throw UserError(name, ": ", key, ": expected a value, found nothing");
  return *it;
}

double number(const json& object, const char* key, double least, double most, const std::string& name) {
  const json& value = member(object, key, name);
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most)
    return value.get<double>();
  const std::string found = value.is_structured() ? "an object or array"
                                                  : value.dump(-1, ' ', true, json::error_handler_t::replace);
  throw UserError(name, ": ", key, ": found ", found, "; expected a number from ", json(least).dump(), " to ",
                  json(most).dump());
}

std::string text(const json& object, const char* key, const std::string& allowed, const std::string& name) {
  const json& value = member(object, key, name);
  if (value.is_string()) return value.get<std::string>();
  throw UserError(name, ": ", key, ": expected ", allowed);
}

Lengths lognormal(const json& config, const std::string& name, const TraceReadOptions& options) {
  const auto most_allowed = static_cast<double>(kLongestDocument);
  const double least = std::floor(number(config, "min_seq_len", 1, most_allowed, name));
  const double most = std::floor(number(config, "max_seq_len", least, most_allowed, name));
  const double mean = number(config, "mean_seq_len", 1, most_allowed, name);
  const double sigma = number(config, "lognormal_sigma", 0, 20, name);
  const double mu = std::log(mean) - sigma * sigma / 2;
  SplitMix64 random(options.seed);
  Lengths lengths(static_cast<std::size_t>(std::max<std::int64_t>(options.documents, 0)));
  for (std::int64_t& length : lengths) {
    const double share = (static_cast<double>(random.next() >> 11) + 0.5) * kUnit;
    length =
        static_cast<std::int64_t>(std::clamp(std::exp(mu + sigma * normal_quantile(share)), least, most));
  }
  return lengths;
}

}  // namespace

Lengths read_megatron_mock(std::string_view bytes, const std::string& name, const TraceReadOptions& options) {
  const json config = parse_json(bytes, name);
  if (!config.is_object())
    throw UserError(name,
                    ": expected Megatron-LM's mock lengths, an object with \"mode\"; found no JSON object");
  const std::string mode = text(config, "mode", "\"distribution\" or \"file\"", name);
  if (mode == "distribution") {
    const std::string type = text(config, "type", "\"lognormal\"", name);
    if (type != "lognormal") throw UserError(name, ": type: found ", shown(type), "; expected \"lognormal\"");
    return lognormal(config, name, options);
  }
  if (mode != "file")
    throw UserError(name, ": mode: found ", shown(mode), "; expected \"distribution\" or \"file\"");
  const std::string path = text(config, "path", "a file name", name);
  const std::size_t slash = name.rfind('/');
  const bool relative = path.substr(0, 1) != "/" && slash != std::string::npos;
  TraceReadOptions inner = options;
  inner.format = TraceFormat::automatic;
  const std::string target = relative ? name.substr(0, slash + 1) + path : path;
  if (path.size() >= 5 && path.substr(path.size() - 5) == ".json")
    throw UserError(name, ": path: found ", shown(path),
                    "; expected a file of lengths, not another description");
  return read_trace(target, inner).lengths;
}

}  // namespace equipoise::formats
