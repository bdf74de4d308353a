// Longest processing time first (Graham 1969) puts the documents of the step, largest cost W first (stable),
// into the least loaded of N micro-batches. Micro-batches have no capacity. The maximum is at most 4/3 of the
// optimum. O(n log n).
#include <algorithm>
#include <cstddef>
#include <vector>

#include "policies/least_loaded.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {

Plan plan_lpt(const PackingProblem& problem) {
  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    const auto fill = [&](std::span<const double> weights, std::size_t bins) {
      LeastLoaded<double> load(bins);
      const std::vector<std::uint32_t> order = heaviest_first(weights);
      const auto bin_of = each_of(order, [&](std::uint32_t i) {
        const std::size_t bin = load.least();
        load.add(bin, weights[i]);
        return static_cast<std::uint32_t>(bin);
      });
      return bins_of(batch.slices, gather_packs(order, bin_of, bins));
    };
    add_step(problem, step_of_bins(bins_of_step(batch, problem, fill), problem.options), plan);
  }
  return plan;
}

// Multipack (OpenChat's batch sampler, second version) makes batches of `lanes` packs in data order. Each
// takes the longest prefix of the remaining documents that LPT (longest first to the least loaded pack)
// places within the pack length, found by binary search on the prefix length from 1 to the remaining count.
// Fewer documents than lanes at the end form a tail batch.
//
// LPT is not monotone in the prefix, so the probed lengths are part of the result. The search starts with l =
// 1 and r = remaining and probes (l + r + 1) / 2; l moves up to a prefix that fits, r below one that does
// not.
//
// Most probes need no LPT. More tokens than all packs hold never fit. With S tokens in n packs, LPT puts a
// document of d tokens on a load of at most (S - d) / n. So it fits whenever S + (n - 1) d <= n * capacity,
// and all documents after the first such one fit as well. The prefix is sorted once per batch, and probes
// skip documents outside theirs. O(n log n) in all for a bounded number of documents per batch.
namespace {

class Multipack {
 public:
  Multipack(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes)
      : lengths_(lengths), capacity_(capacity), lanes_(lanes), load_(lanes), prefix_(lengths.size() + 1) {
    for (std::size_t i = 0; i < lengths.size(); ++i) prefix_[i + 1] = prefix_[i] + lengths[i];
  }

  Packs run() {
    Packs packs;
    packs.item.reserve(lengths_.size());
    packs.begin.reserve(static_cast<std::size_t>(2 * prefix_.back() / capacity_) + 2 * lanes_);
    for (std::size_t first = 0; first < lengths_.size();) {
      const std::size_t count = longest_prefix(first);
      append_batch(first, count, packs);
      first += count;
    }
    return packs;
  }

 private:
  [[nodiscard]] std::int64_t room_of_all() const { return capacity_ * static_cast<std::int64_t>(lanes_); }

  std::size_t longest_prefix(std::size_t first) {
    std::size_t low = 1;
    std::size_t high = lengths_.size() - first;
    sorted_.clear();
    while (low < high) {
      const std::size_t middle = (low + high + 1) / 2;
      if (prefix_[first + middle] - prefix_[first] <= room_of_all() && fits(first, middle, high))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  // `high`: the longest possible probe of this batch, up to which documents are sorted.
  bool fits(std::size_t first, std::size_t count, std::size_t high) {
    if (lanes_ == 1) return true;  // the sum of tokens decides
    if (sorted_.empty()) sorted_ = longest_first(lengths_.subspan(first, longest_within(first, high)));
    const std::int64_t tokens = prefix_[first + count] - prefix_[first];
    const auto others = static_cast<std::int64_t>(lanes_) - 1;
    load_.reset();
    for (const std::uint32_t i : sorted_) {
      if (i >= count) continue;
      const std::int64_t length = lengths_[first + i];
      if (tokens + others * length <= room_of_all()) return true;
      const std::size_t pack = load_.least();
      if (load_.load(pack) + length > capacity_) return false;
      load_.add(pack, length);
    }
    return true;
  }

  // The longest prefix, of at most `high` documents, whose tokens fit into all packs together.
  [[nodiscard]] std::size_t longest_within(std::size_t first, std::size_t high) const {
    const auto begin = prefix_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(high) + 1;
    return static_cast<std::size_t>(std::upper_bound(begin, end, *begin + room_of_all()) - begin) - 1;
  }

  void append_batch(std::size_t first, std::size_t count, Packs& packs) {
    order_ = longest_first(lengths_.subspan(first, count));
    const auto base = static_cast<std::uint32_t>(first);
    if (lanes_ == 1) {
      for (const std::uint32_t i : order_) packs.item.push_back(base + i);
      packs.close();
      return;
    }
    load_.reset();
    pack_of_.resize(count);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t pack = load_.least();
      load_.add(pack, lengths_[first + order_[k]]);
      pack_of_[k] = static_cast<std::uint32_t>(pack);
      order_[k] += base;
    }
    // A tail with fewer documents than lanes puts one into each of the first packs.
    const Packs batch = gather_packs(order_, pack_of_, std::min(lanes_, count));
    packs.item.insert(packs.item.end(), batch.item.begin(), batch.item.end());
    for (std::size_t p = 1; p < batch.begin.size(); ++p) packs.begin.push_back(base + batch.begin[p]);
  }

  std::span<const std::int64_t> lengths_;
  std::int64_t capacity_;
  std::size_t lanes_;
  LeastLoaded<std::int64_t> load_;
  std::vector<std::int64_t> prefix_;   // tokens before document i
  std::vector<std::uint32_t> sorted_;  // the batch's candidates, longest first
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> pack_of_;
};

}  // namespace

Packs pack_multipack(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes) {
  return Multipack(lengths, capacity, lanes).run();
}

}  // namespace equipoise
