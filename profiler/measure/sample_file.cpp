#include "profiler/measure/sample_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "profiler/profile/profile.h"
#include "traces/json_text.h"

namespace equipoise::measure {
namespace {

using nlohmann::json;

json fields(const LaunchPoint&, const SampleContext&) {
  return json::object();
}

json fields(const CopyPoint& point, const SampleContext&) {
  return {{"op", name_of(kernels::Elementwise::copy)},
          {"bytes", 2 * point.bytes}};  // read once, written once
}

json fields(const AttentionPoint& point, const SampleContext& context) {
  json pieces = json::array();
  for (const kernels::Piece& piece : point.pieces) pieces.push_back({piece.queries, piece.keys});
  return {{"pass", name_of(point.pass)},
          {"kernel", context.attention_kernel},
          {"dtype", context.dtype},
          {"head_dim", point.shape.head_dim},
          {"query_heads", point.shape.query_heads},
          {"kv_heads", point.shape.kv_heads},
          {"pieces", std::move(pieces)},
          {"what", point.what}};
}

json fields(const GemmPoint& point, const SampleContext& context) {
  return {{"m", point.shape.m},
          {"n", point.shape.n},
          {"k", point.shape.k},
          {"dtype", context.dtype},
          {"form", std::string(point.shape.transpose_a ? "T" : "N") + (point.shape.transpose_b ? "T" : "N")},
          {"what", point.what}};
}

json fields(const RowPoint& point, const SampleContext& context) {
  const kernels::RowOp& op = kernels::kRowOps[point.op];
  return {{"op", name_of(op.kind)},
          {"pass", name_of(op.pass)},
          {"bytes", row_op_bytes(point, context.type)},
          {"rows", point.rows},
          {"columns", point.columns}};
}

json fields(const CollectivePoint& point, const SampleContext& context) {
  return {{"kind", name_of(point.kind)},
          {"bytes", point.bytes},
          {"ranks", point.ranks},
          {"ranks_per_node", std::min(point.ranks, context.ranks_per_node)},
          {"network", ""},
          {"nic_GBps", 0}};
}

bool is_sample_line(const json& line) {
  const auto text = [&](const char* key) { return line.contains(key) && line[key].is_string(); };
  if (!line.is_object() || !text("family") || !text("point") || !text("key")) return false;
  const auto sample = line.find("sample");
  if (sample == line.end() || !sample->is_object()) return false;
  const auto seconds = sample->find("seconds"), disturbed = sample->find("disturbed");
  const auto number_or_none = [&](const char* key) {
    const auto found = sample->find(key);
    return found == sample->end() || found->is_number();
  };
  return seconds != sample->end() && seconds->is_number() && number_or_none(kCpuPace) &&
         number_or_none(kReach) && number_or_none("ranks") &&
         (disturbed == sample->end() || disturbed->is_boolean());
}

// Calls body(line, number) for every whole line. A last line that a crash cut short is skipped.
template <class Body>
void for_journal_lines(const std::string& path, Body body) {
  std::ifstream in(path);
  std::size_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    const bool last = in.peek() == std::ifstream::traits_type::eof();
    json line;
    try {
      line = parse_json_line(text, path + ":" + std::to_string(number));
    } catch (const UserError&) {
      if (last) return;
      throw;
    }
    if (!is_sample_line(line)) {
      throw UserError(path, ":", number,
                      ": not a sample line of this program; remove the file to start again");
    }
    body(line, number);
  }
}

double pace_of(const json& line) {
  return line.at("sample").value(kCpuPace, 0.0);
}

using Visits = std::vector<json>;

double seconds_of(const json& line) {
  return line.at("sample").at("seconds").get<double>();
}

double reach_of(const json& line) {
  return line.at("sample").value(kReach, 0.0);
}

bool disturbed(const json& line) {
  return line.at("sample").value("disturbed", false);
}

// The fastest visit. Visits that were disturbed, or whose core was below its usual pace (known only at the
// end of the run), count only where there is no other.
json fastest_visit(const Visits& visits, double usual_pace) {
  const auto set_back = [&](const json& line) {
    const double pace = pace_of(line);
    return disturbed(line) || (pace > 0 && pace < (1 - kMostThrottled) * usual_pace);
  };
  return *std::ranges::min_element(
      visits, {}, [&](const json& visit) { return std::pair(set_back(visit), seconds_of(visit)); });
}

// The usual state of a group's ranks over all visits of its collectives.
struct UsualGroup {
  double reach = 0;
  bool ever_undisturbed = false;
};

// The median of a collective's undisturbed visits at the usual reach (of two, the faster). Null where there
// are none: a time slice that others take during a message lasts longer than the message, and the fit can do
// without a size. Only where no visit at all was undisturbed does the fastest disturbed one count.
json middle_visit(Visits visits, const UsualGroup& usual) {
  constexpr double kMostOff = 0.25;  // readings of one placement differ by at most a tenth
  const auto unusual = [&](const json& line) {
    return std::abs(reach_of(line) - usual.reach) > kMostOff * usual.reach ||
           (usual.ever_undisturbed && disturbed(line));
  };
  visits.erase(std::remove_if(visits.begin(), visits.end(), unusual), visits.end());
  if (visits.empty()) return nullptr;
  std::ranges::sort(visits, {}, [](const json& j) { return seconds_of(j); });
  return visits[usual.ever_undisturbed ? (visits.size() - 1) / 2 : 0];
}

// The fields that identify a point, and the times of all its visits.
json told_by(const Visits& visits, double usual_pace, const std::map<double, UsualGroup>& groups) {
  const json& first = visits.front();
  const bool collective = first.at("family") == "collective";
  json line = collective ? middle_visit(visits, groups.at(first.at("sample").value("ranks", 0.0)))
                         : fastest_visit(visits, usual_pace);
  if (line.is_null() || visits.size() == 1) return line;
  json& all = line["sample"]["visits_seconds"] = json::array();
  for (const json& visit : visits) all.push_back(seconds_of(visit));
  return line;
}

// By group size. The reach is the median over visits, so it is that of the most frequent placement.
std::map<double, UsualGroup> usual_groups(const std::map<std::string, Visits>& by_point) {
  std::map<double, UsualGroup> usual;
  std::map<double, std::vector<double>> reaches;
  for (const auto& [point, visits] : by_point) {
    for (const json& visit : visits) {
      if (visit.at("family") != "collective") continue;
      const double ranks = visit.at("sample").value("ranks", 0.0);
      reaches[ranks].push_back(reach_of(visit));
      usual[ranks].ever_undisturbed = usual[ranks].ever_undisturbed || !disturbed(visit);
    }
  }
  for (auto& [ranks, all] : reaches) {
    std::sort(all.begin(), all.end());
    usual[ranks].reach = all[all.size() / 2];
  }
  return usual;
}

}  // namespace

json sample_line(const Point& point, const Measurement& measured, const SampleContext& context,
                 const std::string& key) {
  json sample = std::visit([&](const auto& what) { return fields(what, context); }, point.what);
  sample["seconds"] = measured.seconds;
  sample["wall_seconds"] = measured.wall_seconds;
  sample["spread"] = measured.spread;
  if (measured.pace > 0) sample[context.pace_name] = measured.pace;
  if (measured.reach_seconds > 0) sample[kReach] = measured.reach_seconds;
  sample["calls_per_batch"] = measured.calls_per_batch;
  sample["batches"] = measured.kept;
  sample["stolen"] = measured.stolen;
  sample["throttled"] = measured.throttled;
  if (measured.disturbed) sample["disturbed"] = true;
  return {
      {"family", family_of(point)}, {"point", key_of(point)}, {"key", key}, {"sample", std::move(sample)}};
}

Journal::Journal(const std::string& path, bool resume, std::string device)
    : path_(path), device_(std::move(device)) {
  if (resume) keep_lines();
  file_.open(path, resume ? std::ios::app : std::ios::trunc);
  if (!file_) throw UserError(path, ": cannot be written");
}

void Journal::keep_lines() {
  std::string kept;
  for_journal_lines(path_, [&](const json& line, std::size_t number) {
    const auto found = line.find("device");
    const std::string measured_on =
        found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
    if (measured_on != device_)
      throw UserError(path_, ":", number, ": found a sample of ",
                      measured_on.empty() ? "a device without a name" : measured_on,
                      ", expected one of this run's ", device_,
                      "; give another --out, or start again without --resume");
    keys_.insert(line.at("key").get<std::string>());
    kept += line.dump() + "\n";
  });
  forget_input(path_);
  write_file_atomically(path_, kept);  // drops a line that was cut short
}

void Journal::add(json line) {
  line["device"] = device_;
  keys_.insert(line.at("key").get<std::string>());
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) throw UserError(path_, ": cannot be written");
}

json samples_of_journal(const std::string& path) {
  std::map<std::string, Visits> by_point;  // ordered by point, not by the order of measuring
  PaceLog paces;
  for_journal_lines(path, [&](const json& line, std::size_t) {
    by_point[line.at("point").get<std::string>()].push_back(line);
    paces.add(pace_of(line));
  });
  const double usual_pace = paces.usual();
  const std::map<double, UsualGroup> groups = usual_groups(by_point);
  json samples;
  for (const std::string_view table : kTableNames) samples[std::string(table)] = json::array();
  for (const auto& [point, visits] : by_point) {
    const json line = told_by(visits, usual_pace, groups);
    if (line.is_null()) continue;
    const auto family = line.at("family").get<std::string>();
    if (family == "launch")
      samples["launch"] = line.at("sample");
    else
      samples[family == "copy" ? "elementwise" : family].push_back(line.at("sample"));
  }
  return samples;
}

Failures::Failures(const std::string& out, bool resume) : path_(out + ".failed"), trying_(out + ".trying") {
  if (!resume) {
    std::remove(path_.c_str());
    end();
    return;
  }
  keep_lines();
  std::string key;
  if (std::ifstream trying(trying_); std::getline(trying, key) && !key.empty()) {
    add(key, "the program ended while it was measured");
    end();
  }
}

void Failures::keep_lines() {
  std::ifstream failed(path_);
  std::string kept;
  bool cut_short = false;  // a crash cut the last line short, and the next line must not continue it
  for (std::string line; std::getline(failed, line);) {
    cut_short = failed.eof();
    if (cut_short) break;
    keys_.insert(line.substr(0, line.find('\t')));
    kept += line + '\n';
  }
  forget_input(path_);
  if (cut_short) write_file_atomically(path_, kept);
}

void Failures::add(const std::string& key, const std::string& reason) {
  if (!keys_.insert(key).second) return;
  std::string line = key + '\t' + reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ofstream file(path_, std::ios::app);
  file << line << '\n' << std::flush;
  if (!file) throw UserError(path_, ": cannot be written");
}

void Failures::begin(const std::string& key) const {
  std::ofstream file(trying_, std::ios::trunc);
  file << key << '\n' << std::flush;
  if (!file) throw UserError(trying_, ": cannot be written");
}

void Failures::end() const {
  std::remove(trying_.c_str());
}

namespace {

json error_json(double error) {
  return std::isfinite(error) ? json(error) : json("not finite");
}

json check_json(const std::vector<kernels::CheckResult>& results) {
  json list = json::array();
  for (const kernels::CheckResult& result : results) {
    list.push_back({{"op", result.op},
                    {"tensor", result.tensor},
                    {"shape", result.shape},
                    {"error", error_json(result.error)},
                    {"limit", result.limit}});
  }
  return list;
}

// The worst error of each (op, tensor), which is the part of the checks that a profile keeps.
json check_summary(const std::vector<kernels::CheckResult>& results) {
  std::map<std::string, const kernels::CheckResult*> worst;
  for (const kernels::CheckResult& result : results) {
    const kernels::CheckResult*& entry = worst[result.op + " " + result.tensor];
    if (entry == nullptr || entry->error < result.error) entry = &result;
  }
  json summary = json::object();
  for (const auto& [name, result] : worst) {
    summary[name] = {
        {"worst_error", error_json(result->error)}, {"limit", result->limit}, {"shape", result->shape}};
  }
  return summary;
}

// Adds the results that the samples file at `path` has for ops that `results` lack.
void keep_earlier(const std::vector<kernels::CheckResult>& results, const std::string& path, json& checks) {
  const auto part = [](const json& node, const char* key, const json& otherwise) {
    const auto it = node.is_object() ? node.find(key) : node.end();
    return it != node.end() && it->type() == otherwise.type() ? *it : otherwise;
  };
  if (!std::filesystem::exists(path)) return;
  const json earlier = part(read_json_file(path), "checks", json::object());
  const json summary = part(earlier, "summary", json::object());
  std::set<std::string> now;
  for (const kernels::CheckResult& result : results) now.insert(result.op);
  for (const json& result : part(earlier, "all", json::array()))
    if (now.count(part(result, "op", "").get<std::string>()) == 0) checks["all"].push_back(result);
  for (const auto& [name, result] : summary.items())
    if (now.count(name.substr(0, name.find(' '))) == 0) checks["summary"][name] = result;
}

}  // namespace

std::vector<kernels::CheckResult> checks_of(kernels::Backend& backend, const std::set<std::string>& families,
                                            std::uint64_t seed) {
  struct Part {
    const char* family;
    std::vector<kernels::CheckResult> (*check)(kernels::Backend&, std::uint64_t);
  };
  std::vector<kernels::CheckResult> results;
  for (const Part& part : {Part{"attention", kernels::check_attention}, Part{"gemm", kernels::check_gemm},
                           Part{"elementwise", kernels::check_rows}}) {
    if (!families.empty() && families.count(part.family) == 0) continue;
    try {
      const std::vector<kernels::CheckResult> more = part.check(backend, ++seed);
      results.insert(results.end(), more.begin(), more.end());
    } catch (const std::exception& e) {
      results.push_back({part.family, "not run", e.what(), std::numeric_limits<double>::infinity(), 0});
    }
  }
  return results;
}

const kernels::CheckResult* worst_of(const std::vector<kernels::CheckResult>& results) {
  const kernels::CheckResult* worst = nullptr;
  for (const kernels::CheckResult& result : results)
    if (worst == nullptr || result.error * worst->limit > worst->error * result.limit) worst = &result;
  return worst;
}

json checks_json(const std::vector<kernels::CheckResult>& results, const std::string& earlier) {
  json checks = {{"summary", check_summary(results)}, {"all", check_json(results)}};
  if (!earlier.empty()) keep_earlier(results, earlier, checks);
  return checks;
}

}  // namespace equipoise::measure
