#include "profiler/fit/nccl_tests.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/profile/collective.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

// --- One run of a program of nccl-tests, read from its text or its JSON.

struct NcclRank {
  int rank = 0;
  int group = 0;
  std::string host;
  std::string gpu;
};

// One side of a row, out of place or in place.
struct NcclSide {
  std::optional<double> us, algbw, busbw;
  std::optional<double> wrong;  // number of elements; empty if results were not checked
};

struct NcclRow {
  std::string where;  // file:line
  double bytes = 0;
  std::string redop;  // "none", "sum", ...; empty if the file does not say
  NcclSide out, in;
};

struct NcclRun {
  std::string where;       // file:line of its table
  std::string program;     // "all_reduce_perf"; empty if no line names it
  std::string said_where;  // the line that names it, or "args"
  std::vector<NcclRank> ranks;
  std::vector<NcclRow> rows;
};

struct NcclProgram {
  std::string_view name;
  std::string_view in_file_names;  // part of a file name without its _ and -
  Collective kind;
};
constexpr NcclProgram kPrograms[] = {{"all_reduce_perf", "allreduce", Collective::all_reduce},
                                     {"all_gather_perf", "allgather", Collective::all_gather},
                                     {"reduce_scatter_perf", "reducescatter", Collective::reduce_scatter},
                                     {"alltoall_perf", "alltoall", Collective::all_to_all},
                                     {"sendrecv_perf", "sendrecv", Collective::send_recv}};
constexpr std::string_view kSuffix = "_perf";
constexpr double kNear = 0.03;        // relative tolerance of a bus factor from figures of few digits
constexpr double kTellingGBps = 1.0;  // a lower algbw has too few digits to compute the bus factor

std::string allowed_programs() {
  return all_joined(kPrograms, ", ", &NcclProgram::name);
}

const NcclProgram* program_named(const std::string& name) {
  const auto* found = std::ranges::find(kPrograms, name, &NcclProgram::name);
  return found == std::end(kPrograms) ? nullptr : found;
}

std::string program_of_file(const std::string& path) {
  std::string plain;
  for (const char c : path.substr(path.find_last_of('/') + 1))
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string found;
  for (const NcclProgram& program : kPrograms) {
    if (plain.find(program.in_file_names) == std::string::npos) continue;
    if (!found.empty()) return "";
    found = program.name;
  }
  return found;
}

GroupShape group_of(const NcclRun& run) {
  if (run.ranks.empty())
    throw UserError(run.where,
                    ": expected lines \"# Rank 0 ... on HOST device 0 [...] GPU\" above the table, which say "
                    "how many ranks and nodes there are, found none");
  std::map<std::string, int> on_host;
  std::set<int> seen;
  for (const NcclRank& rank : run.ranks) {
    if (!seen.insert(rank.rank).second)
      throw UserError(run.where, ": rank ", rank.rank,
                      " is listed twice above the table; expected one line for each rank");
    on_host[rank.host] += 1;
  }
  const GroupShape group{static_cast<int>(run.ranks.size()), on_host.begin()->second};
  for (const auto& [host, count] : on_host)
    if (count != group.ranks_per_node)
      throw UserError(run.where, ": expected as many ranks on every node, found ", group.ranks_per_node,
                      " on ", on_host.begin()->first, " and ", count, " on ", host);
  return group;
}

// busbw / algbw of the fastest row; empty if every row is too slow to tell.
std::optional<double> measured_factor(const NcclRun& run) {
  double fastest = kTellingGBps;
  std::optional<double> factor;
  for (const NcclRow& row : run.rows)
    for (const NcclSide* side : {&row.out, &row.in})
      if (side->algbw && side->busbw && *side->algbw >= fastest) {
        fastest = *side->algbw;
        factor = *side->busbw / fastest;
      }
  return factor;
}

// Whether in-place results were checked; empty if no results were.
std::optional<bool> checked_in_place(const NcclRun& run) {
  for (const NcclRow& row : run.rows)
    if (row.out.wrong && row.in.us) return row.in.wrong.has_value();
  return std::nullopt;
}

// Whether the rows' bus factor, reduction and checks fit a collective.
bool possible(const NcclRun& run, Collective kind, int ranks) {
  if (const std::optional<double> factor = measured_factor(run))
    if (std::abs(*factor / bus_factor(kind, ranks) - 1) > kNear) return false;
  const bool reduces = kind == Collective::all_reduce || kind == Collective::reduce_scatter;
  const std::string& redop = run.rows.front().redop;
  if (reduces && (redop == "none")) return false;
  if (!reduces && kind != Collective::send_recv && !redop.empty() && redop != "none") return false;
  const std::optional<bool> checked = checked_in_place(run);
  const bool never_in_place = kind == Collective::all_to_all || kind == Collective::send_recv;
  return !checked || *checked != never_in_place;
}

// The program that ran: the file names it, or its rows fit only one. Throws UserError.
const NcclProgram& program_of(const NcclRun& run, const std::string& name, int ranks) {
  std::vector<const NcclProgram*> by_rows;
  for (const NcclProgram& program : kPrograms)
    if (possible(run, program.kind, ranks)) by_rows.push_back(&program);
  const NcclProgram* said = program_named(run.program);
  std::string where = run.said_where;
  if (said == nullptr) {
    said = program_named(program_of_file(name));
    where = "the file's name";
  }
  if (said != nullptr) {
    const std::optional<double> factor = measured_factor(run);
    const double expected = bus_factor(said->kind, ranks);
    if (factor && std::abs(*factor / expected - 1) > kNear)
      throw UserError(run.where, ": expected busbw / algbw of ", short_number(expected), " from ", said->name,
                      " over ", ranks, " ranks, as ", where, " says, found ", short_number(*factor));
    return *said;
  }
  if (by_rows.size() == 1) return *by_rows.front();
  throw UserError(run.where, ": ",
                  by_rows.empty() ? "these rows are of none of " + allowed_programs()
                                  : "these rows may be of " + all_joined(by_rows, ", ", &NcclProgram::name),
                  "; give the file the name of the program that ran, e.g. all_gather_perf.txt");
}

// The program that a text names, e.g. "all_reduce_perf"; empty if it names none or several.
std::string program_in(std::string_view text) {
  std::string found;
  for (std::size_t at = text.find(kSuffix); at != std::string_view::npos; at = text.find(kSuffix, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 &&
           (std::islower(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '_'))
      --begin;
    const std::string name(text.substr(begin, at + kSuffix.size() - begin));
    if (!found.empty() && found != name) return "";
    found = name;
  }
  return found;
}

// Adds the run's samples, and notes in `file` what they measure and what was skipped. `name` is the file's.
void add_run(const NcclRun& run, const std::string& name, const std::string& network, ForeignFile& file,
             SampleSet& set) {
  if (run.rows.empty()) return;
  if (!run.program.empty() && program_named(run.program) == nullptr)
    return file.skip("rows of " + run.program + " (used: " + allowed_programs() + ")", run.rows.size());
  if (std::ranges::any_of(run.ranks, [&](const NcclRank& rank) { return rank.group != run.ranks[0].group; }))
    return file.skip("rows of several groups at a time, which share their links", run.rows.size());
  const GroupShape all = group_of(run);
  const std::string& gpu = run.ranks.front().gpu;
  if (all.ranks < 2) return file.skip("rows of one rank, which sends nothing", run.rows.size());
  const NcclProgram& program = program_of(run, name, all.ranks);
  const bool nodes = all.ranks > all.ranks_per_node;
  const bool pair = program.kind == Collective::send_recv;
  const GroupShape group = pair ? GroupShape{2, nodes ? 1 : 2} : GroupShape{all.ranks, all.ranks_per_node};
  file.gpu = gpu;
  file.what.append(file.what.empty() ? "" : ", ").append(name_of(program.kind)).append(" over ");
  file.what +=
      concatenated(all.ranks, " GPUs of ", all.ranks / all.ranks_per_node, nodes ? " nodes" : " node");
  for (const NcclRow& row : run.rows) {
    const double us = row.out.us.value_or(0) > 0 ? *row.out.us : row.in.us.value_or(0);
    if (row.bytes == 0) {
      file.skip("rows of no bytes");
    } else if (!(us > 0)) {
      file.skip("rows without a time");
    } else if ((row.out.us.value_or(0) > 0 ? row.out : row.in).wrong.value_or(0) > 0) {
      file.skip("rows with wrong results");
    } else {
      Labels labels{{"op", std::string(name_of(program.kind))},
                    {"gpu", gpu},
                    {"inter_node_network", nodes ? network : ""},
                    {"software", "nccl-tests"},
                    {"source", name}};
      set.collective.push_back({std::move(labels), program.kind, row.bytes, group, us * 1e-6});
      file.used += 1;
    }
  }
}

using nlohmann::json;
using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  Words words;
  for (std::size_t begin = line.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

bool all_digits(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

// The length of what a launcher puts before a line of output: "[1,0]<stdout>:" (Open MPI), "[0] " (MPICH,
// PBS), "[rank0]: " (torchrun) or "2026-01-02T10:00:00Z " (kubectl logs --timestamps). "0: " (srun),
// "node-1: " (pdsh) or a time count only if nccl-tests' own line follows.
std::size_t prefix_of(std::string_view line) {
  if (line.starts_with('[')) {
    std::size_t end = line.find(']');
    if (end == std::string_view::npos) return 0;
    end += 1;
    if (line.substr(end).starts_with("<std")) end = std::min(line.find('>', end), line.size() - 1) + 1;
    return line.substr(end).starts_with(':') ? end + 1 : end;
  }
  const std::string_view first = line.substr(0, line.find(' '));
  if (first.size() < line.size() && first.ends_with('Z') &&
      first.find('T') == std::string_view("2026-01-02").size())
    return first.size() + 1;
  const std::size_t tag = line.find("<std");
  if (const std::size_t close = tag == std::string_view::npos ? tag : line.find(">:", tag);
      close != std::string_view::npos)
    return close + 2;
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos ||
      line.substr(0, colon).find_first_of(" \t#") != std::string_view::npos)
    return 0;
  return colon + 2;
}

// The line of nccl-tests itself, however many launchers it went through.
std::string_view without_prefix(std::string_view line) {
  while (true) {
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    line.remove_prefix(first);
    const std::size_t prefix = prefix_of(line);
    if (prefix == 0) return line;
    line.remove_prefix(prefix);
  }
}

// Calls body(line) for every line, without its prefix, until it returns true. Returns whether it did.
template <class Body>
bool any_line(std::string_view text, const Body& body) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (body(without_prefix(text.substr(0, end)))) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

std::optional<double> number_in(std::string_view word) {
  const std::string text(word);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// A table's columns: `what` describes the call, `side` repeats for the out-of-place and the in-place call.
struct Columns {
  std::vector<std::string> what, side;
  int sides = 0;
  bool more = false;  // whether a time of day follows at the end

  [[nodiscard]] bool known() const { return sides > 0; }
};

bool is_time(std::string_view word) {
  return word == "time" || word == "cputime";
}

// Reads a header line: "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw
// #wrong". Any other line gives `sides` 0.
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

// --- Reads the text that a program prints.

class TextReader {
 public:
  TextReader(const std::string& name, const std::string& network, ForeignFile& file, SampleSet& set)
      : name_(name), network_(network), file_(file), set_(set) {}

  void read(std::string_view text) {
    any_line(text, [this](std::string_view line) {
      ++line_;
      read_line(line);
      return false;
    });
    conclude();
    if (tables_ == 0)
      throw UserError(name_,
                      ": expected nccl-tests' table (# size count type ... time algbw busbw), found none");
  }

 private:
  [[nodiscard]] std::string here() const { return name_ + ":" + std::to_string(line_); }

  void conclude() {
    add_run(run_, name_, network_, file_, set_);
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

  // A command line, or "# Collective test starting: NAME", names the program that runs next.
  void name_program(std::string_view line) {
    const std::string program = program_in(line);
    if (program.empty()) return;
    conclude();
    run_.program = program;
    run_.said_where = "line " + std::to_string(line_);
  }

  // "# Rank 0 [Group 0] [Pid 7] on HOST device 0 [0x10] NVIDIA H100"
  void add_rank(const Words& words, std::string_view line) {
    NcclRank rank;
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
      throw UserError(here(), ": expected # Rank N ... on HOST device D [BUS] GPU, found ",
                      shown_json(std::string(line)));
    if (!run_.rows.empty()) {
      conclude();
      run_.ranks.clear();
    }
    run_.ranks.push_back(std::move(rank));
  }

  static std::string trimmed(std::string_view text) { return all_joined(words_of(text), " "); }

  [[nodiscard]] double count(std::string_view word, const std::string& of) const {
    const std::optional<double> value = number_in(word);
    if (!value || *value < 0 || *value > kMostCount || *value != std::floor(*value))
      throw UserError(here(), ": expected ", of, " from 0 to 2^31 - 1, found ",
                      shown_json(std::string(word)));
    return *value;
  }

  void add_row(const Words& words) {
    NcclRow row;
    row.where = here();
    const std::optional<double> bytes = number_in(words[0]);
    constexpr double most_bytes = 1e15;
    if (!bytes || *bytes > most_bytes)
      throw UserError(row.where, ": size: expected bytes up to 1e15, found ",
                      shown_json(std::string(words[0])));
    row.bytes = *bytes;
    // Some versions leave the cells of redop and root empty for a collective that has none.
    const std::size_t width = columns_.side.size();
    const std::size_t values = width * static_cast<std::size_t>(columns_.sides);
    std::size_t what = 3;
    if (words.size() > 3 && std::isalpha(static_cast<unsigned char>(words[3][0])) != 0 && words[3] != "N/A")
      row.redop = words[what++];
    else
      row.redop = "none";  // an empty cell means "none"
    const bool root = std::find(columns_.what.begin(), columns_.what.end(), "root") != columns_.what.end();
    if (root && words.size() >= what + 1 + values) ++what;
    const std::size_t found = words.size() - what;
    if (words.size() < what || found < values || (found > values && !columns_.more))
      throw UserError(row.where, ": expected ", columns_.what.size() + values,
                      " cells as in the header (redop and root may be empty), found ", words.size());
    row.out = side_of(words, what);
    if (columns_.sides > 1) row.in = side_of(words, what + width);
    run_.rows.push_back(std::move(row));
  }

  [[nodiscard]] NcclSide side_of(const Words& words, std::size_t first) const {
    NcclSide side;
    for (std::size_t i = 0; i < columns_.side.size(); ++i) {
      const std::string& column = columns_.side[i];
      const std::string_view word = words[first + i];
      const std::optional<double> value = number_in(word);
      if ((!value && word != "N/A") || (value && *value < 0))
        throw UserError(here(), ": ", column, ": expected a number >= 0 or N/A, found ",
                        shown_json(std::string(word)));
      if (is_time(column)) side.us = value;
      if (column == "algbw") side.algbw = value;
      if (column == "busbw") side.busbw = value;
      if (column == "#wrong") side.wrong = value;
      // Versions before 2.13 print the largest error instead of the number of wrong elements. It shows that
      // results were checked.
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
  NcclRun run_;
};

// --- Reads the JSON that -J writes.

std::optional<double> optional_number(const json& node, const char* key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || it->is_null()) return std::nullopt;
  if (!it->is_number() || it->get<double>() < 0) refuse_field(node, key, where, "a number >= 0");
  return it->get<double>();
}

NcclSide side_in(const json& row, const char* key, const std::string& where) {
  const auto it = row.find(key);
  if (it == row.end() || it->is_null()) return {};
  if (!it->is_object()) refuse_field(row, key, where, "an object");
  const std::string here = where + "." + key;
  const char* time = it->contains("cpu_time") ? "cpu_time" : "time";
  return {optional_number(*it, time, here), optional_number(*it, "alg_bw", here),
          optional_number(*it, "bus_bw", here), optional_number(*it, "nwrong", here)};
}

}  // namespace

bool looks_like_nccl_tests(std::string_view text) {
  return any_line(text, [](std::string_view line) {
    return line.starts_with('#') && columns_in(words_of(line)).known();
  });
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
  NcclRun run;
  run.where = name + ": results";
  const json& devices = list_field(object_field(node, "config", where), "devices", where + ".config");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string here = where + ".config.devices[" + std::to_string(i) + "]";
    run.ranks.push_back({static_cast<int>(count_field(devices[i], "rank", here, 0)),
                         static_cast<int>(count_field(devices[i], "group", here, 0)),
                         text_field(devices[i], "hostname", here),
                         text_field(devices[i], "device_info", here)});
  }
  if (node.contains("args") && node["args"].is_array() && !node["args"].empty() &&
      node["args"][0].is_string()) {
    run.program = program_in(node["args"][0].get_ref<const std::string&>());
    run.said_where = "args";
  }
  const json& rows = list_field(node, "results", where);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    NcclRow row;
    row.where = name + ": results[" + std::to_string(i) + "]";
    row.bytes = non_negative_field(rows[i], "size", row.where);
    if (rows[i].contains("redop") && rows[i]["redop"].is_string())
      row.redop = rows[i]["redop"].get<std::string>();
    row.out = side_in(rows[i], "out_of_place", row.where);
    row.in = side_in(rows[i], "in_place", row.where);
    run.rows.push_back(std::move(row));
  }
  add_run(run, name, network, file, set);
  return file;
}

}  // namespace equipoise
