#include "sim/study/study_inputs.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/random.h"
#include "policies/base/text.h"
#include "sim/report/words/words.h"
#include "sim/study/models.h"
#include "sim/study/read/naming.h"
#include "traces/synth.h"

namespace equipoise {

DocumentSet documents_of(const Study& study, const Trace& trace) {
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  load.repeat = study.trace.repeat;
  return load_documents(trace.lengths, study.batch, load);
}

StudyInputs load_inputs(const Study& study) {
  Profile profile =
      naming(study.file + ": cluster.profile", [&] { return Profile::load(study.cluster.profile); });
  (void)power_of(profile);  // so that a fault is an error before anything runs
  auto [trace, documents] = naming(study.file, [&] {
    (void)RunModels(study, study.layout, profile);  // throws if the profile cannot price the layout
    Trace read = load_trace(study);
    DocumentSet batches = documents_of(study, read);
    return std::pair(std::move(read), std::move(batches));
  });
  return {std::move(profile), std::move(trace), std::move(documents), read_plan_files(study)};
}

void use_one_rule(const std::vector<Study*>& cases) {
  std::map<std::string, bool> measured;  // by profile
  std::vector<Study*> alone;
  bool any_counts = false;
  for (Study* const study : cases) {
    const Framework& framework = study->framework;
    if (framework.carry_slowdowns || framework.preset.kernels == KernelTimes::benchmark) continue;
    const auto [known, is_new] = measured.try_emplace(study->cluster.profile);
    if (is_new) known->second = kernels_are_measured(Profile::load(study->cluster.profile));
    if (known->second)
      alone.push_back(study);
    else
      any_counts = true;
  }
  if (!any_counts) return;
  for (Study* const study : alone) carry_slowdowns(*study);
}

void carry_slowdowns(Study& study) {
  study.framework.carry_slowdowns = true;
  study.notes.push_back(
      {"one_rule", "framework " + study.framework.preset.name, {{"profile", study.cluster.profile}}});
}

namespace {

std::string resolved(const Study& study, const std::string& path) {
  return (std::filesystem::path(study.directory) / path).lexically_normal().string();
}

// How many windows the study's steps take.
std::int64_t windows_needed(const Study& study) {
  return study.steps * study.batch.sequences_per_step;
}

// How many full windows the loader cuts from documents of these lengths.
std::int64_t full_windows(const Study& study, const std::vector<std::int64_t>& lengths) {
  const std::int64_t window = study.batch.context_window;
  std::int64_t windows = 0;
  std::int64_t filled = 0;  // tokens in the open window
  for (const std::int64_t length : lengths) {
    filled += loaded_length(length, study.batch);
    if (filled < window) continue;
    const bool drop = study.loader == LoaderTail::drop;  // drops what the full window cuts off
    windows += drop ? 1 : filled / window;
    filled = drop ? 0 : filled % window;
  }
  return windows;
}

// How many documents the loader keeps.
std::int64_t documents_kept(const Study& study, const std::vector<std::int64_t>& lengths) {
  return std::count_if(lengths.begin(), lengths.end(),
                       [&](std::int64_t length) { return loaded_length(length, study.batch) > 0; });
}

bool has_enough(const Study& study, const Trace& trace) {
  if (static_cast<std::int64_t>(trace.lengths.size()) >= kMostDocuments) return true;
  const std::int64_t documents = study.steps * study.batch.documents_per_step;
  return documents > 0 ? documents_kept(study, trace.lengths) >= documents
                       : full_windows(study, trace.lengths) >= windows_needed(study);
}

// Draws documents until the study has enough, beginning with `times` as many. Neither the mean of a
// heavy-tailed distribution nor what the loader drops is known beforehand.
Trace synthesize_enough(const Study& study, const std::string& name, std::int64_t documents,
                        std::uint64_t seed, std::int64_t times = 1) {
  constexpr std::int64_t kFirstDraw = 4096;
  if (documents > 0) return synthesize(name, documents, seed);
  const std::int64_t counted = study.steps * study.batch.documents_per_step;
  if (counted > kMostDocuments) return synthesize(name, counted, seed);  // its error states the limit
  const std::int64_t least = times * (counted > 0 ? counted : kFirstDraw);
  for (std::int64_t count = std::min(least, kMostDocuments);; count = std::min(2 * count, kMostDocuments)) {
    Trace trace = synthesize(name, count, seed);
    if (has_enough(study, trace)) return trace;
  }
}

// Documents of one length: each window takes as many as reach its end, and the part that is cut off may
// continue in the next.
std::int64_t uniform_documents(const Study& study, std::int64_t length) {
  if (study.batch.documents_per_step > 0) return study.steps * study.batch.documents_per_step;
  const std::int64_t window = study.batch.context_window;
  length = std::max<std::int64_t>(1, loaded_length(length, study.batch));
  if (study.loader == LoaderTail::drop) return windows_needed(study) * ((window + length - 1) / length);
  return windows_needed(study) * window / length + 1;
}

// A file's documents, in the order that `seed` draws if the study asks for one.
Trace read_file(const Study& study, const std::string& file, std::uint64_t seed) {
  TraceReadOptions options;
  options.column = study.trace.column;
  Trace trace = read_trace(resolved(study, file), options);
  if (!study.trace.shuffle) return trace;
  SplitMix64 random(seed);
  shuffle(trace.lengths, random);
  trace.origin += ", in an order drawn with seed " + std::to_string(seed);
  return trace;
}

Trace load_mixture(const Study& study) {
  const TraceSource& source = study.trace;
  // A source ends the mixture when it is used up. Drawn sources are lengthened until that no longer helps.
  std::size_t before = 0;
  for (std::int64_t times = 1;; times *= 4) {
    std::vector<Trace> parts;
    for (const TraceSource::Component& part : source.mixture)
      parts.push_back(part.file.empty()
                          ? synthesize_enough(study, part.distribution, 0, source.seed + parts.size(), times)
                          : read_file(study, part.file, source.seed + parts.size()));
    std::vector<WeightedTrace> weighted;
    for (std::size_t i = 0; i < parts.size(); ++i) weighted.push_back({&parts[i], source.mixture[i].weight});
    Trace mixed = mix_traces(weighted, source.documents, source.seed);
    if (source.documents > 0 || has_enough(study, mixed) || mixed.lengths.size() == before) return mixed;
    before = mixed.lengths.size();
  }
}

}  // namespace

Trace load_trace(const Study& study) {
  const TraceSource& source = study.trace;
  Trace trace;
  if (source.uniform > 0) {
    std::int64_t count = source.documents;
    if (count == 0) count = uniform_documents(study, source.uniform);
    if (count > kMostDocuments)
      throw UserError("trace.uniform: the study would need " + std::to_string(count) +
                      " documents, expected at most " + std::to_string(kMostDocuments));
    trace.lengths.assign(static_cast<std::size_t>(count), source.uniform);
    trace.origin = "uniform, " + std::to_string(source.uniform) + " tokens";
    return trace;
  }
  if (!source.distribution.empty())
    return synthesize_enough(study, source.distribution, source.documents, source.seed);
  if (!source.file.empty()) {
    trace = read_file(study, source.file, source.seed);
    if (source.documents > 0 && source.documents < static_cast<std::int64_t>(trace.lengths.size()))
      trace.lengths.resize(static_cast<std::size_t>(source.documents));
    return trace;
  }
  return load_mixture(study);
}

// --- Where the inputs come from

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

// Nothing if it is no text: anybody may write a profile, and only its prices are checked.
std::string text_of(const json& node, const char* key) {
  const auto found = node.find(key);
  return found != node.end() && found->is_string() ? found->get<std::string>() : "";
}

void add_text(const json& node, std::vector<std::string>& list) {
  if (node.is_string()) list.push_back(node.get<std::string>());
  if (node.is_array())
    for (const json& item : node) add_text(item, list);
}

// Collects from a table and all tables below it; a table has a provenance.
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
    list.push_back({name, "fitted to " + counted(found.samples, "sample"), joined_once(found.kinds),
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
  const std::string kernels =
      joined_texts(study.framework.kernel_notes_on(inputs.profile, study.layout.precision), "; ");
  const SlowdownRule rule = study.framework.rule_on(inputs.profile);
  const bool stated = study.framework.says_slowdowns || rule == SlowdownRule::alone ||
                      study.framework.preset.kernels == KernelTimes::borrowed;
  list.push_back({"framework", study.framework.preset.name,
                  stated                          ? "stated"
                  : rule == SlowdownRule::carried ? "carried over from other GPUs"
                                                  : "fitted to published steps",
                  kernels});
  if (study.model.moe && study.layout.expert > 1)
    list.push_back({"routing", text_of(study.framework.routing_note_on(inputs.profile)), "assumed", ""});
  list.push_back({"step times", engine_text(options.steps), "simulated", ""});
  list.push_back({"packing time", "pack ms of the table", "measured", "on the machine that ran this study"});
  list.push_back({"seed of shuffles", std::to_string(study.batch.seed), "stated", ""});
  return list;
}

std::vector<LengthBin> length_bins(const DocumentSet& documents) {
  std::vector<std::int64_t> lengths;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) lengths.push_back(slice.tokens());
  return length_bins(lengths);
}

std::vector<LengthBin> length_bins(std::span<const std::int64_t> lengths) {
  std::vector<LengthBin> bins;
  for (const std::int64_t n : lengths) {
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
  const auto first = std::ranges::find_if(bins, [](const LengthBin& bin) { return bin.documents > 0; });
  bins.erase(bins.begin(), first);
  return bins;
}

}  // namespace equipoise
