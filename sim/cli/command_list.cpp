#include "sim/cli/command_list.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/cli/command_profiles.h"
#include "sim/framework/framework.h"
#include "sim/report/text_table.h"
#include "sim/report/words/words.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study_keys.h"
#include "sim/workload/model.h"
#include "traces/json_text.h"
#include "traces/synth.h"

namespace equipoise {
namespace {

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

std::vector<ListedName> policy_rows() {
  std::vector<ListedName> rows;
  for (const Policy& p : packing_policies())
    rows.push_back({std::string(p.name), "packing", std::string(p.paper), std::string(p.summary),
                    options_of(p.parameters, PackOptions())});
  const Policy& from_file = plan_policy();
  rows.push_back({std::string(from_file.name), "file", "equipoise.plan/1", std::string(from_file.summary),
                  options_of(from_file.parameters, PackOptions())});
  for (const Preset& p : presets()) rows.push_back({p.name, "preset", p.paper, p.summary});
  for (const ShardPolicy& p : sharding_policies())
    rows.push_back({std::string(p.name), "sharding", std::string(p.paper), std::string(p.summary),
                    options_of(p.parameters, default_sharding())});
  return rows;
}

std::vector<ListedName> schedule_rows() {
  std::vector<ListedName> rows;
  for (const SchedulePolicy& p : schedule_policies())
    rows.push_back({std::string(p.name), "schedule", std::string(p.paper), std::string(p.summary)});
  return rows;
}

std::vector<ListedName> model_rows() {
  std::vector<ListedName> rows;
  for (const ModelShape& m : builtin_models())
    rows.push_back({m.name, "model", grouped(m.parameters()) + " parameters",
                    std::to_string(m.layers) + " layers, hidden " + std::to_string(m.hidden) + ", " +
                        std::to_string(m.heads) + " heads (" + std::to_string(m.kv_heads) + " KV) of " +
                        std::to_string(m.head_dim) + ", FFN " + std::to_string(m.ffn) + ", vocabulary " +
                        std::to_string(m.vocab) +
                        (m.moe ? ", " + std::to_string(m.moe->experts) + " experts" : "") +
                        (m.indexer ? ", " + std::to_string(m.indexer->top_keys) + " keys chosen" : "")});
  return rows;
}

std::vector<ListedName> profile_rows() {
  std::vector<ListedName> rows;
  for (const std::string& name : shipped_profiles()) {
    const Profile profile = Profile::load(name);
    rows.push_back({name, "profile", profile.device().name,
                    fixed(profile.device().peak_bf16_tflops, 0) + " TFLOP/s bf16 peak, " +
                        fixed(profile.device().memory_bytes / 1e9, 0) + " GB, kernels " +
                        kernels_are(profile)});
  }
  return rows;
}

std::vector<ListedName> framework_rows() {
  std::vector<ListedName> rows;
  for (const std::string& name : shipped_frameworks()) {
    const FrameworkPreset preset = FrameworkPreset::load(name);
    rows.push_back({name, name == kDefaultFramework ? "default" : "framework",
                    text_of(preset.kernel_note(preset.options)) + (preset.host ? "; " + text_of(*preset.host) : ""),
                    preset.summary});
  }
  return rows;
}

// The recorded traces that are shipped: each has a sidecar that says how it was made.
void add_recorded(std::vector<ListedName>& rows) {
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

std::vector<ListedName> trace_rows() {
  std::vector<ListedName> rows;
  add_recorded(rows);
  for (const Distribution& d : distributions())
    rows.push_back({std::string(d.name), "distribution", std::string(d.source), std::string(d.summary)});
  return rows;
}

}  // namespace

std::vector<ListedName> list_of(const std::string& what) {
  if (what == "policies") return policy_rows();
  if (what == "schedules") return schedule_rows();
  if (what == "models") return model_rows();
  if (what == "profiles") return profile_rows();
  if (what == "frameworks") return framework_rows();
  if (what == "traces") return trace_rows();
  throw UserError(
      "list: expected policies, schedules, models, profiles, frameworks, traces or schema, found " + what);
}

std::vector<std::string> listed_names(const std::string& what) {
  return each_of(list_of(what), &ListedName::name);
}

void run_list_command(const std::string& what, Format format, std::ostream& out) {
  if (what == "schema") {
    out << study_schema().dump(2) << '\n';
    return;
  }
  const std::vector<ListedName> rows = list_of(what);
  if (format == Format::json) {
    nlohmann::ordered_json list = nlohmann::json::array();
    for (const ListedName& r : rows) {
      list.push_back({{"name", r.name}, {"kind", r.kind}, {"from", r.from}, {"summary", r.summary}});
      if (!r.options.is_null()) list.back()["options"] = r.options;
    }
    out << list.dump(2) << '\n';
    return;
  }
  if (format == Format::csv) out << "name,kind,from,summary\n";
  std::size_t name_width = 0, kind_width = 0;
  for (const ListedName& r : rows) {
    name_width = std::max(name_width, r.name.size());
    kind_width = std::max(kind_width, r.kind.size());
  }
  for (const ListedName& r : rows) {
    if (format == Format::csv)
      out << r.name << ',' << r.kind << ",\"" << r.from << "\",\"" << r.summary << "\"\n";
    else
      out << folded(
          concatenated(r.name, std::string(name_width - r.name.size() + 2, ' '), r.kind,
                       std::string(kind_width - r.kind.size() + 2, ' '), r.summary, " [", r.from, "]"),
          screen_width(), name_width + kind_width + 4);
  }
}

}  // namespace equipoise
