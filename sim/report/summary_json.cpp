#include "sim/report/summary_json.h"

#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/standing.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Values that nobody typed, from the memory and cost models.
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
  if (run.virtual_pipeline_chosen) node["virtual_pipeline"] = *run.virtual_pipeline;
  for (const std::string_view key : run.chosen_sizes)
    node[std::string(key)] = std::get<std::int64_t>(pack_parameter(key)->get(run.pack));
  for (const GroupCandidate& c : run.pack.candidates)
    node["candidates"].push_back({{"length", c.length},
                                  {"context", c.context},
                                  {"recompute_layers", c.recompute_layers},
                                  {"seconds", c.seconds}});
  return node;
}

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

json expected_error_json(const StudyResult& result) {
  if (!result.expected_error) return nullptr;
  const ExpectedError& error = *result.expected_error;
  json node = {{"low", nullptr}, {"high", nullptr},          {"rows", 0},
               {"sources", 0},   {"nearest", error.nearest}, {"nearest_mean_abs_error", error.nearest_error}};
  const auto interval = [](const std::optional<ErrorInterval>& of) {
    return of ? json{{"low", of->low}, {"high", of->high}, {"rows", of->rows}, {"sources", of->sources}}
              : json(nullptr);
  };
  node["speed_up"] = interval(error.speed_up);
  node["speed_up_of_layouts"] = interval(error.speed_up_of_layouts);
  if (error.step) node.update(interval(error.step));
  if (error.is_of_ratio) node["is_of_ratio"] = true;  // to the step that anchors the study
  return node;
}

}  // namespace

json summary_json(const Study& study, const StudyResult& result) {
  json policies = json::array();
  const std::vector<PublishedRow> published = next_to_published(result);
  for (const PolicyResult& p : result.policies) {
    json node = {
        {"name", p.run.label},
        {"label", p.run.label},
        {"policy", p.run.name},
        {"shard", p.run.shard},
        {"status", name_of(p.status)},
        {"reason", p.reasons.empty() ? json(nullptr) : json(reason_text(p.reasons))},
        {"reasons", p.reasons},
        {"runs_in", p.runs_in ? json(name_of(*p.runs_in)) : json(nullptr)},
        {"needs", p.needs},
        {"metrics", metrics_json(p.metrics)},
        {"memory", memory_json(p)},
        {"memory_tight", p.memory_tight},
        {"measured", {{"pack_ms", p.pack_ms > 0 ? json(p.pack_ms) : json(nullptr)}}},
        {"provenance",
         {{"times", "simulated"},
          {"profile", result.profile},
          {"framework", study.framework.preset.name},
          {"kernels", result.kernels.empty() ? json(nullptr) : json(joined_texts(result.kernels, "; "))},
          {"slowdowns", name_of(result.slowdowns)},
          {"expected_error", expected_error_json(result)},
          {"mfu_peak", result.mfu_peak ? json(text_of(*result.mfu_peak)) : json(nullptr)},
          {"trace", result.trace_origin},
          {"predictions", p.use.calls},
          {"kernel_seconds", p.use.seconds},
          {"beyond_samples", p.use.beyond_samples},
          {"beyond_samples_seconds", p.use.beyond_seconds},
          {"beyond_samples_share", beyond_samples_share(p.use)},
          {"on_derived_tables", p.use.derived}}}};
    if (!result.kernel_errors.empty())
      node["provenance"]["kernel_errors"] = joined_texts(result.kernel_errors, ", ");
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
  json summary = {{"schema", "equipoise.summary/1"},
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
                    {"batches", result.batches},
                    {"tokens", result.tokens},
                    {"dropped_tokens", result.dropped_tokens},
                    {"notes", notes_of(study, result)}}},
                  {"baseline", study.baseline},
                  {"comparison", standing_json(result)},
                  {"policies", std::move(policies)}};
  if (json cost = job_cost_json(result); !cost.is_null()) summary["cost"] = std::move(cost);
  if (result.incomplete) summary["incomplete"] = true;
  return summary;
}

}  // namespace equipoise
