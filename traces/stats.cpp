#include "traces/stats.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {
namespace {

constexpr std::array<double, 9> kShares = {0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999};

std::vector<LengthQuantile> quantiles_of(std::vector<std::int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  std::vector<LengthQuantile> quantiles;
  for (const double share : kShares) {
    const double index = std::round(share * static_cast<double>(lengths.size() - 1));
    quantiles.push_back({share, lengths[static_cast<std::size_t>(index)]});
  }
  return quantiles;
}

std::vector<LengthBucket> buckets_of(const std::vector<std::int64_t>& lengths, std::int64_t longest) {
  std::vector<LengthBucket> buckets = {{1, 1024, 0, 0}};
  while (buckets.back().end <= longest) buckets.push_back({buckets.back().end, buckets.back().end * 2, 0, 0});
  for (const std::int64_t length : lengths) {
    std::size_t i = 0;
    for (std::int64_t rest = length >> 10; rest > 0; rest >>= 1) ++i;
    ++buckets[i].documents;
    buckets[i].tokens += length;
  }
  return buckets;
}

// Walks the concatenated trace slice by slice; bins have equal size but for rounding.
class PositionProfile {
 public:
  PositionProfile(std::int64_t window, int bins)
      : window_(window), sum_(static_cast<std::size_t>(bins)), tokens_(static_cast<std::size_t>(bins)) {}

  void add_window(const std::vector<std::int64_t>& slices) {
    std::int64_t begin = 0;
    for (const std::int64_t length : slices) {
      add_slice(begin, begin + length);
      begin += length;
    }
  }
  [[nodiscard]] std::vector<double> means() const {
    std::vector<double> means;
    if (tokens_[0] == 0) return means;
    for (std::size_t i = 0; i < sum_.size(); ++i) means.push_back(sum_[i] / static_cast<double>(tokens_[i]));
    return means;
  }

 private:
  void add_slice(std::int64_t begin, std::int64_t end) {
    const auto bins = static_cast<std::int64_t>(sum_.size());
    const auto length = static_cast<double>(end - begin);
    for (std::int64_t bin = begin * bins / window_; bin < bins && begin < end; ++bin) {
      const std::int64_t stop = std::min(end, ((bin + 1) * window_ + bins - 1) / bins);
      if (stop <= begin) continue;
      const auto i = static_cast<std::size_t>(bin);
      sum_[i] += static_cast<double>(stop - begin) * length;
      tokens_[i] += stop - begin;
      begin = stop;
    }
  }

  std::int64_t window_;
  std::vector<double> sum_;
  std::vector<std::int64_t> tokens_;
};

std::vector<double> profile_of(const std::vector<std::int64_t>& lengths, std::int64_t window, int bins) {
  PositionProfile profile(window, bins);
  std::vector<std::int64_t> slices;
  std::int64_t room = window;
  for (std::int64_t length : lengths) {
    while (length > 0) {
      const std::int64_t slice = std::min(length, room);
      slices.push_back(slice);
      length -= slice;
      room -= slice;
      if (room > 0) continue;
      profile.add_window(slices);  // a window that the trace does not fill is left out
      slices.clear();
      room = window;
    }
  }
  return profile.means();
}

}  // namespace

TraceStats trace_stats(const Trace& trace, std::int64_t context_window, int position_bins) {
  if (trace.lengths.empty())
    throw UserError(trace.origin + ": the trace is empty; expected at least one length");
  if (context_window < 1 || context_window > kLongestDocument)
    throw UserError("--context-window: found " + std::to_string(context_window) + "; expected 1 to " +
                    std::to_string(kLongestDocument));
  if (position_bins < 1 || position_bins > context_window)
    throw UserError("--bins: found " + std::to_string(position_bins) + "; expected 1 to the context window");
  TraceStats stats;
  stats.origin = trace.origin;
  stats.documents = static_cast<std::int64_t>(trace.lengths.size());
  for (const std::int64_t length : trace.lengths) stats.tokens += length;
  const auto [shortest, longest] = std::minmax_element(trace.lengths.begin(), trace.lengths.end());
  stats.shortest = *shortest;
  stats.longest = *longest;
  stats.mean = static_cast<double>(stats.tokens) / static_cast<double>(stats.documents);
  stats.quantiles = quantiles_of(trace.lengths);
  stats.buckets = buckets_of(trace.lengths, stats.longest);
  stats.context_window = context_window;
  stats.mean_length_by_position = profile_of(trace.lengths, context_window, position_bins);
  return stats;
}

}  // namespace equipoise
