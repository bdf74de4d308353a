// WLB-LLM (arXiv 2503.17924), Algorithm 1, is a heuristic for variable-length packing with outlier delay.
//
// Micro-batches may differ in length (up to L_max tokens), so that they can have equal work. A rare very long
// document would still make one micro-batch slow, so it waits in an outlier queue until N of its kind can be
// distributed over the N micro-batches of one step. One step:
//   1. Document set = carried documents, then this batch in loader order, except that a document of length
//      >= L_1 joins queue i with L_i <= length < L_{i+1}.
//   2. Every queue that holds >= N documents releases its N oldest, once; they are appended queue by queue.
//   3. Stable sort, longest first. Each document: to the micro-batch with the least W if it fits there
//      (tokens + length <= L_max), else to the one with the fewest tokens if it fits there, else carried.
//   4. At the end of the data the carried documents and then the queues, in order, are packed the same way
//      into N micro-batches again and again (steps marked `tail`) until nothing is held. Every such step
//      places the longest document at least, which fits into an empty micro-batch.
//   5. Micro-batches go to lanes, largest W first, to the least loaded lane with a free place; inside a lane
//      they keep the order of the packing (Order::descending sorts them).
//
// Departures from the printed text: the paper admits a document when tokens + length < L_max, so that one of
// exactly L_max tokens would wait forever. Here a carried document does not enter the queues again, since it
// has already waited. The paper states neither what happens at the end of the data nor which DP rank gets a
// bin.
//
// Cost per step: O(n log n) for the sort (radix, so near O(n)) and O(log N) per document in two winner trees.
#include "policies/packing/wlb.h"

#include <cstddef>
#include <deque>
#include <set>
#include <span>
#include <utility>

#include "policies/base/error.h"
#include "policies/least_loaded.h"
#include "policies/loader.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr std::uint32_t kCarried = UINT32_MAX;

struct Document {
  Slice slice;
  double work = 0;  // W
};

class Wlb {
 public:
  explicit Wlb(const PackOptions& options)
      : options_(options),
        bins_(static_cast<std::size_t>(micro_batches_of_step(options))),
        max_tokens_(max_tokens(options)),
        thresholds_(wlb_thresholds(options)),
        queues_(thresholds_.size()),
        emptied_(thresholds_.size()),
        bin_work_(bins_),
        bin_tokens_(bins_) {}

  // At the end of the data, notes how long each queue takes to empty if it never did, or did only once.
  void end_of_data(std::size_t steps, Plan& plan) const {
    if (queues_.empty()) return;
    plan.queue_emptied = true;
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      const std::size_t came = queues_[q].size() + emptied_[q] * bins_;
      if (came == 0 || emptied_[q] > 1) continue;
      if (emptied_[q] == 0) plan.queue_emptied = false;
      plan.notes.push_back({emptied_[q] == 0 ? "queue_never_emptied" : "queue_emptied_once",
                            "",
                            {{"from", thresholds_[q]},
                             {"held", queues_[q].size()},
                             {"bins", bins_},
                             {"steps", steps},
                             {"enough", (2 * bins_ * steps + came - 1) / came}}});
    }
  }

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

 private:
  void admit(const GlobalBatch& batch, const Workload& workload, std::vector<Document>& documents) {
    lengths_.clear();
    lengths_.reserve(batch.slices.size());
    for (const Slice& slice : batch.slices) lengths_.push_back(slice.tokens());
    work_.resize(lengths_.size());
    workload.of(lengths_, work_);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t queue = thresholds_.size();  // decreases to the last L_i <= length
      while (queue > 0 && thresholds_[queue - 1] > lengths_[i]) --queue;
      const Document document{batch.slices[i], work_[i]};
      if (queue == 0)
        documents.push_back(document);
      else
        queues_[queue - 1].push_back(document);
    }
  }

  void release(std::vector<Document>& documents) {
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      std::deque<Document>& queue = queues_[q];
      if (queue.size() < bins_) continue;
      ++emptied_[q];
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
    std::vector<double> weights(bins_);
    for (std::size_t b = 0; b < bins_; ++b) weights[b] = bin_work_.load(b);
    Step step = step_of_bins_by_weight(filled_bins(documents, order), weights, options_);
    std::size_t held = carried_.size();
    for (const std::deque<Document>& queue : queues_) held += queue.size();
    step.carried.reserve(held);
    for (const Document& d : carried_) step.carried.push_back(d.slice);
    for (const std::deque<Document>& queue : queues_)
      for (const Document& d : queue) step.carried.push_back(d.slice);
    return step;
  }

  // Fills bin_of_ by document and carried_. The tree of fewest tokens is rarely needed, so it is updated only
  // from its first use.
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

  std::vector<std::vector<Slice>> filled_bins(const std::vector<Document>& documents,
                                              std::span<const std::uint32_t> order) const {
    std::vector<std::size_t> documents_of(bins_, 0);
    for (const std::uint32_t bin : bin_of_)
      if (bin != kCarried) ++documents_of[bin];
    std::vector<std::vector<Slice>> bins(bins_);
    for (std::size_t b = 0; b < bins_; ++b) bins[b].reserve(documents_of[b]);
    for (std::size_t k = 0; k < order.size(); ++k) {
      fetch_ahead(std::span(documents), order, k);
      const std::uint32_t i = order[k];
      if (bin_of_[i] != kCarried) bins[bin_of_[i]].push_back(documents[i].slice);
    }
    return bins;
  }

  const PackOptions& options_;
  std::size_t bins_;  // N
  std::int64_t max_tokens_;
  std::vector<std::int64_t> thresholds_;
  std::vector<std::deque<Document>> queues_;
  std::vector<std::size_t> emptied_;  // how often each queue released its N oldest
  std::vector<Document> carried_;
  // Buffers that steps reuse.
  std::vector<std::int64_t> lengths_;
  std::vector<double> work_;
  LeastLoaded<double> bin_work_;
  LeastLoaded<std::int64_t> bin_tokens_;
  std::vector<std::uint32_t> bin_of_;  // bin by document; kCarried: the document is carried
};

}  // namespace

std::vector<std::int64_t> wlb_thresholds(const PackOptions& options) {
  const WlbOptions& own = options.of<WlbOptions>();
  std::vector<std::int64_t> thresholds = own.thresholds;
  if (thresholds.empty()) {
    const std::int64_t n = own.queues;
    if (n < 0) throw UserError("queues: expected a number >= 0, found ", n);
    for (std::int64_t i = 0; i < n; ++i) thresholds.push_back(options.context_window * (n + i) / (2 * n));
  }
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : thresholds[i - 1];
    if (thresholds[i] <= before)
      throw UserError("thresholds: expected rising lengths >= 1, found ", thresholds[i], " after ", before);
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
  for (const GlobalBatch& batch : problem.batches)
    add_step(problem, packer.step(batch, problem.workload), plan);
  packer.end_of_data(problem.batches.size(), plan);
  pack_carried("wlb", max_tokens(problem.options), plan,
               [&] { add_step(problem, packer.tail_step(), plan); });
  return plan;
}

// Searches WLB-LLM's thresholds, which the paper tunes by hand (section 4.2), for the smallest predicted time
// under a bound on the mean token delay. It is a coordinate descent over at most four thresholds that starts
// from the best of 0 .. 4 equally spaced queues and of one queue at 2/8 .. 7/8 of the window, with steps of
// window/8, /16 and /32. It makes and prices a few dozen whole plans. Candidates come in a fixed order, and
// only a strictly better one replaces the best, so the result is deterministic.

namespace {

class ThresholdTrials {
 public:
  ThresholdTrials(const PackingProblem& problem, const std::function<double(const Plan&)>& predicted_seconds,
                  double bound)
      : problem_(problem), predicted_seconds_(predicted_seconds), bound_(bound) {}

  // Returns whether these thresholds are the best so far.
  bool improve(std::vector<std::int64_t> thresholds, int queues) {
    PackOptions options = problem_.options;
    options.of<WlbOptions>().thresholds = std::move(thresholds);
    options.of<WlbOptions>().queues = queues;
    if (!tried_.insert(wlb_thresholds(options)).second || !keeps_up(options)) return false;
    const PackingProblem tried{problem_.batches, options, problem_.workload};
    const Plan plan = plan_wlb(tried);
    ++best_.plans_tried;
    const double delay = plan_metrics(problem_.batches, plan).token_delay_mean.value_or(0);
    if (delay > bound_) return false;
    const double seconds = predicted_seconds_(plan);
    if (found_ && !(seconds < best_.seconds)) return false;
    found_ = true;
    best_.thresholds = wlb_thresholds(options);
    best_.seconds = seconds;
    best_.token_delay_mean = delay;
    return true;
  }

  // Moves one threshold by `step` while that lowers the time.
  void descend(std::int64_t step) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < best_.thresholds.size(); ++i) {
        for (const std::int64_t change : {-step, step}) {
          std::vector<std::int64_t> thresholds = best_.thresholds;
          thresholds[i] += change;
          const std::int64_t below = i == 0 ? 0 : thresholds[i - 1];
          const std::int64_t above =
              i + 1 == thresholds.size() ? problem_.options.context_window + 1 : thresholds[i + 1];
          if (thresholds[i] <= below || thresholds[i] >= above) continue;
          moved = improve(std::move(thresholds), 0) || moved;
        }
      }
    }
  }

  [[nodiscard]] const ThresholdSearch& best() const { return best_; }

 private:
  // Whether every queue releases as many documents as it receives, N per step. Otherwise they wait ever
  // longer, and each step of the plan lists them.
  [[nodiscard]] bool keeps_up(const PackOptions& options) const {
    const std::vector<std::int64_t> thresholds = wlb_thresholds(options);
    std::vector<std::size_t> come(thresholds.size(), 0);
    for (const GlobalBatch& batch : problem_.batches)
      for (const Slice& slice : batch.slices) {
        const auto above = std::upper_bound(thresholds.begin(), thresholds.end(), slice.tokens());
        if (above != thresholds.begin()) ++come[static_cast<std::size_t>(above - thresholds.begin()) - 1];
      }
    const std::size_t leave =
        static_cast<std::size_t>(micro_batches_of_step(options)) * problem_.batches.size();
    return std::all_of(come.begin(), come.end(), [leave](std::size_t count) { return count <= leave; });
  }

  const PackingProblem& problem_;
  const std::function<double(const Plan&)>& predicted_seconds_;
  double bound_;
  std::set<std::vector<std::int64_t>> tried_;
  bool found_ = false;
  ThresholdSearch best_;
};

}  // namespace

ThresholdSearch search_wlb_thresholds(const PackingProblem& problem,
                                      const std::function<double(const Plan&)>& predicted_seconds,
                                      double delay_bound) {
  // Documents above L_max are treated as they will be when the policy runs.
  std::vector<Slice> dropped;
  const auto shortened = without_oversize(problem.batches, max_tokens(problem.options),
                                          problem.options.oversize, "wlb", dropped);
  const PackingProblem placeable{shortened ? *shortened : problem.batches, problem.options, problem.workload};
  ThresholdTrials search(placeable, predicted_seconds, delay_bound);
  for (int queues = 0; queues <= 4; ++queues) search.improve({}, queues);
  for (std::int64_t eighth = 2; eighth < 8; ++eighth) {
    const std::int64_t threshold = problem.options.context_window * eighth / 8;
    if (threshold > 0) search.improve({threshold}, 0);
  }
  for (const std::int64_t part : {8, 16, 32}) {
    const std::int64_t step = problem.options.context_window / part;
    if (step > 0) search.descend(step);
  }
  return search.best();
}

bool wlb_searches(const PackOptions& options) {
  return options.of<WlbOptions>().search;
}

Notes find_wlb_thresholds(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found) {
  const ThresholdSearch search =
      search_wlb_thresholds(problem, prices.seconds, problem.options.of<WlbOptions>().delay_bound);
  WlbOptions& own = found.of<WlbOptions>();
  own.queues = 0;
  own.thresholds = search.thresholds;
  if (search.thresholds.empty()) return {{"no_thresholds", "", {{"tried", search.plans_tried}}}};
  return {{"thresholds_found",
           "",
           {{"thresholds", each_of(search.thresholds, threshold_note)}, {"tried", search.plans_tried}}}};
}

}  // namespace equipoise
