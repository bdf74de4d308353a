// ChunkFlow (arXiv 2503.02356), Algorithm 1, makes chunks of nearly one size, so that memory and pipeline
// depend on ChunkSize and not on the longest document. Per global batch:
//   - a document longer than ChunkSize is cut into ceil(len / ChunkSize) dependent chunks, which the
//   state-aware schedule runs in order;
//     the last is shorter and holds no other document;
//   - the others (including those of exactly ChunkSize) are packed into standalone chunks: for n from
//     ceil(sum / ChunkSize) upward, documents go longest first to the least loaded of n bins, until the
//     fullest bin fits.
// Standalone chunks come first, ordered by their lowest document and inside by document; groups follow by
// document. With several lanes, units (a standalone chunk or a whole group) go to the least loaded lane, most
// tokens first; inside a lane the order above holds.
//
// The paper states neither the first n nor the DP rank of a chunk; these rules are this project's.
//
// The first n that fits is found by doubling steps and bisection. This is exact since documents in a fixed
// order that fit n bins also fit n + 1. Proof: let x be the sorted loads of n bins and y those of n + 1 after
// the same documents. Then y_1 <= x_1 and y_(k+1) <= x_k for all k. This holds at the start, and a document
// that goes to the least bin of each preserves it: y_3.. are bounded by x_2.., y_1 + d by x_1 + d, and the
// remaining y_2 <= x_1 is at most any load of the n bins afterwards. So the fullest of n + 1 bins is never
// fuller than that of n. (Graham's anomalies need documents that wait for each other.) O(s log s + (s +
// ChunkSize) log s) for s short documents.
#include "policies/packing/chunkflow.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

// Whether LPT fits into a number of bins. Equally loaded bins are equivalent here, so bins are counted by
// load. The least load never falls, so it is found by walking up. O(s + ChunkSize).
class Trial {
 public:
  Trial(const std::vector<std::int64_t>& lengths, const std::vector<std::uint32_t>& order,
        std::int64_t chunk_size)
      : chunk_size_(static_cast<std::size_t>(chunk_size)) {
    lengths_.reserve(order.size());
    for (const std::uint32_t i : order) lengths_.push_back(static_cast<std::size_t>(lengths[i]));
  }

  bool fits(std::size_t bins) { return chunk_size_ <= kCounted ? fits_counted(bins) : fits_in_tree(bins); }

 private:
  static constexpr std::size_t kCounted =
      std::size_t{1} << 21;  // for larger chunks, counting by load costs more than it saves

  bool fits_counted(std::size_t bins) {
    bins_with_.assign(chunk_size_ + 1, 0);
    bins_with_[0] = bins;
    std::size_t least = 0;
    for (const std::size_t length : lengths_) {
      while (bins_with_[least] == 0) ++least;
      if (least + length > chunk_size_) return false;
      --bins_with_[least];
      ++bins_with_[least + length];
    }
    return true;
  }

  [[nodiscard]] bool fits_in_tree(std::size_t bins) const {
    LeastLoaded<std::size_t> load(bins);
    for (const std::size_t length : lengths_) {
      const std::size_t bin = load.least();
      if (load.load(bin) + length > chunk_size_) return false;
      load.add(bin, length);
    }
    return true;
  }

  std::size_t chunk_size_;
  std::vector<std::size_t> lengths_;  // longest first
  std::vector<std::size_t> bins_with_;
};

std::size_t fewest_bins(Trial&& trial, std::size_t least, std::size_t documents) {
  if (trial.fits(least)) return least;
  std::size_t too_few = least;
  std::size_t enough = documents;  // a bin for every document
  for (std::size_t step = 1; too_few + step < documents; step *= 2) {
    if (trial.fits(too_few + step)) {
      enough = too_few + step;
      break;
    }
    too_few += step;
  }
  while (enough - too_few > 1) {
    const std::size_t middle = too_few + (enough - too_few) / 2;
    (trial.fits(middle) ? enough : too_few) = middle;
  }
  return enough;
}

// The bin of each length, longest first, in the fewest bins that LPT needs. No bin is empty.
std::vector<std::uint32_t> pack_short(const std::vector<std::int64_t>& lengths, std::int64_t chunk_size,
                                      std::size_t& bins) {
  const std::int64_t sum = sum_of(lengths);
  std::vector<std::uint32_t> bin_of(lengths.size(), 0);
  bins = static_cast<std::size_t>((sum + chunk_size - 1) / chunk_size);
  if (bins <= 1) return bin_of;
  const std::vector<std::uint32_t> order = longest_first(lengths);
  bins = fewest_bins(Trial(lengths, order, chunk_size), bins, lengths.size());
  LeastLoaded<std::int64_t> load(bins);
  for (const std::uint32_t i : order) {
    bin_of[i] = static_cast<std::uint32_t>(load.least());
    load.add(bin_of[i], lengths[i]);
  }
  return bin_of;
}

}  // namespace

std::vector<Unit> standalone_units(std::span<const Slice> slices, std::int64_t capacity) {
  const std::vector<std::int64_t> lengths = lengths_of(slices);
  std::size_t bins = 0;
  const std::vector<std::uint32_t> bin_of = pack_short(lengths, capacity, bins);
  // Renumbers bins by their lowest document. Slices are in document order already.
  std::vector<std::size_t> unit_of(bins, bins);
  std::vector<Unit> units;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    std::size_t& unit = unit_of[bin_of[i]];
    if (unit == bins) {
      unit = units.size();
      units.emplace_back().chunks.emplace_back();
    }
    units[unit].chunks[0].slices.push_back(slices[i]);
    units[unit].weight += static_cast<double>(slices[i].tokens());
  }
  return units;
}

Unit dependent_unit(const Slice& slice, std::span<const std::int64_t> ends) {
  Unit unit;
  unit.weight = static_cast<double>(slice.tokens());
  const auto count = static_cast<int>(ends.size());
  unit.chunks.reserve(ends.size());
  std::int64_t begin = slice.begin;
  for (int i = 0; i < count; ++i) {
    const std::int64_t end = slice.begin + ends[at(i)];
    MicroBatch& chunk = unit.chunks.emplace_back();
    chunk.slices.push_back({slice.document, begin, end});
    chunk.chunk = {slice.document, i, count, slice.begin};
    begin = end;
  }
  return unit;
}

Step step_of_units(std::vector<Unit>&& units, const PackOptions& options, std::size_t in_rows) {
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size(), waiting = waiting_lanes(options);
  LeastLoaded<double> load(lanes);
  std::vector<std::size_t> lane_of(units.size());
  const auto place = [&](std::size_t unit, std::size_t lane) {
    lane_of[unit] = lane;
    load.add(lane, units[unit].weight);
  };
  std::size_t first = 0;
  for (; waiting > 1 && first + waiting <= in_rows; first += waiting) {
    const std::size_t group = load.least() / waiting * waiting;
    std::vector<std::size_t> order(std::min(waiting, lanes - group));
    std::iota(order.begin(), order.end(), group);
    std::ranges::stable_sort(order, {}, [&](std::size_t lane) { return load.load(lane); });
    for (std::size_t i = 0; i < order.size(); ++i) place(first + i, order[i]);
  }
  std::vector<double> weights;
  for (std::size_t u = first; u < units.size(); ++u) weights.push_back(units[u].weight);
  for (const std::uint32_t u : heaviest_first(weights)) place(first + u, load.least());
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::vector<MicroBatch>& lane = step.lanes[lane_of[u]].micro_batches;
    for (MicroBatch& chunk : units[u].chunks) lane.push_back(std::move(chunk));
  }
  return step;
}

std::int64_t chunk_tokens(const PackOptions& options) {
  return options.of<ChunkflowOptions>().chunk_size;
}

std::vector<std::int64_t> tried_chunk_sizes(const PackOptions& options, std::int64_t) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t chunks = 16; chunks > 0; chunks /= 2)
    sizes.push_back(std::max<std::int64_t>(1, options.context_window / chunks));
  return sizes;
}

std::vector<std::int64_t> tried_keeps(const PackOptions& options, std::int64_t longest) {
  constexpr std::int64_t kMostKept = 1 << 20;
  const std::int64_t size = chunk_tokens(options);
  const std::int64_t all = std::clamp<std::int64_t>((longest + size - 1) / size, 1, kMostKept);
  std::vector<std::int64_t> keeps;
  for (std::int64_t keep = 1; keep < all; keep *= 2) keeps.push_back(keep);
  keeps.push_back(all);
  return keeps;
}

Plan plan_chunkflow(const PackingProblem& problem) {
  const std::int64_t chunk_size = chunk_tokens(problem.options);
  if (chunk_size < 1) throw UserError("chunk_size: expected a number >= 1, found ", chunk_size);
  Plan plan;
  std::vector<std::int64_t> ends;  // ends of a document's chunks
  for (const GlobalBatch& batch : problem.batches) {
    std::vector<Slice> short_ones;
    std::vector<Slice> long_ones;
    for (const Slice& slice : batch.slices)
      (slice.tokens() > chunk_size ? long_ones : short_ones).push_back(slice);
    std::vector<Unit> units = standalone_units(short_ones, chunk_size);
    for (const Slice& slice : long_ones) {
      ends.clear();
      for (std::int64_t end = chunk_size; end < slice.tokens(); end += chunk_size) ends.push_back(end);
      ends.push_back(slice.tokens());
      units.push_back(dependent_unit(slice, ends));
    }
    add_step(problem, step_of_units(std::move(units), problem.options), plan);
  }
  return plan;
}

}  // namespace equipoise
