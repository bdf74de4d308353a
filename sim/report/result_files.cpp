#include "sim/report/result_files.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/cost/check_layout.h"
#include "sim/metrics/metrics.h"
#include "sim/report/html_page.h"
#include "sim/report/verdict.h"

namespace equipoise {

using nlohmann::json;

namespace {

json slices_json(const std::vector<Slice>& slices) {
  json list = json::array();
  for (const Slice& s : slices) list.push_back({s.document, s.begin, s.end});
  return list;
}

// Checkpointed layers of the stage that has the most.
int layers_of_stage(const MicroBatch& m, const RecomputedLayers* recomputed) {
  if (recomputed != nullptr) return recomputed->of_fullest_stage(m);
  return m.recompute_layers == kStudyRecompute ? 0 : m.recompute_layers;
}

json micro_batch_json(const MicroBatch& m, const RecomputedLayers* recomputed) {
  json node;
  node["slices"] = slices_json(m.slices);
  node["tokens"] = m.tokens();
  node["recompute_layers"] = layers_of_stage(m, recomputed);
  if (m.recompute_layers != kStudyRecompute) node["recompute_layers_of_model"] = m.recompute_layers;
  if (!m.recompute_by_stage.empty()) node["recompute_by_stage"] = m.recompute_by_stage;
  if (m.chunk.sequence >= 0)
    node["chunk"] = {{"sequence", m.chunk.sequence}, {"index", m.chunk.index}, {"count", m.chunk.count}};
  if (!m.placement.empty()) node["placement"] = m.placement;
  if (m.pad_each_to > 0) node["pad_each_to"] = m.pad_each_to;
  if (m.pack_length > 0) node["pack_length"] = m.pack_length;
  return node;
}

// What nobody typed: from the memory and cost models.
json derived_json(const PolicyRun& run) {
  json node = json::object();
  const std::int64_t bucket = run.pack.bucket_size;
  const std::int64_t most = run.pack.max_tokens;
  if (!run.says("bucket_size") && bucket > 0) node["bucket_size"] = bucket;
  if (!run.says("max_tokens") && most > 0) node["max_tokens"] = most;
  if (run.recompute_chosen && run.recompute == Recompute::layers && run.policy().derives != Derives::groups &&
      !run.recompute_by_stage)
    node["recompute_layers"] = run.recompute_layers;
  if (run.schedule_chosen) node["schedule"] = run.schedule;
  for (const GroupCandidate& c : run.pack.candidates)
    node["candidates"].push_back({{"length", c.length},
                                  {"context", c.context},
                                  {"recompute_layers", c.recompute_layers},
                                  {"seconds", c.seconds}});
  return node;
}

// To add one: a function from a study's result to a text, and its row here.
constexpr StudyOutput kOutputs[] = {
    {"summary.json", "metrics, memory and provenance of every policy",
     [](const Study& study, const StudyResult& result) {
       return summary_json(study, result).dump(2) + "\n";
     }},
    {"steps.csv", "a line a policy and step",
     [](const Study&, const StudyResult& result) { return steps_csv(result); }},
    {"gpus.csv", "compute seconds of every GPU, mean over full steps",
     [](const Study&, const StudyResult& result) { return gpus_csv(result); }},
    {"plan.json", "the plan of every policy", plans_json_text},
    {"report.html", "all of it to look at, in one file", report_html},
};

// The list for summary.json.
json published_json(const std::vector<PublishedRow>& rows, const std::string& label) {
  const auto value = [](const std::optional<double>& v) { return v ? json(*v) : json(nullptr); };
  json list = json::array();
  for (const PublishedRow& row : rows) {
    if (row.label != label) continue;
    json node = {{"metric", row.metric}, {"source", row.source}};
    if (row.metric == "status") {
      node["simulated"] = row.simulated_status;
      node["published"] = row.published_fits ? "ok" : "oom";
    } else {
      node["simulated"] = value(row.simulated);
      node["published"] = value(row.published);
      node["difference_percent"] = value(row.difference_percent());
    }
    if (!row.against.empty()) node["against"] = row.against;
    list.push_back(std::move(node));
  }
  return list;
}

}  // namespace

json plan_json(const Plan& plan, const json& metrics, const RecomputedLayers* recomputed) {
  json steps = json::array();
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    json lanes = json::array();
    for (std::size_t l = 0; l < step.lanes.size(); ++l) {
      const Lane& lane = step.lanes[l];
      json micro_batches = json::array();
      for (const MicroBatch& m : lane.micro_batches) micro_batches.push_back(micro_batch_json(m, recomputed));
      json node = {{"lane", l}, {"context", lane.context}, {"micro_batches", std::move(micro_batches)}};
      if (lane.barrier_group != 0) node["barrier_group"] = lane.barrier_group;
      lanes.push_back(std::move(node));
    }
    steps.push_back({{"step", i},
                     {"lanes", std::move(lanes)},
                     {"carried", slices_json(step.carried)},
                     {"tail", step.tail},
                     {"measured", {{"pack_ms", step.pack_ms}}}});
  }
  json node = {{"schema", "equipoise.plan/1"},
               {"policy", plan.policy},
               {"recompute", "study"},  // of micro-batches without recompute_layers_of_model
               {"steps", std::move(steps)},
               {"metrics", metrics}};
  if (!plan.schedule.empty()) node["schedule"] = plan.schedule;
  if (plan.sees_whole_set) node["sees_whole_set"] = true;
  if (plan.queue_emptied) node["queue_emptied"] = *plan.queue_emptied;
  if (!plan.dropped.empty()) node["dropped"] = slices_json(plan.dropped);
  if (!plan.notes.empty()) node["notes"] = plan.notes;
  if (!plan.solver.empty()) {
    json reports = json::array();
    for (const SolverReport& r : plan.solver)
      reports.push_back({{"step", r.step},
                         {"objective", r.over_steps ? "sum over steps" : "largest"},
                         {"incumbent", r.incumbent},
                         {"bound", r.bound},
                         {"gap", r.gap()},
                         {"optimal", r.optimal},
                         {"measured", {{"seconds", r.seconds}}}});
    node["solver"] = std::move(reports);
  }
  return node;
}

json packed_json(const Packed& packed) {
  json metrics = metrics_json(packed.metrics, packed.imbalance);
  json node = plan_json(packed.plan, metrics, nullptr);
  node["measured"] = {{"pack_ms", packed.pack_ms}};
  return node;
}

json expected_error_json(const StudyResult& result) {
  if (!result.expected_error) return nullptr;
  const FamilyError& error = *result.expected_error;
  return {{"mean_abs_error", error.mean_abs_error}, {"rows", error.rows}, {"family", error.family.text()}};
}

json summary_json(const Study& study, const StudyResult& result) {
  json policies = json::array();
  const std::vector<PublishedRow> published = beside_published(result);
  for (const PolicyResult& p : result.policies) {
    json node = {{"name", p.run.label},
                 {"label", p.run.label},
                 {"policy", p.run.name},
                 {"shard", p.run.shard},
                 {"status", name_of(p.status)},
                 {"reason", p.reason.empty() ? json(nullptr) : json(p.reason)},
                 {"metrics", metrics_json(p.metrics)},
                 {"memory", memory_json(p)},
                 {"measured", {{"pack_ms", p.pack_ms > 0 ? json(p.pack_ms) : json(nullptr)}}},
                 {"provenance",
                  {{"times", "simulated"},
                   {"profile", result.profile},
                   {"framework", study.framework.preset.name},
                   {"kernels", result.kernels.empty() ? json(nullptr) : json(result.kernels)},
                   {"slowdowns", name_of(result.slowdowns)},
                   {"expected_error", expected_error_json(result)},
                   {"mfu_peak", result.mfu_peak.empty() ? json(nullptr) : json(result.mfu_peak)},
                   {"trace", result.trace_origin},
                   {"predictions", p.use.calls},
                   {"beyond_samples", p.use.beyond_samples},
                   {"beyond_samples_share", beyond_samples_share(p.use)},
                   {"on_derived_tables", p.use.derived}}}};
    if (!result.kernel_errors.empty()) node["provenance"]["kernel_errors"] = result.kernel_errors;
    if (json derived = derived_json(p.run); !derived.empty())
      node["provenance"]["derived"] = std::move(derived);
    if (p.run.has_plan_file())
      node["provenance"]["plan"] = {{"file", printable(p.run.plan_file)},
                                    {"policy", p.run.plan ? p.run.plan->policy : ""}};
    if (p.memory_ignored) node["memory_ignored"] = true;
    if (!p.run.published.empty()) node["published"] = published_json(published, p.run.label);
    if (!p.notes.empty()) node["notes"] = p.notes;
    if (p.simulated() && !p.gpu_compute.empty()) node["gpu_compute_seconds"] = p.gpu_compute;
    policies.push_back(std::move(node));
  }
  const Layout& l = study.layout;
  return {{"schema", "equipoise.summary/1"},
          {"version", EQUIPOISE_VERSION},
          {"study",
           {{"name", study.name},
            {"settings", study.settings.empty() ? json(nullptr) : json::parse(study.settings)},
            {"model", study.model.name},
            {"framework", study.framework.preset.name},
            {"gpus", l.gpus()},
            {"tensor", l.tensor},
            {"context", l.context},
            {"pipeline", l.pipeline},
            {"data", l.data},
            {"trace", result.trace_origin},
            {"documents", result.documents},
            {"tokens", result.tokens},
            {"dropped_tokens", result.dropped_tokens},
            {"notes", notes_of(study, result)}}},
          {"baseline", study.baseline},
          {"policies", std::move(policies)}};
}

std::string summary_csv(const Study& study, const StudyResult& result) {
  const json summary = summary_json(study, result);
  std::ostringstream out;
  bool header = false;
  for (const json& p : summary["policies"]) {
    if (!header) {
      out << "policy,status,framework";
      for (const auto& [key, value] : p["metrics"].items())
        if (!value.is_object()) out << ',' << key;
      out << ",reason\n";
      header = true;
    }
    out << csv_cell(p["name"].get<std::string>()) << ',' << p["status"].get<std::string>() << ','
        << csv_cell(study.framework.preset.name);
    for (const auto& [key, value] : p["metrics"].items())
      if (!value.is_object()) out << ',' << (value.is_null() ? "" : value.dump());
    const json& reason = p["reason"];
    out << ',' << (reason.is_null() ? "" : csv_cell(reason.get<std::string>())) << '\n';
  }
  return out.str();
}

std::string steps_csv(const StudyResult& result) {
  std::ostringstream out;
  out.precision(12);
  out << "policy,step,tail,tokens,step_seconds,pipeline_seconds,optimizer_seconds,exposed_gradient_seconds,"
         "bubble_ratio,cp_imbalance,peak_memory_bytes\n";
  for (const PolicyResult& p : result.policies)
    for (std::size_t i = 0; i < p.steps.size() && p.simulated(); ++i) {
      const StepWork& work = p.steps[i].work;
      const StepTimes& times = p.steps[i].times;
      out << csv_cell(p.run.label) << ',' << i << ',' << (p.tail[i] ? 1 : 0) << ',' << work.tokens << ','
          << json(to_seconds(times.makespan)).dump() << ',' << to_seconds(times.pipeline) << ','
          << to_seconds(times.optimizer) << ',' << to_seconds(times.gradient_wait) << ','
          << times.losses.bubble_ratio << ',' << times.cp_imbalance << ',' << work.peak.parts.total() << '\n';
    }
  return out.str();
}

std::string gpus_csv(const StudyResult& result) {
  std::ostringstream out;
  out.precision(12);
  out << "policy,gpu,node,dp,pp,cp,tp,compute_seconds,relative_to_mean\n";
  for (const PolicyResult& p : result.policies) {
    if (p.gpu_compute.empty() || !p.simulated()) continue;
    const Layout& l = p.layout;
    const RankGrid grid(l.order, parallel_sizes(l), p.gpus_per_node);
    const double mean = std::accumulate(p.gpu_compute.begin(), p.gpu_compute.end(), 0.0) /
                        static_cast<double>(p.gpu_compute.size());
    std::vector<double> seconds(static_cast<std::size_t>(grid.gpus()));
    const auto replicas = static_cast<std::size_t>(l.data * l.context);
    const auto tensor = static_cast<std::size_t>(p.gpu_tensor);
    for (int s = 0; s < l.pipeline; ++s)
      for (int t = 0; t < l.tensor; ++t) {
        const std::vector<int> group = grid.data_context_group(grid.gpu({t, 0, 0, s}));
        for (std::size_t r = 0; r < replicas; ++r)
          seconds[at(group[r])] = p.gpu_compute[(static_cast<std::size_t>(s) * replicas + r) * tensor +
                                                (tensor > 1 ? static_cast<std::size_t>(t) : 0)];
      }
    for (int gpu = 0; gpu < grid.gpus(); ++gpu) {
      const RankCoordinates place = grid.coordinates(gpu);
      const double own = seconds[at(gpu)];
      out << csv_cell(p.run.label) << ',' << gpu << ',' << grid.node(gpu) << ',' << place.data << ','
          << place.pipeline << ',' << place.context << ',' << place.tensor << ',' << own << ','
          << (mean > 0 ? own / mean : 0) << '\n';
    }
  }
  return out.str();
}

// A value of JSON per slice is many times its text: only one policy's plan is held as such.
std::string plans_json_text(const Study& study, const StudyResult& result) {
  std::string text = R"({"plans":[)";
  for (const PolicyResult& p : result.policies) {
    std::optional<RecomputedLayers> recomputed;  // a row that did not run may have no layout, either
    if (!p.plan.steps.empty()) recomputed.emplace(study.model, p.layout);
    json node = plan_json(p.plan, metrics_json(p.metrics), recomputed ? &*recomputed : nullptr);
    node["name"] = p.run.label;
    if (&p != &result.policies.front()) text += ',';
    text += node.dump();
  }
  return text + R"(],"schema":"equipoise.plans/1"})" + '\n';
}

std::span<const StudyOutput> study_outputs() {
  return kOutputs;
}

std::vector<SummaryKey> summary_keys() {
  std::vector<SummaryKey> keys;
  std::istringstream lines{std::string(html_asset("summary_md"))};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t end = line.find("` | "), next = line.find(" | ", end + 4);
    const std::string key = line.substr(3, end - 3), unit = line.substr(end + 4, next - end - 4);
    const std::string what = line.substr(next + 3, line.size() - next - 5);
    const bool is_file = unit == "file";
    keys.push_back({is_file ? "file of study --out" : "key of summary.json", key, is_file ? "" : unit, what,
                    is_file ? key.substr(0, key.find('/')) : key.substr(key.rfind('.') + 1)});
  }
  return keys;
}

void write_outputs(const std::string& directory, const Study& study, const StudyResult& result,
                   const json& receipt) {
  for (const StudyOutput& output : kOutputs) {
    std::string text = output.text(study, result);
    if (!receipt.is_null() && output.file == kOutputs[0].file) {
      json summary = summary_json(study, result);
      summary["receipt"] = receipt;
      text = summary.dump(2) + '\n';
    }
    write_file_atomically((std::filesystem::path(directory) / output.file).string(), text);
  }
}

// The fractional parts of a root of the first primes, as integers: 2^32 times them.
static std::array<std::uint32_t, 64> fractions_of_primes(double (*root)(double)) {
  std::array<std::uint32_t, 64> parts{};
  std::size_t found = 0;
  for (int n = 2; found < parts.size(); ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const double value = root(n);
    parts[found++] = static_cast<std::uint32_t>((value - std::floor(value)) * 0x1p32);
  }
  return parts;
}

static void add_block(const unsigned char* block, std::array<std::uint32_t, 8>& state) {
  static const std::array<std::uint32_t, 64> kRounds =
      fractions_of_primes([](double n) { return std::cbrt(n); });
  const auto mixed = [](std::uint32_t x, int a, int b, int c) {
    return std::rotr(x, a) ^ std::rotr(x, b) ^ std::rotr(x, c);
  };
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t byte = 0; byte < 4; ++byte) w[i] = w[i] << 8U | block[4 * i + byte];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first = h + mixed(e, 6, 11, 25) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second = mixed(a, 2, 13, 22) + ((a & b) ^ (a & c) ^ (b & c));
    h = std::exchange(g, std::exchange(f, std::exchange(e, d + first)));
    d = std::exchange(c, std::exchange(b, std::exchange(a, first + second)));
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

std::string sha256(std::string_view bytes) {
  static const std::array<std::uint32_t, 64> kStart =
      fractions_of_primes([](double n) { return std::sqrt(n); });
  std::string padded(bytes);  // 1, zeros up to 8 bytes before the end of a block, the number of bits
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64 - 8);
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bytes.size() * 8 >> shift & 0xff);
  std::array<std::uint32_t, 8> state{};
  std::copy_n(kStart.begin(), 8, state.begin());
  for (std::size_t at = 0; at < padded.size(); at += 64)
    add_block(reinterpret_cast<const unsigned char*>(padded.data()) + at, state);
  std::string text;
  for (const std::uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

json hashes_of_inputs(const StudyInputs& inputs) {
  std::string bytes;
  for (const GlobalBatch& batch : inputs.documents.batches) {
    for (const Slice& s : batch.slices)
      bytes += std::to_string(s.document) + ':' + std::to_string(s.begin) + '-' + std::to_string(s.end) + ' ';
    bytes += '\n';
  }
  return {{"profile", sha256(inputs.profile.json().dump())}, {"documents", sha256(bytes)}};
}

std::string hash_of_row(const json& row) {
  return sha256(json{row.at("status"), row.at("reason"), row.at("metrics"), row.at("memory")}.dump());
}

std::string hash_of_row(const PolicyResult& row) {
  return hash_of_row(json{{"status", name_of(row.status)},
                          {"reason", row.reason.empty() ? json(nullptr) : json(row.reason)},
                          {"metrics", metrics_json(row.metrics)},
                          {"memory", memory_json(row)}});
}

json checks_json(const std::vector<Check>& checks) {
  json list = json::array();
  for (const Check& check : checks)
    list.push_back({{"what", check.what},
                    {"holds", check.holds ? json(*check.holds) : json(nullptr)},
                    {"found", printable(check.found)}});
  return list;
}

json receipt_of(SavedRun run, const Study& study, const StudyInputs& inputs, const StudyResult& result,
                const std::vector<Check>& checks) {
  if (study.framework.carry_slowdowns) {  // where a sweep decided it, no key says so
    json& framework = run.study["framework"];
    if (framework.is_string()) framework = {{"preset", framework}};
    framework["carry_slowdowns"] = *study.framework.carry_slowdowns;
  }
  json rows = json::object();
  for (const PolicyResult& row : result.policies) rows[row.run.label] = hash_of_row(row);
  json receipt{
      {"program", run.version}, {"file", std::filesystem::absolute(run.path).lexically_normal().string()},
      {"study", run.study},     {"options", run.options},
      {"hash", kReceiptHash},   {"inputs", hashes_of_inputs(inputs)},
      {"rows", std::move(rows)}};
  if (!checks.empty()) receipt["checks"] = checks_json(checks);
  return receipt;
}

}  // namespace equipoise
