// `equipoise list`, `explain` and `doctor`: what there is, in the program and on this machine.
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
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "policies/solver/mixed_program.h"
#include "profiler/profile/profile.h"
#include "sim/cli/plan_commands.h"
#include "sim/execution/launch.h"
#include "sim/framework/framework.h"
#include "sim/limits/memory_limit.h"
#include "sim/metrics/metrics.h"
#include "sim/report/result_files.h"
#include "sim/report/study_table.h"
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

template <class Options>
nlohmann::ordered_json options_of(std::span<const Parameter<Options>> rows, const Options& defaults) {
  static const nlohmann::ordered_json kSchema = policy_schema_properties();
  nlohmann::ordered_json options = nlohmann::ordered_json::object();
  for (const Parameter<Options>& row : rows) {
    nlohmann::ordered_json& option = options[std::string(row.key)];
    option = kSchema.at(std::string(row.key));
    option["default"] = keys::default_of(row, defaults);
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
    rows.push_back({p.name, "preset", p.paper, p.summary});
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
                        fixed(profile.device().memory_bytes / 1e9, 0) + " GB, kernels " + kernels_are(profile)});
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
  return each_of(rows_of(what), &Row::name);
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

// What `explain` knows of a word: its place in one of the tables.
struct Entry {
  std::string kind, name, what;
  std::string values = {}, fallback = {}, unit = {}, source = {};
  std::vector<std::string> words = {};  // that mean it, beside its name
  nlohmann::ordered_json options = {};  // of a policy
};

// Where a paper that the tables name is to be found.
constexpr std::pair<std::string_view, std::string_view> kPapers[] = {
    {"WLB-LLM", "arXiv 2503.17924"}, {"ChunkFlow", "arXiv 2503.02356"}, {"HBP", "arXiv 2503.07680"},
    {"Skrull", "arXiv 2505.19609"},  {"FlexSP", "arXiv 2412.01523"},    {"Krell", "arXiv 2107.02027"}};

std::string source_of(std::string from) {
  for (const auto& [paper, place] : kPapers)
    if (from.find(paper) != std::string::npos && from.find("arXiv") == std::string::npos)
      from.append(", ").append(place);
  return from;
}

// The unit ends a key's name where the help does not say it.
std::string unit_of(std::string_view key) {
  constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
      {"GBps", "GB/s"}, {"_GB", "GB"}, {"_seconds", "s"}, {"seconds_per_op", "s"}, {"_bytes", "bytes"}};
  for (const auto& [end, unit] : kUnits)
    if (key.ends_with(end)) return std::string(unit);
  return "";
}

std::string default_text(const nlohmann::ordered_json& schema) {
  if (!schema.contains("default") || schema["default"].is_null()) return "";
  return schema["default"].is_string() ? schema["default"].get<std::string>() : schema["default"].dump();
}

Entry entry_of_key(const std::string& kind, const std::string& name, const nlohmann::ordered_json& schema) {
  return {kind, name, schema["description"], values_text(schema), default_text(schema), unit_of(name)};
}

// The words that a key may be, or that its items may.
std::vector<std::string> words_of(const nlohmann::ordered_json& schema) {
  if (schema.contains("enum")) return schema["enum"].get<std::vector<std::string>>();
  if (schema.contains("items")) return words_of(schema["items"]);
  std::vector<std::string> words;
  if (schema.contains("anyOf"))
    for (const nlohmann::ordered_json& form : schema["anyOf"])
      for (std::string& word : words_of(form)) words.push_back(std::move(word));
  return words;
}

// What a key's help says of one of its words: the clause "; word: meaning". Every word has one (test_cli.py).
std::string meaning_of(const std::string& word, const std::string& help) {
  const std::string clauses = "; " + help, begin = "; " + word + ": ";
  const std::size_t at = clauses.find(begin);
  const std::string rest = at == std::string::npos ? "" : clauses.substr(at + begin.size());
  return rest.substr(0, rest.find("; "));
}

// A key's name in the paper that it is from; empty: the same.
std::string paper_word(std::string_view key) {
  return key == "max_tokens" ? "L_max" : key == "bucket_size" ? "BucketSize" : key == "chunk_size" ? "ChunkSize" : "";
}

constexpr std::string_view kStatuses[] = {  // by RowStatus
    "the row ran", "its plan, or what stands beside any plan, does not fit into memory; the reason says what would",
    "the policy cannot place a document", "the policy, its sharding rule or its schedule refuses what it is given"};

// What a study takes for a policy where its file is silent.
std::string taken_by(const Policy& policy) {
  return std::string("packs ") + (policy.batches == BatchKind::windows ? "windows" : "whole documents") +
         "; shard " + std::string(policy.shard) + ", schedule " +
         (policy.schedule.empty() ? "the study's" : std::string(policy.schedule)) + ", cost " +
         std::string(kCostKindNames[at(policy.cost)]) + " unless a study says otherwise";
}

std::vector<Entry> entries() {
  std::vector<Entry> all;
  for_each_key([&](const std::string& path, const nlohmann::ordered_json& schema) {
    all.push_back(entry_of_key("key of a study", path, schema));
    std::string plain = path;
    std::erase_if(plain, [](char c) { return c == '[' || c == ']'; });
    all.back().words = {plain, plain.substr(plain.rfind('.') + 1)};
    if (std::string word = paper_word(all.back().words[1]); !word.empty()) all.back().words.push_back(word);
    for (const std::string& word : words_of(schema))
      all.push_back({"value of " + path, word, meaning_of(word, schema["description"])});
  });
  for (const ResultColumn& column : result_columns()) {
    Entry entry{"column of a result", std::string(column.key.empty() ? column.title : column.key),
                std::string(column.help)};
    entry.unit = column.unit;
    const std::string title(column.title);  // its first words mean it, too: delay of "delay (steady, max)"
    if (column.is_printed()) entry.words = {title, title.substr(0, title.find_first_of("(%") - 1)};
    all.push_back(std::move(entry));
  }
  for (const SummaryKey& k : summary_keys()) {
    const std::string path = "policies[]." + k.key;
    all.push_back({k.kind, k.key, k.what, "", "", k.unit, "", {k.word, path}});
  }
  for (std::size_t i = 0; i < std::size(kStatuses); ++i)
    all.push_back({"status of a row", name_of(static_cast<RowStatus>(i)), std::string(kStatuses[i])});
  for (const char* what : {"policies", "schedules", "models", "profiles", "frameworks", "traces"})
    for (const Row& row : rows_of(what)) {
      const std::string kind = row.kind == "packing" ? "packing policy"
                               : row.kind == "sharding" ? "sharding rule"
                               : row.kind == "default"  ? "framework"
                                                        : row.kind;
      Entry entry{kind, row.name, row.summary};
      entry.source = source_of(row.from);
      entry.options = row.options;
      if (row.kind == "packing") entry.what += ". It " + taken_by(packing_policy(row.name));
      all.push_back(std::move(entry));
      for (const auto& [key, schema] : row.options.items()) {
        all.push_back(entry_of_key("option of " + row.name, row.name + "." + key, schema));
        all.back().source = source_of(row.from);
        if (std::string word = paper_word(key); !word.empty()) all.back().words = {word};
      }
    }
  return all;
}

// As a key is typed: without the dashes of an option and the number of a row, with underscores.
std::string as_key(std::string_view word) {
  std::string key;
  for (const char c : word.substr(std::min(word.find_first_not_of('-'), word.size())))
    key += c == '-' ? '_' : c;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const std::size_t end = key.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && key[end] == '.') key.erase(dot, end - dot);
  }
  return key;
}

[[noreturn]] void refuse_word(const std::string& word, const std::vector<Entry>& all) {
  std::vector<std::string_view> known;
  for (const Entry& entry : all) {
    known.push_back(entry.name);
    for (const std::string& other : entry.words) known.push_back(other);
  }
  constexpr int kMost = 3;
  std::vector<std::string> near;
  for (int i = 0; i < kMost; ++i) {
    const std::string_view next = nearest_name(word, known);
    if (next.empty()) break;
    near.emplace_back(next);
    std::erase(known, next);
  }
  throw UserError("explain: unknown word \"" + word + "\"; " +
                  (near.empty() ? "expected a key of a study, a column, a policy or another name of `equipoise "
                                  "list`; `equipoise explain` shows the kinds"
                                : "nearest: " + joined(near)));
}

nlohmann::ordered_json entry_json(const Entry& entry) {
  nlohmann::ordered_json node = {{"name", entry.name}, {"kind", entry.kind}, {"what", entry.what}};
  for (const auto& [key, text] : {std::pair{"values", &entry.values}, {"default", &entry.fallback},
                                  {"unit", &entry.unit}, {"source", &entry.source}})
    node[key] = text->empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(*text);
  if (!entry.options.is_null()) node["options"] = entry.options;
  return node;
}

std::string entry_text(const Entry& entry) {
  std::string text = entry.name + ", " + entry.kind + ": " + entry.what + "\n";
  const nlohmann::ordered_json node = entry_json(entry);
  for (const auto& [key, value] : node.items())
    if (value.is_string() && key != "name" && key != "kind" && key != "what")
      text += "  " + key + ": " + value.get<std::string>() + "\n";
  if (!entry.options.empty()) text += "  options:\n";
  for (const auto& [key, schema] : entry.options.items()) {
    const std::string fallback = default_text(schema);
    text += "    " + key + " (" + values_text(schema) + (fallback.empty() ? "" : "; default " + fallback) +
            "): " + schema["description"].get<std::string>() + "\n";
  }
  return text;
}

// How many words there are of each kind, with one of them.
std::string kinds_text(const std::vector<Entry>& all) {
  TextTable table({"kind", "words", "for example"});
  table.align_left(2);
  std::vector<std::string> kinds;
  const auto kind_of = [](const Entry& e) {
    return e.kind.starts_with("option of ")  ? std::string("option of a policy")
           : e.kind.starts_with("value of ") ? std::string("value of a key")
                                             : e.kind;
  };
  for (const Entry& entry : all)
    if (std::find(kinds.begin(), kinds.end(), kind_of(entry)) == kinds.end()) kinds.push_back(kind_of(entry));
  for (const std::string& kind : kinds) {
    std::vector<std::string> names;
    for (const Entry& entry : all)
      if (kind_of(entry) == kind) names.push_back(entry.name);
    table.add({kind, std::to_string(names.size()), names[names.size() / 2]});
  }
  return table.text();
}

}  // namespace

void run_explain_command(const std::string& word, Format format, std::ostream& out) {
  if (format == Format::csv) throw UserError("explain: --format csv; allowed: table, json");
  const std::vector<Entry> all = entries();
  if (word.empty() && format == Format::table) {
    out << kinds_text(all) << "`equipoise explain WORD` says what one is; a word of several tables prints each.\n";
    return;
  }
  nlohmann::ordered_json list = nlohmann::json::array();
  const std::string key = as_key(word);
  for (const Entry& entry : all) {
    const auto is = [&](const std::string& name) { return name == word || name == key; };
    if (!word.empty() && !is(entry.name) && std::none_of(entry.words.begin(), entry.words.end(), is)) continue;
    if (format == Format::table) out << (list.empty() ? "" : "\n") << entry_text(entry);
    list.push_back(entry_json(entry));
  }
  if (list.empty()) refuse_word(word, all);
  if (format == Format::json) out << list.dump(2) << '\n';
}

namespace {

// One line of `doctor`: what was looked at, how it is, and what that means or what would repair it.
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

// Each is loaded, and priced with: a file that was cut or changed by hand is refused. Returns their names.
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

// Profiles, presets and traces are those that the program was built with.
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

// Read whole (zstd's own checksums), and held against what their sidecars say.
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
      looked_at("shipped files", Finding::bad, check_digests),
      looked_at("mpirun", Finding::absent, [] { return execution::this_host().launcher; })};
  for (const kernels::BackendKind& kind : kernels::kBackends)
    all.push_back(looked_at("device " + std::string(kind.name), kind.gpu ? Finding::absent : Finding::bad,
                            [&] { return device_text(kind); }));
  all.push_back(looked_at("solver", Finding::absent, []() -> std::string {
    if (!solver_available()) throw UserError("no MILP solver: fixed-solver, varlen-solver and skrull-solver refuse to run");
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
  return std::ranges::any_of(all, [](const Finding& f) { return f.state == Finding::bad; }) ? 1 : 0;
}

}  // namespace equipoise
