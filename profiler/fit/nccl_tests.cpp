#include "profiler/fit/nccl_tests.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "profiler/fit/nccl_run.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

using nccl::Rank;
using nccl::Row;
using nccl::Run;
using nccl::Side;
using nlohmann::json;

using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  Words words;
  std::size_t at = 0;
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (at < line.size()) {
    while (at < line.size() && space(line[at])) ++at;
    const std::size_t begin = at;
    while (at < line.size() && !space(line[at])) ++at;
    if (at > begin) words.push_back(line.substr(begin, at - begin));
  }
  return words;
}

bool all_digits(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Without what mpirun ("[1,0]<stdout>:") or srun ("0: ") put before a line of output.
std::string_view without_prefix(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  line.remove_prefix(first);
  if (line.front() == '[') {
    constexpr std::string_view kTag = ">:";
    const std::size_t end = line.find(kTag);
    if (end != std::string_view::npos && line.substr(0, end).find("]<std") != std::string_view::npos)
      line.remove_prefix(end + kTag.size());
  } else if (const std::size_t colon = line.find(": ");
             colon != std::string_view::npos && all_digits(line.substr(0, colon))) {
    line.remove_prefix(colon + 2);
  }
  const std::size_t begin = line.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
}

std::optional<double> number_in(std::string_view word) {
  const std::string text(word);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The columns of a table: those that say what ran, then the same ones out of place and in place.
struct Columns {
  std::vector<std::string> what, side;
  int sides = 0;
  bool more = false;  // a time of day at the end

  [[nodiscard]] bool known() const { return sides > 0; }
};

bool is_time(std::string_view word) {
  return word == "time" || word == "cputime";
}

// Of "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"; sides 0:
// another line.
Columns columns_in(const Words& words) {
  Columns columns;
  if (words.size() < 6 || words[0] != "#" || (words[1] != "size" && words[1] != "bytes")) return columns;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string word(words[i]);
    if (is_time(word)) columns.sides += 1;
    if (columns.sides == 0) columns.what.push_back(word);
    if (word == "timestamp")
      columns.more = true;
    else if (columns.sides == 1)
      columns.side.push_back(word);
  }
  return columns;
}

class TextReader {
 public:
  TextReader(const std::string& name, const std::string& network, ForeignFile& file, SampleSet& set)
      : name_(name), network_(network), file_(file), set_(set) {}

  void read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      read_line(without_prefix(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    conclude();
    if (tables_ == 0)
      throw UserError(name_ +
                      ": expected nccl-tests' table (# size count type ... time algbw busbw), found none");
  }

 private:
  [[nodiscard]] std::string here() const { return name_ + ":" + std::to_string(line_); }

  void conclude() {
    nccl::add_run(run_, name_, network_, file_, set_);
    run_.rows.clear();
  }

  void read_line(std::string_view line) {
    if (line.empty()) return;
    const Words words = words_of(line);
    if (line.front() != '#') {
      if (columns_.known() && words.size() > 2 && all_digits(words[0]) && all_digits(words[1]))
        add_row(words);
      else
        name_program(line);
      return;
    }
    if (const Columns columns = columns_in(words); columns.known()) {
      conclude();
      columns_ = columns;
      run_.where = here();
      ++tables_;
    } else if (words.size() > 2 && words[1] == "Using" && words[2] == "devices") {
      conclude();
      run_.ranks.clear();
    } else if (words.size() > 2 && words[1] == "Rank" && all_digits(words[2])) {
      add_rank(words, line);
    } else if (line.find("concluded") == std::string_view::npos) {
      name_program(line);
    }
  }

  // A command line or "# Collective test starting: NAME": what it names runs next.
  void name_program(std::string_view line) {
    const std::string program = nccl::program_in(line);
    if (program.empty()) return;
    conclude();
    run_.program = program;
    run_.said_where = "line " + std::to_string(line_);
  }

  // "# Rank 0 [Group 0] [Pid 7] on HOST device 0 [0x10] NVIDIA H100"
  void add_rank(const Words& words, std::string_view line) {
    Rank rank;
    rank.rank = static_cast<int>(count(words[2], "a rank"));
    bool whole = false;
    for (std::size_t i = 3; i + 1 < words.size(); ++i) {
      if (words[i] == "Group") rank.group = static_cast<int>(count(words[i + 1], "a group"));
      if (words[i] == "on") rank.host = words[i + 1];
      if (words[i] == "device" && all_digits(words[i + 1])) {
        whole = !rank.host.empty();
        const std::size_t bus = line.find(']', static_cast<std::size_t>(words[i].data() - line.data()));
        if (bus != std::string_view::npos) rank.gpu = trimmed(line.substr(bus + 1));
        break;
      }
    }
    if (!whole)
      throw UserError(here() + ": expected # Rank N ... on HOST device D [BUS] GPU, found " +
                      shown_json(std::string(line)));
    if (!run_.rows.empty()) {
      conclude();
      run_.ranks.clear();
    }
    run_.ranks.push_back(std::move(rank));
  }

  static std::string trimmed(std::string_view text) {
    const Words words = words_of(text);
    std::string all;
    for (const std::string_view word : words) all.append(all.empty() ? "" : " ").append(word);
    return all;
  }

  [[nodiscard]] double count(std::string_view word, const std::string& of) const {
    const std::optional<double> value = number_in(word);
    if (!value || *value < 0 || *value > kMostCount || *value != std::floor(*value))
      throw UserError(here() + ": expected " + of + " from 0 to 2^31 - 1, found " +
                      shown_json(std::string(word)));
    return *value;
  }

  void add_row(const Words& words) {
    Row row;
    row.where = here();
    const std::optional<double> bytes = number_in(words[0]);
    constexpr double most_bytes = 1e15;
    if (!bytes || *bytes > most_bytes)
      throw UserError(row.where + ": size: expected bytes up to 1e15, found " +
                      shown_json(std::string(words[0])));
    row.bytes = *bytes;
    // Versions that print no redop and root of a collective without them leave the cells empty.
    const std::size_t width = columns_.side.size();
    const std::size_t values = width * static_cast<std::size_t>(columns_.sides);
    std::size_t what = 3;
    if (words.size() > 3 && std::isalpha(static_cast<unsigned char>(words[3][0])) != 0 && words[3] != "N/A")
      row.redop = words[what++];
    else
      row.redop = "none";  // an empty cell says as much
    const bool root = std::find(columns_.what.begin(), columns_.what.end(), "root") != columns_.what.end();
    if (root && words.size() >= what + 1 + values) ++what;
    const std::size_t found = words.size() - what;
    if (words.size() < what || found < values || (found > values && !columns_.more))
      throw UserError(row.where + ": expected " + std::to_string(columns_.what.size() + values) +
                      " cells as in the header (redop and root may be empty), found " +
                      std::to_string(words.size()));
    row.out = side_of(words, what);
    if (columns_.sides > 1) row.in = side_of(words, what + width);
    run_.rows.push_back(std::move(row));
  }

  [[nodiscard]] Side side_of(const Words& words, std::size_t first) const {
    Side side;
    for (std::size_t i = 0; i < columns_.side.size(); ++i) {
      const std::string& column = columns_.side[i];
      const std::string_view word = words[first + i];
      const std::optional<double> value = number_in(word);
      if ((!value && word != "N/A") || (value && *value < 0))
        throw UserError(here() + ": " + column + ": expected a number >= 0 or N/A, found " +
                        shown_json(std::string(word)));
      if (is_time(column)) side.us = value;
      if (column == "algbw") side.algbw = value;
      if (column == "busbw") side.busbw = value;
      if (column == "#wrong") side.wrong = value;
      // Before 2.13: the largest error instead of the number of wrong elements; it says that results were
      // checked.
      if ((column == "error" || column == "res") && value) side.wrong = 0;
    }
    return side;
  }

  const std::string& name_;
  const std::string& network_;
  ForeignFile& file_;
  SampleSet& set_;
  std::size_t line_ = 0;
  std::size_t tables_ = 0;
  Columns columns_;
  Run run_;
};

std::optional<double> optional_number(const json& node, const char* key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || it->is_null()) return std::nullopt;
  if (!it->is_number() || it->get<double>() < 0)
    throw UserError(where + "." + key + ": expected a number >= 0, found " + shown_json(*it));
  return it->get<double>();
}

Side side_in(const json& row, const char* key, const std::string& where) {
  const auto it = row.find(key);
  if (it == row.end() || it->is_null()) return {};
  const std::string here = where + "." + key;
  if (!it->is_object()) throw UserError(here + ": expected an object, found " + shown_json(*it));
  const char* time = it->contains("cpu_time") ? "cpu_time" : "time";
  return {optional_number(*it, time, here), optional_number(*it, "alg_bw", here),
          optional_number(*it, "bus_bw", here), optional_number(*it, "nwrong", here)};
}

const json& list_in(const json& node, const char* key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_array())
    throw UserError(where + "." + key + ": expected a list, found " +
                    (it == node.end() ? "nothing" : shown_json(*it)));
  return *it;
}

int small_count(const json& node, const char* key, const std::string& where) {
  const double value = non_negative_field(node, key, where);
  if (value > kMostCount || value != std::floor(value))
    throw UserError(where + "." + key + ": expected a whole number from 0 to 2^31 - 1, found " +
                    short_number(value));
  return static_cast<int>(value);
}

}  // namespace

bool looks_like_nccl_tests(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_prefix(text.substr(0, end));
    if (line.starts_with('#') && columns_in(words_of(line)).known()) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

bool looks_like_nccl_tests(const json& file) {
  return file.is_object() && file.contains("nccl_version") && file.contains("results");
}

ForeignFile add_nccl_tests(std::string_view text, const std::string& name, const std::string& network,
                           SampleSet& set) {
  ForeignFile file{"nccl-tests", "", "", 0, {}};
  TextReader(name, network, file, set).read(text);
  return file;
}

ForeignFile add_nccl_tests(const json& node, const std::string& name, const std::string& network,
                           SampleSet& set) {
  ForeignFile file{"nccl-tests", "", "", 0, {}};
  const std::string where = name + ": file";
  Run run;
  run.where = name + ": results";
  const json& devices = list_in(object_field(node, "config", where), "devices", where + ".config");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string here = where + ".config.devices[" + std::to_string(i) + "]";
    run.ranks.push_back({small_count(devices[i], "rank", here), small_count(devices[i], "group", here),
                         text_field(devices[i], "hostname", here),
                         text_field(devices[i], "device_info", here)});
  }
  if (node.contains("args") && node["args"].is_array() && !node["args"].empty() &&
      node["args"][0].is_string()) {
    run.program = nccl::program_in(node["args"][0].get_ref<const std::string&>());
    run.said_where = "args";
  }
  const json& rows = list_in(node, "results", where);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row row;
    row.where = name + ": results[" + std::to_string(i) + "]";
    row.bytes = non_negative_field(rows[i], "size", row.where);
    if (rows[i].contains("redop") && rows[i]["redop"].is_string())
      row.redop = rows[i]["redop"].get<std::string>();
    row.out = side_in(rows[i], "out_of_place", row.where);
    row.in = side_in(rows[i], "in_place", row.where);
    run.rows.push_back(std::move(row));
  }
  nccl::add_run(run, name, network, file, set);
  return file;
}

}  // namespace equipoise
