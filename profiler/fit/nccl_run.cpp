#include "profiler/fit/nccl_run.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/json_fields.h"

namespace equipoise::nccl {
namespace {

struct Program {
  std::string_view name;
  std::string_view in_file_names;  // without _ and -
  Collective kind;
};
constexpr Program kPrograms[] = {{"all_reduce_perf", "allreduce", Collective::all_reduce},
                                 {"all_gather_perf", "allgather", Collective::all_gather},
                                 {"reduce_scatter_perf", "reducescatter", Collective::reduce_scatter},
                                 {"alltoall_perf", "alltoall", Collective::all_to_all},
                                 {"sendrecv_perf", "sendrecv", Collective::send_recv}};
constexpr std::string_view kSuffix = "_perf";
constexpr double kNear = 0.03;        // of a bus factor, printed in few digits
constexpr double kTellingGBps = 1.0;  // of algbw, below which two digits do not tell its factor

std::string allowed_programs() {
  std::vector<std::string> names;
  for (const Program& program : kPrograms) names.emplace_back(program.name);
  return joined(names);
}

const Program* program_named(const std::string& name) {
  const auto* found = std::find_if(std::begin(kPrograms), std::end(kPrograms),
                                   [&](const Program& program) { return program.name == name; });
  return found == std::end(kPrograms) ? nullptr : found;
}

std::string program_of_file(const std::string& path) {
  std::string plain;
  for (const char c : path.substr(path.find_last_of('/') + 1))
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string found;
  for (const Program& program : kPrograms) {
    if (plain.find(program.in_file_names) == std::string::npos) continue;
    if (!found.empty()) return "";
    found = program.name;
  }
  return found;
}

struct Group {
  int ranks = 0;
  int ranks_per_node = 0;
  std::string gpu;
};

Group group_of(const Run& run) {
  if (run.ranks.empty())
    throw UserError(run.where +
                    ": expected lines \"# Rank 0 ... on HOST device 0 [...] GPU\" above the table, which say "
                    "how many ranks and nodes there are, found none");
  std::map<std::string, int> on_host;
  std::set<int> seen;
  for (const Rank& rank : run.ranks) {
    if (!seen.insert(rank.rank).second)
      throw UserError(run.where + ": rank " + std::to_string(rank.rank) +
                      " stands twice above the table; expected one "
                      "line of each rank");
    on_host[rank.host] += 1;
  }
  Group group{static_cast<int>(run.ranks.size()), on_host.begin()->second, run.ranks.front().gpu};
  for (const auto& [host, count] : on_host)
    if (count != group.ranks_per_node)
      throw UserError(run.where + ": expected as many ranks on every node, found " +
                      std::to_string(group.ranks_per_node) + " on " + on_host.begin()->first + " and " +
                      std::to_string(count) + " on " + host);
  return group;
}

// busbw / algbw of the fastest row that tells it.
std::optional<double> measured_factor(const Run& run) {
  double fastest = kTellingGBps;
  std::optional<double> factor;
  for (const Row& row : run.rows)
    for (const Side* side : {&row.out, &row.in})
      if (side->algbw && side->busbw && *side->algbw >= fastest) {
        fastest = *side->algbw;
        factor = *side->busbw / fastest;
      }
  return factor;
}

// Nothing where results were not checked; else whether those in place were, too.
std::optional<bool> checked_in_place(const Run& run) {
  for (const Row& row : run.rows)
    if (row.out.wrong && row.in.us) return row.in.wrong.has_value();
  return std::nullopt;
}

// Whether the rows can be of a collective: by bus factor, reduction and what is checked.
bool possible(const Run& run, Collective kind, int ranks) {
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

// The program that ran, as the file says it or as its rows tell it.
const Program& program_of(const Run& run, const std::string& name, int ranks) {
  std::vector<const Program*> by_rows;
  for (const Program& program : kPrograms)
    if (possible(run, program.kind, ranks)) by_rows.push_back(&program);
  const Program* said = program_named(run.program);
  std::string where = run.said_where;
  if (said == nullptr) {
    said = program_named(program_of_file(name));
    where = "the file's name";
  }
  if (said != nullptr) {
    const std::optional<double> factor = measured_factor(run);
    const double expected = bus_factor(said->kind, ranks);
    if (factor && std::abs(*factor / expected - 1) > kNear)
      throw UserError(run.where + ": expected busbw / algbw of " + short_number(expected) + " from " +
                      std::string(said->name) + " over " + std::to_string(ranks) + " ranks, as " + where +
                      " says, found " + short_number(*factor));
    return *said;
  }
  if (by_rows.size() == 1) return *by_rows.front();
  std::vector<std::string> names;
  for (const Program* program : by_rows) names.emplace_back(program->name);
  throw UserError(run.where + ": " +
                  (names.empty() ? "these rows are of none of " + allowed_programs()
                                 : "these rows may be of " + joined(names)) +
                  "; give the file the name of the program that ran, e.g. all_gather_perf.txt");
}

const Side* timed_side(const Row& row) {
  if (row.out.us && *row.out.us > 0) return &row.out;
  if (row.in.us && *row.in.us > 0) return &row.in;
  return nullptr;
}

}  // namespace

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

void add_run(const Run& run, const std::string& name, const std::string& network, ForeignFile& file,
             SampleSet& set) {
  if (run.rows.empty()) return;
  if (!run.program.empty() && program_named(run.program) == nullptr)
    return file.leave_out("rows of " + run.program + " (used: " + allowed_programs() + ")", run.rows.size());
  if (std::any_of(run.ranks.begin(), run.ranks.end(),
                  [&](const Rank& rank) { return rank.group != run.ranks[0].group; }))
    return file.leave_out("rows of several groups at a time, which share their links", run.rows.size());
  const Group all = group_of(run);
  if (all.ranks < 2) return file.leave_out("rows of one rank, which sends nothing", run.rows.size());
  const Program& program = program_of(run, name, all.ranks);
  const bool nodes = all.ranks > all.ranks_per_node;
  const bool pair = program.kind == Collective::send_recv;
  const GroupShape group = pair ? GroupShape{2, nodes ? 1 : 2} : GroupShape{all.ranks, all.ranks_per_node};
  file.gpu = all.gpu;
  file.what.append(file.what.empty() ? "" : ", ").append(name_of(program.kind)).append(" over ");
  file.what.append(std::to_string(all.ranks))
      .append(" GPUs of ")
      .append(std::to_string(all.ranks / all.ranks_per_node));
  file.what += nodes ? " nodes" : " node";
  for (const Row& row : run.rows) {
    const Side* side = timed_side(row);
    if (row.bytes == 0) {
      file.leave_out("rows of no bytes");
    } else if (side == nullptr) {
      file.leave_out("rows without a time");
    } else if (side->wrong.value_or(0) > 0) {
      file.leave_out("rows with wrong results");
    } else {
      Labels labels{{"op", std::string(name_of(program.kind))},
                    {"gpu", all.gpu},
                    {"inter_node_network", nodes ? network : ""},
                    {"software", "nccl-tests"},
                    {"source", name}};
      set.collective.push_back({std::move(labels), program.kind, row.bytes, group, *side->us * 1e-6});
      file.used += 1;
    }
  }
}

}  // namespace equipoise::nccl
