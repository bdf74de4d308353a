#include "sim/study/study_inputs.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "policies/base/error.h"
#include "sim/study/models.h"
#include "sim/study/read/json_object.h"
#include "sim/study/read/plan_file.h"
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
  (void)naming(study.file, [&] { return RunModels(study, study.layout, profile).layout; });
  Trace trace = naming(study.file, [&] { return load_trace(study); });
  DocumentSet documents = naming(study.file, [&] { return documents_of(study, trace); });
  return {std::move(profile), std::move(trace), std::move(documents), read_plan_files(study)};
}

void use_one_rule(const std::vector<Study*>& cases) {
  std::map<std::string, bool> measured;  // of each profile
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
  for (Study* const study : alone) {
    study->framework.carry_slowdowns = true;
    study->notes.push_back("framework " + study->framework.preset.name +
                           ": one rule for all profiles of a table: its "
                           "slowdowns are carried over to " +
                           study->cluster.profile + ", whose kernels were measured (alone they would be 1)");
  }
}

namespace {

std::string resolved(const Study& study, const std::string& path) {
  return (std::filesystem::path(study.directory) / path).lexically_normal().string();
}

// Windows that the study's steps take.
std::int64_t windows_needed(const Study& study) {
  return study.steps * study.batch.sequences_per_step;
}

// Full windows that the loader cuts from documents of these lengths.
std::int64_t full_windows(const Study& study, const std::vector<std::int64_t>& lengths) {
  const std::int64_t window = study.batch.context_window;
  std::int64_t windows = 0;
  std::int64_t filled = 0;  // of the open window
  for (const std::int64_t length : lengths) {
    filled += loaded_length(length, study.batch);
    if (filled < window) continue;
    const bool drop = study.loader == LoaderTail::drop;  // what the full window cuts off
    windows += drop ? 1 : filled / window;
    filled = drop ? 0 : filled % window;
  }
  return windows;
}

// Documents that are not left out.
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

// Draws documents until the study has enough: the mean of a heavy-tailed distribution is not known
// beforehand, nor what the loader drops. `times` as many to begin with.
Trace synthesize_enough(const Study& study, const std::string& name, std::int64_t documents,
                        std::uint64_t seed, std::int64_t times = 1) {
  constexpr std::int64_t kFirstDraw = 4096;
  if (documents > 0) return synthesize(name, documents, seed);
  const std::int64_t counted = study.steps * study.batch.documents_per_step;
  if (counted > kMostDocuments) return synthesize(name, counted, seed);  // which says how many it may be
  const std::int64_t least = times * (counted > 0 ? counted : kFirstDraw);
  for (std::int64_t count = std::min(least, kMostDocuments);; count = std::min(2 * count, kMostDocuments)) {
    Trace trace = synthesize(name, count, seed);
    if (has_enough(study, trace)) return trace;
  }
}

// Documents of one length: each window takes as many as reach its end, or what is cut off goes on in the
// next.
std::int64_t uniform_documents(const Study& study, std::int64_t length) {
  if (study.batch.documents_per_step > 0) return study.steps * study.batch.documents_per_step;
  const std::int64_t window = study.batch.context_window;
  length = std::max<std::int64_t>(1, loaded_length(length, study.batch));
  if (study.loader == LoaderTail::drop) return windows_needed(study) * ((window + length - 1) / length);
  return windows_needed(study) * window / length + 1;
}

Trace load_mixture(const Study& study) {
  const TraceSource& source = study.trace;
  TraceReadOptions options;
  options.column = source.column;
  // A source ends the mixture when it is used up. Those that are drawn are drawn longer until it is enough,
  // or until that does not lengthen it.
  std::size_t before = 0;
  for (std::int64_t times = 1;; times *= 4) {
    std::vector<Trace> parts;
    for (const TraceSource::Component& part : source.mixture)
      parts.push_back(part.file.empty()
                          ? synthesize_enough(study, part.distribution, 0, source.seed + parts.size(), times)
                          : read_trace(resolved(study, part.file), options));
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
  TraceReadOptions options;
  options.column = source.column;
  if (!source.file.empty()) {
    trace = read_trace(resolved(study, source.file), options);
    if (source.documents > 0 && source.documents < static_cast<std::int64_t>(trace.lengths.size()))
      trace.lengths.resize(static_cast<std::size_t>(source.documents));
    return trace;
  }
  return load_mixture(study);
}

}  // namespace equipoise
