#include "sim/study/load_trace.h"

#include <algorithm>
#include <filesystem>

#include "policies/error.h"
#include "traces/synth.h"

namespace equipoise {
namespace {

std::string resolved(const Study& study, const std::string& path) {
  return (std::filesystem::path(study.directory) / path).lexically_normal().string();
}

// Tokens that the study's steps take.
std::int64_t tokens_needed(const Study& study) {
  return study.steps * study.batch.sequences_per_step * study.batch.context_window;
}

// Draws until the study has enough: the mean of a heavy-tailed distribution is not known beforehand.
Trace synthesize_enough(const Study& study, const std::string& name, std::int64_t documents,
                        std::uint64_t seed) {
  if (documents > 0) return synthesize(name, documents, seed);
  if (study.batch.documents_per_step > 0)
    return synthesize(name, study.steps * study.batch.documents_per_step, seed);
  for (std::int64_t count = 4096;; count *= 2) {
    Trace trace = synthesize(name, count, seed);
    std::int64_t sum = 0;
    for (const std::int64_t length : trace.lengths) sum += length;
    if (sum >= tokens_needed(study) || count >= kMostDocuments) return trace;
  }
}

}  // namespace

Trace load_trace(const Study& study) {
  const TraceSource& source = study.trace;
  Trace trace;
  if (source.uniform > 0) {
    std::int64_t count = source.documents;
    if (count == 0)
      count = study.batch.documents_per_step > 0 ? study.steps * study.batch.documents_per_step
                                                 : tokens_needed(study) / source.uniform + 1;
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
  std::vector<Trace> parts;
  for (const TraceSource::Part& part : source.mixture)
    parts.push_back(part.file.empty()
                        ? synthesize_enough(study, part.distribution, 0, source.seed + parts.size())
                        : read_trace(resolved(study, part.file), options));
  std::vector<WeightedTrace> weighted;
  for (std::size_t i = 0; i < parts.size(); ++i) weighted.push_back({&parts[i], source.mixture[i].weight});
  return mix_traces(weighted, source.documents, source.seed);
}

}  // namespace equipoise
