#include "sim/study/provenance.h"

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/study/models.h"

namespace equipoise {
namespace {

using nlohmann::json;

std::string joined_once(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (std::find(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(i), items[i]) ==
        items.begin() + static_cast<std::ptrdiff_t>(i))
      text += (text.empty() ? "" : "; ") + items[i];
  return text;
}

struct TableSources {
  std::vector<std::string> kinds, sources;
  std::int64_t samples = 0;
};

// Nothing where it is no text: a profile may be anybody's, and only what prices is checked.
std::string text_of(const json& node, const char* key) {
  const auto found = node.find(key);
  return found != node.end() && found->is_string() ? found->get<std::string>() : "";
}

void add_text(const json& node, std::vector<std::string>& list) {
  if (node.is_string()) list.push_back(node.get<std::string>());
  if (node.is_array())
    for (const json& item : node) add_text(item, list);
}

// Of a table and all below it; a table is what has a provenance.
void collect(const json& node, TableSources& out) {
  if (!node.is_object()) return;
  if (const auto own = node.find("provenance"); own != node.end() && own->is_object()) {
    add_text(own->value("kind", json()), out.kinds);
    add_text(own->value("source", json()), out.sources);
    const auto samples = own->find("samples");
    if (samples != own->end() && samples->is_number()) out.samples += samples->get<std::int64_t>();
    return;
  }
  for (const json& below : node) collect(below, out);
}

// The part of a table that the study prices with: one attention kernel, one precision.
const json& used_part(const json& table, const Study& study, const std::string& kernel) {
  if (const auto kernels = table.find("kernels"); kernels != table.end() && kernels->is_object()) {
    const std::string name = kernel.empty() ? text_of(table, "default") : kernel;
    const auto one = kernels->find(name);
    return one != kernels->end() ? *one : table;
  }
  const auto precise = table.find(study.layout.precision == Precision::fp8 ? "fp8" : "bf16");
  return precise != table.end() && precise->is_object() ? *precise : table;
}

std::string device_source(const Profile& profile, const char* key) {
  const json& device = profile.json().value("device", json::object());
  const auto sources = device.find("sources");
  if (sources == device.end() || !sources->contains(key)) return "";
  const json& text = sources->at(key);
  return text.is_string() ? text.get<std::string>() : text.dump();
}

void add_profile(const Study& study, const Profile& profile, std::vector<InputSource>& list) {
  list.push_back(
      {"profile", profile.name() + ": " + profile.device().name, "", text_of(profile.json(), "summary")});
  const std::string kernel = study.framework.on(profile).attention_kernel;
  const std::map<std::string_view, const char*> names = {{"attention", "attention times"},
                                                         {"gemm", "GEMM times"},
                                                         {"elementwise", "other kernels' times"},
                                                         {"collective", "collectives' times"}};
  for (const auto& [table, name] : names) {
    if (!profile.has_table(table)) continue;
    TableSources found;
    collect(used_part(profile.table(table), study, kernel), found);
    list.push_back({name, "fitted to " + grouped(found.samples) + " samples", joined_once(found.kinds),
                    joined_once(found.sources)});
  }
}

void add_rates(const Study& study, const Profile& profile, std::vector<InputSource>& list) {
  const auto add = [&](const std::string& what, double value, const char* unit, bool stated,
                       const char* key) {
    if (value > 0)
      list.push_back({what, fixed(value, value < 100 ? 1 : 0) + " " + unit, stated ? "stated" : "profile",
                      stated ? "the study file" : device_source(profile, key)});
  };
  constexpr double kGB = 1e9;
  const Cluster& cluster = study.cluster;
  add("memory of a GPU", cluster.memory_GB > 0 ? cluster.memory_GB : profile.device().memory_bytes / kGB,
      "GB", cluster.memory_GB > 0, "memory_bytes");
  if (study.layout.gpus() <= 1) return;
  add("NVLink, one direction", profile.device().nvlink_GBps, "GB/s", false, "nvlink_GBps");
  const double nic = nic_GBps(cluster, profile);
  add("NIC of a GPU, one direction", nic, "GB/s", nic != profile.device().nic_GBps, "nic_GBps");
}

std::string engine_text(const StepSettings& settings) {
  std::string text = std::string(kFidelityNames[at(settings.fidelity)]) + " fidelity";
  if (settings.op.contention) text += ", link contention";
  if (settings.op.jitter > 0)
    text += ", jitter " + fixed(settings.op.jitter, 3) + " with seed " + std::to_string(settings.op.seed);
  if (!settings.op.stragglers.empty())
    text += ", " + std::to_string(settings.op.stragglers.size()) + " slow GPUs";
  return text;
}

}  // namespace

std::vector<InputSource> sources_of(const Study& study, const StudyInputs& inputs,
                                    const RunStudyOptions& options) {
  std::vector<InputSource> list;
  const TraceSource& trace = study.trace;
  const bool drawn = !trace.distribution.empty();
  const bool mixed = !trace.mixture.empty();
  list.push_back(
      {"documents",
       grouped(inputs.documents.documents) + " lengths, " + grouped(inputs.documents.tokens) + " tokens",
       drawn               ? "published"
       : mixed             ? "mixed"
       : trace.uniform > 0 ? "stated"
                           : "measured",
       inputs.trace.origin + (drawn ? ", drawn from published lengths with seed " + std::to_string(trace.seed)
                              : trace.uniform > 0 ? ""
                              : mixed             ? ""
                                                  : ", recorded lengths")});
  list.push_back({"model", study.model.name, "published", "shape as its authors state it"});
  add_profile(study, inputs.profile, list);
  add_rates(study, inputs.profile, list);
  const std::string kernels = study.framework.kernels_text_on(inputs.profile);
  list.push_back({"framework", study.framework.preset.name,
                  kernels.find("fitted") != std::string::npos ? "fitted to published steps" : "stated",
                  kernels});
  if (study.model.moe && study.layout.expert > 1)
    list.push_back({"routing", study.framework.routing_text_on(inputs.profile), "assumed", ""});
  list.push_back({"step times", engine_text(options.steps), "simulated", ""});
  list.push_back({"packing time", "pack ms of the table", "measured", "on the machine that ran this study"});
  list.push_back({"seed of shuffles", std::to_string(study.batch.seed), "stated", ""});
  return list;
}

std::vector<LengthBin> length_bins(const DocumentSet& documents) {
  std::vector<LengthBin> bins;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) {
      const std::int64_t n = slice.tokens();
      if (n < 1) continue;
      const auto index = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(n)) - 1);
      while (bins.size() <= index) {
        const std::int64_t begin = std::int64_t{1} << bins.size();
        bins.push_back({begin, 2 * begin, 0, 0, 0});
      }
      LengthBin& bin = bins[index];
      ++bin.documents;
      bin.tokens += n;
      bin.causal_pairs += static_cast<double>(n) * static_cast<double>(n + 1) / 2;
    }
  const auto first =
      std::find_if(bins.begin(), bins.end(), [](const LengthBin& bin) { return bin.documents > 0; });
  bins.erase(bins.begin(), first);
  return bins;
}

}  // namespace equipoise
