// Mixtures of traces: which source the next document comes from.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "traces/trace.h"

namespace equipoise {
namespace {

double mean_length(const Trace& trace) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : trace.lengths) tokens += length;
  return static_cast<double>(tokens) / static_cast<double>(trace.lengths.size());
}

// Running sums of weight / mean length, scaled to end at 1.
std::vector<double> cumulative_document_shares(std::span<const WeightedTrace> sources) {
  std::vector<double> cumulative;
  double sum = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double weight = sources[i].weight;
    if (!(weight > 0) || !std::isfinite(weight))
      throw UserError("mixture: weight " + std::to_string(i + 1) + " is " + std::to_string(weight) +
                      "; expected a number > 0");
    if (sources[i].trace->lengths.empty())
      throw UserError(sources[i].trace->origin +
                      ": the trace is empty; a mixture needs documents of every source");
    sum += weight / mean_length(*sources[i].trace);
    cumulative.push_back(sum);
  }
  for (double& share : cumulative) share /= sum;
  return cumulative;
}

}  // namespace

Trace mix_traces(std::span<const WeightedTrace> sources, std::int64_t documents, std::uint64_t seed) {
  if (sources.empty()) throw UserError("mixture: expected at least one trace, found none");
  const std::vector<double> cumulative = cumulative_document_shares(sources);
  SplitMix64 random(seed);
  std::vector<std::size_t> taken(sources.size(), 0);
  Trace mixed;
  while (documents == 0 || static_cast<std::int64_t>(mixed.lengths.size()) < documents) {
    const double share = static_cast<double>(random.next() >> 11) * 0x1p-53;
    std::size_t source = 0;
    while (source + 1 < sources.size() && share >= cumulative[source]) ++source;
    const std::vector<std::int64_t>& lengths = sources[source].trace->lengths;
    if (taken[source] == lengths.size()) break;
    mixed.lengths.push_back(lengths[taken[source]++]);
  }
  for (std::size_t i = 0; i < sources.size(); ++i)
    mixed.origin += (i == 0 ? "mixture of " : " + ") + sources[i].trace->origin;
  mixed.origin += " (seed " + std::to_string(seed) + ")";
  return mixed;
}

}  // namespace equipoise
