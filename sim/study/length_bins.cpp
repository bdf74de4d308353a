#include "sim/study/length_bins.h"

#include <algorithm>
#include <bit>

namespace equipoise {

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
