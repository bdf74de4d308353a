#include "sim/study/study_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/index.h"
#include "policies/base/number_text.h"
#include "policies/base/utf8.h"
#include "policies/packing/hbp.h"
#include "policies/packing/wlb.h"
#include "policies/skrull/gds.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/study/derive.h"
#include "sim/study/recompute_choice.h"
#include "sim/study/verdict.h"

namespace equipoise {

using nlohmann::json;

namespace {

std::string cell(const Metric& metric, int digits, double scale = 1) {
  return metric ? fixed(*metric * scale, digits) : "-";
}

std::string speedup_cell(const Metrics& m) {
  if (!m.speedup) return "-";
  std::string text = fixed(*m.speedup, 2) + "x";
  if (m.speedup_low && m.speedup_high)
    text += " (" + fixed(*m.speedup_low, 2) + "-" + fixed(*m.speedup_high, 2) + ")";
  return text;
}

}  // namespace

std::string reason_line(const PolicyResult& row) {
  constexpr const char* kHow[] = {"runs", "is out of memory", "cannot place a document", "is refused"};
  return row.run.label + ' ' + kHow[at(row.status)] + ": " + row.reason +
         (row.memory_ignored ? "; its times are those of a run that would not fit (--ignore-memory)" : "");
}

bool all_ok(const StudyResult& result) {
  return std::all_of(result.policies.begin(), result.policies.end(),
                     [](const PolicyResult& p) { return p.status == RowStatus::ok; });
}

std::vector<std::string> comparison_header(bool with_status) {
  std::vector<std::string> header = {"policy",  "tokens/s/GPU",   "step s",    "speed-up (95 %)",
                                     "MFU %",   "GPU h/B tokens", "imbalance", "bubble %",
                                     "CP imb.", "GPU imb.",       "delay",     "mem. free GiB",
                                     "pack ms"};
  if (with_status) header.insert(header.begin() + 1, "status");
  return header;
}

std::vector<std::string> comparison_cells(const PolicyResult& p, bool with_status) {
  const Metrics& m = p.metrics;
  const bool planned = p.capacity_bytes > 0;
  std::vector<std::string> cells = {
      p.run.label,
      cell(m.tokens_per_second_per_gpu, 0),
      cell(m.step_seconds, 3),
      speedup_cell(m),
      cell(m.mfu, 1, 100),
      cell(m.gpu_hours_per_billion_tokens, 1),
      cell(m.imbalance_degree, 3),
      cell(m.bubble_ratio, 1, 100),
      cell(m.cp_imbalance, 3),
      cell(m.gpu_compute_imbalance, 3),
      cell(m.token_delay_mean, 2),
      planned ? fixed((p.capacity_bytes - p.peak.parts.total()) / kGiB, 1) : "-",
      planned ? fixed(p.pack_ms, 2) : "-"};
  if (with_status) cells.insert(cells.begin() + 1, p.memory_ignored ? "oom, ignored" : name_of(p.status));
  return cells;
}

std::string source_line(const Study& study, const StudyResult& result) {
  return "(simulated; kernels and collectives from profile " + result.profile + "; framework " +
         study.framework.preset.name + ": " + result.kernels + "; pack ms measured on this machine)";
}

std::string study_table(const Study& study, const StudyResult& result) {
  std::ostringstream out;
  const Layout& l = study.layout;
  out << study.name << ": " << study.model.name << " on " << grouped(l.gpus()) << " GPUs (TP " << l.tensor
      << ", CP " << l.context << ", PP " << l.pipeline << ", DP " << l.data << "), " << grouped(result.tokens)
      << " tokens of " << grouped(result.documents) << " documents from " << result.trace_origin
      << ", framework " << study.framework.preset.name << '\n';
  const bool with_status = !all_ok(result);
  TextTable table(comparison_header(with_status));
  if (with_status) table.align_left(1);
  for (const PolicyResult& p : result.policies) table.add(comparison_cells(p, with_status));
  out << table.text();
  for (const PolicyResult& p : result.policies)
    if (p.status != RowStatus::ok) out << reason_line(p) << '\n';
  if (const std::string differs = recompute_difference(study, result); !differs.empty())
    out << "Note: " << differs << ".\n";
  out << limits_line(study, result) << spread_line(result) << memory_line(result);
  out << source_line(study, result) << '\n' << published_table(beside_published(result));
  return out.str();
}

namespace {

// What nobody typed: from the memory and cost models.
json derived_json(const PolicyRun& run) {
  json node = json::object();
  const std::int64_t bucket = run.pack.of<SkrullOptions>().bucket_size;
  const std::int64_t most = run.pack.of<WlbOptions>().max_tokens;
  if (!run.says("bucket_size") && bucket > 0) node["bucket_size"] = bucket;
  if (!run.says("max_tokens") && most > 0) node["max_tokens"] = most;
  if (run.recompute_chosen && run.recompute == Recompute::layers && run.policy().derives != Derives::groups)
    node["recompute_layers"] = run.recompute_layers;
  for (const GroupCandidate& c : run.pack.of<HbpOptions>().candidates)
    node["candidates"].push_back({{"length", c.length},
                                  {"context", c.context},
                                  {"recompute_layers", c.recompute_layers},
                                  {"seconds", c.seconds}});
  return node;
}

}  // namespace

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
                 {"measured", {{"pack_ms", p.pack_ms}}},
                 {"provenance",
                  {{"times", "simulated"},
                   {"profile", result.profile},
                   {"framework", study.framework.preset.name},
                   {"kernels", result.kernels.empty() ? json(nullptr) : json(result.kernels)},
                   {"trace", result.trace_origin},
                   {"predictions", p.use.calls},
                   {"beyond_samples", p.use.beyond_samples},
                   {"on_derived_tables", p.use.derived}}}};
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
  json notes = study.notes;
  for (const std::string& note : result.notes) notes.push_back(note);
  if (const std::string differs = recompute_difference(study, result); !differs.empty())
    notes.push_back(differs);
  return {{"schema", "equipoise.summary/1"},
          {"study",
           {{"name", study.name},
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
            {"notes", std::move(notes)}}},
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
    const RankGrid grid(l.order, {l.tensor, l.context, l.expert, l.data, l.pipeline, l.expert_tensor},
                        p.gpus_per_node);
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
    if (!p.plan.steps.empty()) recomputed.emplace(study.model, layout_of(study, p.run));
    json node = plan_json(p.plan, metrics_json(p.metrics), recomputed ? &*recomputed : nullptr);
    node["name"] = p.run.label;
    if (&p != &result.policies.front()) text += ',';
    text += node.dump();
  }
  return text + R"(],"schema":"equipoise.plans/1"})" + '\n';
}

}  // namespace equipoise
