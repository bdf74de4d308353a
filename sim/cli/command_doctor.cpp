#include "sim/cli/command_doctor.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>

#include "kernels/backend.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/solver/mixed_program.h"
#include "profiler/profile/profile.h"
#include "sim/execution/launch.h"
#include "sim/limits/memory_limit.h"
#include "sim/metrics/metrics.h"
#include "sim/report/sha256.h"
#include "sim/report/text_table.h"
#include "sim/report/words/words.h"
#include "sim/study/run_study.h"
#include "traces/json_text.h"
#include "traces/trace.h"

namespace equipoise {
namespace {

// One line of `doctor`: what was checked, its state, and what that means or how to repair it.
struct Finding {
  enum State { good, absent, bad } state = good;
  std::string what, text;
};
constexpr const char* kStateNames[] = {"ok", "absent", "FAILED"};

// The finding of `look`. If it throws, the item has failed, or is absent if nobody needs it.
Finding looked_at(const std::string& what, Finding::State otherwise,
                  const std::function<std::string()>& look) {
  try {
    return {Finding::good, what, look()};
  } catch (const std::exception& e) {
    return {otherwise, what, e.what()};
  }
}

std::string free_disk(const std::filesystem::path& folder) {
  return bytes_text(static_cast<double>(std::filesystem::space(folder).available)) + " free in " +
         folder.string();
}

// Loads each profile and prices with it, which refuses a file that was cut or changed by hand. Returns their
// names.
std::string load_profiles() {
  for (const std::string& name : shipped_profiles()) (void)Profile::load(name);
  return joined(shipped_profiles());
}

struct ShippedDigest {
  const char *share, *source_tree, *file, *sha256;
};
constexpr ShippedDigest kDigests[] = {
#include EQUIPOISE_SHIPPED_DIGESTS
};

// Checks that profiles, presets and traces are those that the program was built with.
std::string check_digests() {
  for (const ShippedDigest& known : kDigests) {
    const std::string path = (shipped_path(known.share, known.source_tree) / known.file).string();
    if (sha256(read_text_file(path)) != known.sha256)
      throw UserError(path + ": expected SHA-256 " + known.sha256 +
                      ", as when the program was built, found another: install the file again, or build "
                      "again if the change is yours");
  }
  return std::to_string(std::size(kDigests)) + " with the SHA-256 of the build";
}

// Reads recorded traces to their end (zstd checks its own sums) and compares them with their sidecars.
std::string read_recorded() {
  const std::filesystem::path folder = shipped_path("traces/recorded", EQUIPOISE_RECORDED_TRACES);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const nlohmann::json about = read_json_file(entry.path().string());
    const Trace trace = read_trace((folder / about.at("trace").get<std::string>()).string());
    const std::int64_t tokens = sum_of(trace.lengths);
    if (static_cast<std::int64_t>(trace.lengths.size()) != about.at("documents") ||
        tokens != about.at("tokens"))
      throw UserError(trace.origin + ": expected the documents and tokens of " + entry.path().string() +
                      ", found " + grouped(static_cast<std::int64_t>(trace.lengths.size())) + " and " +
                      grouped(tokens));
    names.push_back(about.at("trace"));
  }
  std::sort(names.begin(), names.end());
  return joined(names);
}

// Runs a study from documents to table, also at op fidelity: both fidelities must agree to the picosecond.
std::string run_small_study() {
  const auto begin = std::chrono::steady_clock::now();
  const Study study =
      parse_study(nlohmann::json::parse(R"({"trace": {"distribution": "wlb-128k"}, "model": "llama2-7b",
        "parallel": {"tensor": 8, "context": 2, "pipeline": 4}, "batch": {"sequences_per_step": 4, "steps": 5},
        "policies": ["plain-4d", "wlb-llm"]})"),
                  "doctor");
  RunStudyOptions options;
  const StudyResult stage = run_study(study, options);
  options.steps.fidelity = Fidelity::op;
  const StudyResult op = run_study(study, options);
  for (std::size_t row = 0; row < stage.policies.size(); ++row) {
    const PolicyResult &a = stage.policies[row], &b = op.policies[row];
    if (a.status != RowStatus::ok) throw UserError(a.run.label + " does not run: " + reason_text(a.reasons));
    if (a.metrics.seconds != b.metrics.seconds)
      throw UserError(a.run.label + ": the fidelities disagree: this build is not sound");
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  return "two policies on 64 simulated GPUs, both fidelities alike, " + fixed(spent.count(), 1) + " s";
}

std::string device_text(const kernels::BackendKind& kind) {
  std::string reason;
  const auto backend = kind.make(reason);
  if (!backend) throw UserError(reason);
  return backend->describe().name;
}

std::vector<Finding> findings(std::string_view version) {
#ifdef NDEBUG
  const std::string checks = "without assertions";
#else
  const std::string checks = "with assertions";
#endif
  std::vector<Finding> all = {
      {Finding::good, "build", std::string(version) + ", compiler " + __VERSION__ + ", " + checks},
      {Finding::good, "memory",
       bytes_text(default_memory_limit().bytes) + ", " + default_memory_limit().source},
      looked_at("disk", Finding::bad, [] { return free_disk(std::filesystem::current_path()); }),
      looked_at("temporary files", Finding::bad,
                [] { return free_disk(std::filesystem::temp_directory_path()); }),
      looked_at("profiles", Finding::bad, load_profiles),
      looked_at("recorded traces", Finding::bad, read_recorded),
      looked_at("shipped files", Finding::bad, check_digests),
      looked_at("mpirun", Finding::absent, [] { return execution::this_host().launcher; })};
  for (const kernels::BackendKind& kind : kernels::kBackends)
    all.push_back(looked_at("device " + std::string(kind.name), kind.gpu ? Finding::absent : Finding::bad,
                            [&] { return device_text(kind); }));
  all.push_back(looked_at("solver", Finding::absent, []() -> std::string {
    if (!solver_available())
      throw UserError("no MILP solver: fixed-solver, varlen-solver and skrull-solver refuse to run");
    return solver_available(MilpSolver::cbc) ? "CBC" : "HiGHS";
  }));
  all.push_back(looked_at("a run", Finding::bad, run_small_study));
  return all;
}

}  // namespace

int run_doctor_command(Format format, std::string_view version, std::ostream& out) {
  if (format == Format::csv) throw UserError("doctor: --format csv; allowed: table, json");
  const std::vector<Finding> all = findings(version);
  nlohmann::ordered_json list = nlohmann::json::array();
  TextTable table({"what", "state", "found"});
  for (const std::size_t left : {1U, 2U}) table.align_left(left);
  for (const Finding& finding : all) {
    list.push_back(
        {{"what", finding.what}, {"state", kStateNames[finding.state]}, {"found", printable(finding.text)}});
    table.add({finding.what, kStateNames[finding.state], printable(finding.text)});
  }
  out << (format == Format::json ? list.dump(2) + "\n" : table.text(screen_width()));
  return std::ranges::any_of(all, [](const Finding& f) { return f.state == Finding::bad; }) ? 1 : 0;
}

}  // namespace equipoise
