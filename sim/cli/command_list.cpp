// `equipoise list` and `equipoise doctor`: what there is, in the program and on this machine.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <variant>

#include "kernels/backend.h"
#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "policies/solver/assignment.h"
#include "profiler/profile/profile.h"
#include "profiler/profile/shipped_files.h"
#include "sim/cli/plan_commands.h"
#include "sim/execution/launch.h"
#include "sim/framework/framework.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/text_table.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/run_study.h"
#include "sim/workload/model.h"
#include "traces/json_text.h"
#include "traces/synth.h"
#include "traces/trace.h"

namespace equipoise {
namespace {

struct Row {
  std::string name, kind, from, summary;
  nlohmann::ordered_json options = {};  // of a policy: its keys, as the JSON Schema has them, with defaults
};

// The default of a key. It is null where a value outside of the range stands for what the help says: from the
// window, from memory.
template <class Options>
nlohmann::ordered_json default_of(const Parameter<Options>& row, const Options& defaults) {
  const ParameterValue value = row.get(defaults);
  if (const auto* number = std::get_if<std::int64_t>(&value);
      number != nullptr && row.kind != ParameterKind::choice)
    if (*number < row.least || *number > row.most) {
      if (!row.words.empty()) return row.words[at(-*number)];
      return nullptr;
    }
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value); list != nullptr && list->empty())
    return nullptr;
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && text->empty()) return nullptr;
  if (row.kind == ParameterKind::choice) return row.choices[at(std::get<0>(value))];
  return std::visit([](const auto& held) { return nlohmann::ordered_json(held); }, value);
}

template <class Options>
nlohmann::ordered_json options_of(std::span<const Parameter<Options>> rows, const Options& defaults) {
  static const nlohmann::ordered_json kSchema = policy_schema_properties();
  nlohmann::ordered_json options = nlohmann::ordered_json::object();
  for (const Parameter<Options>& row : rows) {
    nlohmann::ordered_json& option = options[std::string(row.key)];
    option = kSchema.at(std::string(row.key));
    option["default"] = default_of(row, defaults);
  }
  return options;
}

std::vector<Row> policy_rows() {
  std::vector<Row> rows;
  for (const Policy& p : packing_policies())
    rows.push_back({std::string(p.name), "packing", std::string(p.paper), std::string(p.summary),
                    options_of(p.parameters, PackOptions())});
  const Policy& from_file = plan_policy();
  rows.push_back({std::string(from_file.name), "file", "equipoise.plan/1", std::string(from_file.summary),
                  options_of(from_file.parameters, PackOptions())});
  for (const Preset& p : presets())
    rows.push_back({p.name, "preset", "WLB-LLM (arXiv 2503.17924)", p.summary});
  for (const ShardPolicy& p : sharding_policies())
    rows.push_back({std::string(p.name), "sharding", std::string(p.paper), std::string(p.summary),
                    options_of(p.parameters, default_sharding())});
  return rows;
}

std::vector<Row> schedule_rows() {
  std::vector<Row> rows;
  for (const SchedulePolicy& p : schedule_policies())
    rows.push_back({std::string(p.name), "schedule", std::string(p.paper), std::string(p.summary)});
  return rows;
}

std::vector<Row> model_rows() {
  std::vector<Row> rows;
  for (const ModelShape& m : builtin_models())
    rows.push_back({m.name, "model", grouped(m.parameters()) + " parameters",
                    std::to_string(m.layers) + " layers, hidden " + std::to_string(m.hidden) + ", " +
                        std::to_string(m.heads) + " heads (" + std::to_string(m.kv_heads) + " KV) of " +
                        std::to_string(m.head_dim) + ", FFN " + std::to_string(m.ffn) + ", vocabulary " +
                        std::to_string(m.vocab) +
                        (m.moe ? ", " + std::to_string(m.moe->experts) + " experts" : "")});
  return rows;
}

std::vector<Row> profile_rows() {
  std::vector<Row> rows;
  for (const std::string& name : shipped_profiles()) {
    const Profile profile = Profile::load(name);
    rows.push_back({name, "profile", profile.device().name,
                    fixed(profile.device().peak_bf16_tflops, 0) + " TFLOP/s bf16 peak, " +
                        fixed(profile.device().memory_bytes / 1e9, 0) + " GB"});
  }
  return rows;
}

std::vector<Row> framework_rows() {
  std::vector<Row> rows;
  for (const std::string& name : shipped_frameworks()) {
    const FrameworkPreset preset = FrameworkPreset::load(name);
    rows.push_back({name, name == kDefaultFramework ? "default" : "framework",
                    preset.kernels_text() + (preset.host_text.empty() ? "" : "; " + preset.host_text),
                    preset.summary});
  }
  return rows;
}

// The recorded traces that are shipped: each has a sidecar that says how it was made.
void add_recorded(std::vector<Row>& rows) {
  std::vector<std::filesystem::path> sidecars;
  std::error_code none;
  const std::filesystem::path folder = shipped_path("traces/recorded", EQUIPOISE_RECORDED_TRACES);
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    if (entry.path().extension() == ".json") sidecars.push_back(entry.path());
  std::sort(sidecars.begin(), sidecars.end());
  for (const auto& path : sidecars) {
    const nlohmann::json about = read_json_file(path.string());
    if (!about.is_object()) continue;
    rows.push_back({"traces/recorded/" + about.value("trace", path.stem().string()), "recorded",
                    about.contains("tokenizer") ? "recorded by this project from Debian packages"
                                                : "mixture of the recorded ones",
                    grouped(about.value("documents", std::int64_t{0})) + " documents, " +
                        grouped(about.value("tokens", std::int64_t{0})) + " tokens, longest " +
                        grouped(about.value("longest", std::int64_t{0}))});
  }
}

std::vector<Row> trace_rows() {
  std::vector<Row> rows;
  add_recorded(rows);
  for (const Distribution& d : distributions())
    rows.push_back({std::string(d.name), "distribution", std::string(d.source), std::string(d.summary)});
  return rows;
}

std::vector<Row> rows_of(const std::string& what) {
  if (what == "policies") return policy_rows();
  if (what == "schedules") return schedule_rows();
  if (what == "models") return model_rows();
  if (what == "profiles") return profile_rows();
  if (what == "frameworks") return framework_rows();
  if (what == "traces") return trace_rows();
  throw UserError(
      "list: expected policies, schedules, models, profiles, frameworks, traces or schema, found " + what);
}

}  // namespace

std::vector<std::string> listed_names(const std::string& what) {
  std::vector<std::string> names;
  for (const Row& row : rows_of(what)) names.push_back(row.name);
  return names;
}

void run_list_command(const std::string& what, Format format, std::ostream& out) {
  if (what == "schema") {
    out << study_schema().dump(2) << '\n';
    return;
  }
  const std::vector<Row> rows = rows_of(what);
  if (format == Format::json) {
    nlohmann::ordered_json list = nlohmann::json::array();
    for (const Row& r : rows) {
      list.push_back({{"name", r.name}, {"kind", r.kind}, {"from", r.from}, {"summary", r.summary}});
      if (!r.options.is_null()) list.back()["options"] = r.options;
    }
    out << list.dump(2) << '\n';
    return;
  }
  if (format == Format::csv) out << "name,kind,from,summary\n";
  std::size_t name_width = 0, kind_width = 0;
  for (const Row& r : rows) {
    name_width = std::max(name_width, r.name.size());
    kind_width = std::max(kind_width, r.kind.size());
  }
  for (const Row& r : rows) {
    if (format == Format::csv)
      out << r.name << ',' << r.kind << ",\"" << r.from << "\",\"" << r.summary << "\"\n";
    else
      out << r.name << std::string(name_width - r.name.size() + 2, ' ') << r.kind
          << std::string(kind_width - r.kind.size() + 2, ' ') << r.summary << " [" << r.from << "]\n";
  }
}

namespace {

// One line of `doctor`: what was looked at, how it is, and what that means or what would mend it.
struct Finding {
  enum State { good, absent, bad } state = good;
  std::string what, text;
};
constexpr const char* kStateNames[] = {"ok", "absent", "FAILED"};

// What `look` says; where it throws, what is looked at has failed, or is absent where nobody needs it.
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

// Each is loaded, and priced with: a file that was cut or changed by hand does not come through. Returns
// their names.
std::string load_profiles() {
  for (const std::string& name : shipped_profiles()) (void)Profile::load(name);
  return joined(shipped_profiles());
}

// Read whole (zstd's own checksums), and held against what their sidecars say.
std::string read_recorded() {
  const std::filesystem::path folder = shipped_path("traces/recorded", EQUIPOISE_RECORDED_TRACES);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const nlohmann::json about = read_json_file(entry.path().string());
    const Trace trace = read_trace((folder / about.at("trace").get<std::string>()).string());
    const std::int64_t tokens = std::accumulate(trace.lengths.begin(), trace.lengths.end(), std::int64_t{0});
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

// A study from documents to table, and the same at op fidelity: both say the same to the picosecond.
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
    if (a.status != RowStatus::ok) throw UserError(a.run.label + " does not run: " + a.reason);
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
      looked_at("mpirun", Finding::absent, [] { return execution::this_host().launcher; })};
  for (const kernels::BackendKind& kind : kernels::kBackends)
    all.push_back(looked_at("device " + std::string(kind.name), kind.gpu ? Finding::absent : Finding::bad,
                            [&] { return device_text(kind); }));
  all.push_back(looked_at("solver", Finding::absent, []() -> std::string {
    if (!solver_available()) throw UserError("no MILP solver: fixed-solver and varlen-solver refuse to run");
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
  for (const Finding& finding : all) {
    list.push_back(
        {{"what", finding.what}, {"state", kStateNames[finding.state]}, {"found", printable(finding.text)}});
    table.add({finding.what, kStateNames[finding.state], printable(finding.text)});
  }
  out << (format == Format::json ? list.dump(2) + "\n" : table.text());
  return std::any_of(all.begin(), all.end(), [](const Finding& f) { return f.state == Finding::bad; }) ? 1
                                                                                                       : 0;
}

}  // namespace equipoise
