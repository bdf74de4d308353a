// WLB-LLM (arXiv 2503.17924), Algorithm 1: heuristic variable-length packing with outlier delay.
//
// Micro-batches may differ in length (up to L_max tokens), so that they can agree in work. The rare very long
// document would still make one micro-batch of its step slow; it waits in an outlier queue until N of its
// kind can be spread over all N micro-batches of one step. One step:
//   1. Document set = carried documents, then this batch in loader order, except that a document of length
//      >= L_1 joins queue i with L_i <= length < L_{i+1}.
//   2. Every queue that holds >= N documents gives up its N oldest, once; they are appended queue by queue.
//   3. Stable sort, longest first. Each document: to the micro-batch with the least W if it fits there
//      (tokens + length <= L_max), else to the one with the fewest tokens if it fits there, else carried.
//   4. At the end of the data the carried documents and then the queues, in order, are packed the same way
//      into N micro-batches again and again (steps marked `tail`) until nothing is held.
//   5. Micro-batches go to lanes, largest W first, to the least loaded lane with a free place; inside a lane
//      they keep the order of the packing (Order::descending sorts them).
//
// Departures from the printed text: it admits a document when tokens + length < L_max, with which one of
// exactly L_max tokens would wait for ever; a carried document does not enter the queues again (it has waited
// already); the paper does not say what ends the data or how bins meet DP ranks.
//
// Cost per step: O(n log n) for the sort (radix, so near O(n)) + O(log N) a document in two winner trees.
#include "policies/packing/wlb.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/prefetch.h"
#include "policies/least_loaded.h"
#include "policies/length_order.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

constexpr std::uint32_t kCarried = UINT32_MAX;

struct Document {
  Slice slice;
  double work = 0;  // W
};

struct Bin {
  std::vector<Slice> slices;
  double work = 0;
};

class Wlb {
 public:
  explicit Wlb(const PackOptions& options)
      : options_(options),
        bins_(static_cast<std::size_t>(micro_batches_of_step(options))),
        max_tokens_(max_tokens(options)),
        thresholds_(wlb_thresholds(options)),
        queues_(thresholds_.size()),
        bin_work_(bins_),
        bin_tokens_(bins_) {}

  Step step(const GlobalBatch& batch, const Workload& workload) {
    std::vector<Document> documents = std::exchange(carried_, {});
    admit(batch, workload, documents);
    release(documents);
    return pack(documents);
  }

  // A step after the end of the data.
  Step tail_step() {
    std::vector<Document> documents = std::exchange(carried_, {});
    for (std::deque<Document>& queue : queues_) {
      documents.insert(documents.end(), queue.begin(), queue.end());
      queue.clear();
    }
    Step step = pack(documents);
    step.tail = true;
    return step;
  }

  [[nodiscard]] bool holds_something() const {
    if (!carried_.empty()) return true;
    for (const std::deque<Document>& queue : queues_) {
      if (!queue.empty()) return true;
    }
    return false;
  }

 private:
  void admit(const GlobalBatch& batch, const Workload& workload, std::vector<Document>& documents) {
    lengths_.clear();
    lengths_.reserve(batch.slices.size());
    for (const Slice& slice : batch.slices) lengths_.push_back(slice.tokens());
    work_.resize(lengths_.size());
    workload.of(lengths_, work_);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t queue = thresholds_.size();  // counted down to the last L_i <= length
      while (queue > 0 && thresholds_[queue - 1] > lengths_[i]) --queue;
      const Document document{batch.slices[i], work_[i]};
      if (queue == 0) {
        documents.push_back(document);
      } else {
        queues_[queue - 1].push_back(document);
      }
    }
  }

  void release(std::vector<Document>& documents) {
    for (std::deque<Document>& queue : queues_) {
      if (queue.size() < bins_) continue;
      const auto end = queue.begin() + static_cast<std::ptrdiff_t>(bins_);
      documents.insert(documents.end(), queue.begin(), end);
      queue.erase(queue.begin(), end);
    }
  }

  Step pack(const std::vector<Document>& documents) {
    lengths_.clear();
    lengths_.reserve(documents.size());
    for (const Document& d : documents) lengths_.push_back(d.slice.tokens());
    const std::vector<std::uint32_t> order = longest_first(lengths_);
    place(documents, order);
    Step step = to_lanes(filled_bins(documents, order));
    std::size_t held = carried_.size();
    for (const std::deque<Document>& queue : queues_) held += queue.size();
    step.carried.reserve(held);
    for (const Document& d : carried_) step.carried.push_back(d.slice);
    for (const std::deque<Document>& queue : queues_) {
      for (const Document& d : queue) step.carried.push_back(d.slice);
    }
    return step;
  }

  // Fills bin_of_ by document and carried_. Which bin has the fewest tokens is mostly never asked: its
  // matches are played from the first time on that it is.
  void place(const std::vector<Document>& documents, std::span<const std::uint32_t> order) {
    carried_.clear();
    bin_of_.assign(documents.size(), kCarried);
    bin_work_.reset();
    bin_tokens_.reset();
    bool asked = false;
    for (std::size_t k = 0; k < order.size(); ++k) {
      fetch_ahead(std::span(documents), order, k);
      const std::uint32_t i = order[k];
      const std::int64_t length = lengths_[i];
      std::size_t bin = bin_work_.least();
      if (bin_tokens_.load(bin) + length > max_tokens_) {
        if (!std::exchange(asked, true)) bin_tokens_.replay();
        bin = bin_tokens_.least();
        if (bin_tokens_.load(bin) + length > max_tokens_) {
          carried_.push_back(documents[i]);
          continue;
        }
      }
      bin_of_[i] = static_cast<std::uint32_t>(bin);
      bin_work_.add(bin, documents[i].work);
      if (asked)
        bin_tokens_.add(bin, length);
      else
        bin_tokens_.add_unplayed(bin, length);
    }
  }

  std::vector<Bin> filled_bins(const std::vector<Document>& documents,
                               std::span<const std::uint32_t> order) const {
    std::vector<std::size_t> documents_of(bins_, 0);
    for (const std::uint32_t bin : bin_of_)
      if (bin != kCarried) ++documents_of[bin];
    std::vector<Bin> bins(bins_);
    for (std::size_t b = 0; b < bins_; ++b) {
      bins[b].slices.reserve(documents_of[b]);
      bins[b].work = bin_work_.load(b);
    }
    for (std::size_t k = 0; k < order.size(); ++k) {
      fetch_ahead(std::span(documents), order, k);
      const std::uint32_t i = order[k];
      if (bin_of_[i] != kCarried) bins[bin_of_[i]].slices.push_back(documents[i].slice);
    }
    return bins;
  }

  Step to_lanes(std::vector<Bin> bins) const {
    Step step = empty_step(options_);
    const std::size_t lanes = step.lanes.size();
    std::vector<double> weights;
    weights.reserve(bins.size());
    for (const Bin& bin : bins) weights.push_back(bin.work);
    std::vector<std::size_t> lane_of(bins.size());
    std::vector<std::size_t> places(lanes);
    LeastLoaded<double> load(lanes);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      places[lane] = bins.size() / lanes + (lane < bins.size() % lanes ? 1 : 0);
      step.lanes[lane].micro_batches.reserve(places[lane]);
      if (places[lane] == 0) load.close(lane);
    }
    for (const std::uint32_t b : heaviest_first(weights)) {
      const std::size_t lane = load.least();
      lane_of[b] = lane;
      load.add(lane, weights[b]);
      if (--places[lane] == 0) load.close(lane);
    }
    for (std::size_t b = 0; b < bins.size(); ++b)
      step.lanes[lane_of[b]].micro_batches.emplace_back().slices = std::move(bins[b].slices);
    return step;
  }

  const PackOptions& options_;
  std::size_t bins_;  // N
  std::int64_t max_tokens_;
  std::vector<std::int64_t> thresholds_;
  std::vector<std::deque<Document>> queues_;
  std::vector<Document> carried_;
  // Scratch.
  std::vector<std::int64_t> lengths_;
  std::vector<double> work_;
  LeastLoaded<double> bin_work_;
  LeastLoaded<std::int64_t> bin_tokens_;
  std::vector<std::uint32_t> bin_of_;  // by document; kCarried: it is carried
};

}  // namespace

std::vector<std::int64_t> wlb_thresholds(const PackOptions& options) {
  const WlbOptions& own = options.of<WlbOptions>();
  std::vector<std::int64_t> thresholds = own.thresholds;
  if (thresholds.empty()) {
    const std::int64_t n = own.queues;
    if (n < 0) throw UserError("queues: expected a number >= 0, found " + std::to_string(n));
    for (std::int64_t i = 0; i < n; ++i) {
      thresholds.push_back(options.context_window * (n + i) / (2 * n));
    }
  }
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : thresholds[i - 1];
    if (thresholds[i] <= before) {
      throw UserError("thresholds: expected rising lengths >= 1, found " + std::to_string(thresholds[i]) +
                      " after " + std::to_string(before));
    }
  }
  return thresholds;
}

std::int64_t given_max_tokens(const PackOptions& options) {
  return options.max_tokens;
}

std::int64_t max_tokens(const PackOptions& options) {
  const std::int64_t given = given_max_tokens(options);
  return given > 0 ? given : 2 * micro_batch_capacity(options);
}

Room room_by_max_tokens(const PackOptions& options, std::int64_t tokens) {
  return room_by<&PackOptions::max_tokens>("max_tokens", tokens, options);
}

Plan plan_wlb(const PackingProblem& problem) {
  Wlb packer(problem.options);
  Plan plan;
  plan.steps.reserve(problem.batches.size() + 1);
  for (const GlobalBatch& batch : problem.batches) {
    plan.steps.push_back(packer.step(batch, problem.workload));
  }
  while (packer.holds_something()) plan.steps.push_back(packer.tail_step());
  return plan;
}

}  // namespace equipoise
