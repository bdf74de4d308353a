// Fixed-length greedy packing (WLB-LLM section 4.1 and Table 2): documents of `pack_window` global batches
// go, longest first, to the micro-batch with the least sum of len^2 that still has room. The capacity is one
// window per micro-batch, so memory is plain's. Balance comes from moving documents between steps; a wider
// pack window gives more balance and changes the token order more.
//
// pack_window * N bins; bin j belongs to step j div N and, as position p = j mod N in it, to lane p mod
// lanes. Documents that fit nowhere come, in sorted order, before those of the next pack window, and at the
// end of the data in extra steps of N bins until none is held (pack_carried). A step carries the documents that the loader
// has delivered (batch k at step k) and that neither this nor an earlier step executes.
//
// O(n log(bins)) while the least loaded bin has room, which is nearly always. For a document that does not
// fit there, the search skips whole ranges of full or heavier bins. The paper gives no rule for documents
// that fit nowhere.
#include "policies/packing/fixed_greedy.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

struct Held {
  Slice slice;
  std::size_t arrived = 0;  // global batch
};

std::vector<std::int64_t> lengths_of(std::span<const Held> documents) {
  return each_of(documents, [](const Held& d) { return d.slice.tokens(); });
}

std::vector<Held> longest_first_of(const std::vector<Held>& documents) {
  return each_of(longest_first(lengths_of(documents)), [&](std::uint32_t i) { return documents[i]; });
}

class FixedGreedy {
 public:
  explicit FixedGreedy(const PackingProblem& problem)
      : problem_(problem),
        micro_batches_(static_cast<std::size_t>(micro_batches_of_step(problem.options))),
        capacity_(micro_batch_capacity(problem.options)) {}

  // Packs held and `arriving` documents into `steps` steps, which are appended to the plan. The rest stays
  // held.
  void pack(std::vector<Held> arriving, std::size_t steps, bool tail) {
    std::vector<Held> documents = std::exchange(held_, {});
    documents.insert(documents.end(), arriving.begin(), arriving.end());
    const std::vector<Held> sorted = longest_first_of(documents);
    const std::vector<std::size_t> bin_of =
        place_by_attention(lengths_of(sorted), steps * micro_batches_, capacity_);
    std::vector<Step> made = steps_of(sorted, bin_of, steps, tail);
    carry(sorted, bin_of, made);
    for (Step& step : made) add_step(problem_, std::move(step), plan_);
    done_ += steps;
    held_.clear();
    for (std::size_t i = 0; i < sorted.size(); ++i)
      if (bin_of[i] == kNowhere) held_.push_back(sorted[i]);
  }

  // Packs all that is held and returns the plan.
  Plan finish() {
    pack_carried("fixed-greedy", capacity_, plan_, [&] { pack({}, 1, true); });
    return std::move(plan_);
  }

 private:
  [[nodiscard]] std::vector<Step> steps_of(std::span<const Held> sorted, std::span<const std::size_t> bin_of,
                                           std::size_t steps, bool tail) const {
    std::vector<std::size_t> documents_of(steps * micro_batches_, 0);
    for (const std::size_t bin : bin_of)
      if (bin != kNowhere) ++documents_of[bin];
    std::vector<std::vector<Slice>> bins(steps * micro_batches_);
    for (std::size_t b = 0; b < bins.size(); ++b) bins[b].reserve(documents_of[b]);
    for (std::size_t i = 0; i < sorted.size(); ++i)
      if (bin_of[i] != kNowhere) bins[bin_of[i]].push_back(sorted[i].slice);
    const auto per_step = static_cast<std::ptrdiff_t>(micro_batches_);
    std::vector<Step> made;
    for (auto first = bins.begin(); first != bins.end(); first += per_step) {
      std::vector<std::vector<Slice>> of_step(std::make_move_iterator(first),
                                              std::make_move_iterator(first + per_step));
      made.push_back(step_of_bins(std::move(of_step), problem_.options));
      made.back().tail = tail;
    }
    return made;
  }

  // Sets the carried documents of the steps that follow those done: the documents that have arrived and are
  // executed later, if at all.
  void carry(std::span<const Held> sorted, std::span<const std::size_t> bin_of,
             std::vector<Step>& made) const {
    const std::size_t steps = made.size();
    const auto each_carried = [&](const auto& visit) {
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        const std::size_t done = bin_of[i] == kNowhere ? steps : bin_of[i] / micro_batches_;
        const std::size_t arrived = sorted[i].arrived > done_ ? sorted[i].arrived - done_ : 0;
        for (std::size_t s = arrived; s < done; ++s) visit(s, sorted[i].slice);
      }
    };
    std::vector<std::size_t> carried(steps, 0);
    each_carried([&](std::size_t s, const Slice&) { ++carried[s]; });
    for (std::size_t s = 0; s < steps; ++s) made[s].carried.reserve(carried[s]);
    each_carried([&](std::size_t s, const Slice& slice) { made[s].carried.push_back(slice); });
  }

  const PackingProblem& problem_;
  std::size_t micro_batches_;
  std::int64_t capacity_;
  std::size_t done_ = 0;  // steps
  std::vector<Held> held_;
  Plan plan_;
};

// Finds the lightest bin with room. It is a tree whose nodes hold the least load and the most room below
// them, so that the search skips whole ranges of full or heavier bins.
class BinsWithRoom {
 public:
  BinsWithRoom(std::span<const std::int64_t> room, const LeastLoaded<double>& load)
      : leaves_(std::bit_ceil(room.size())), nodes_(2 * leaves_) {
    for (std::size_t b = 0; b < room.size(); ++b) nodes_[leaves_ + b] = {load.load(b), room[b]};
    for (std::size_t node = leaves_; node-- > 1;) join(node);
  }

  void set(std::size_t bin, double load, std::int64_t room) {
    nodes_[leaves_ + bin] = {load, room};
    for (std::size_t node = (leaves_ + bin) / 2; node >= 1; node /= 2) join(node);
  }

  // Ties go to the lowest bin. Returns kNowhere if no bin has room.
  [[nodiscard]] std::size_t lightest(std::int64_t tokens) const {
    std::size_t best = kNowhere;
    visit(1, tokens, best);
    return best;
  }

 private:
  struct Node {
    double load = std::numeric_limits<double>::max();  // least load below the node
    std::int64_t room = -1;                            // most room below the node
  };
  void join(std::size_t node) {
    const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
    nodes_[node] = {std::min(left.load, right.load), std::max(left.room, right.room)};
  }
  void visit(std::size_t node, std::int64_t tokens, std::size_t& best) const {
    if (nodes_[node].room < tokens) return;
    if (best != kNowhere && nodes_[node].load > nodes_[leaves_ + best].load) return;
    if (node >= leaves_) {
      const std::size_t bin = node - leaves_;
      if (best == kNowhere || nodes_[node].load < nodes_[leaves_ + best].load || bin < best) best = bin;
      return;
    }
    const std::size_t lighter = 2 * node + (nodes_[2 * node + 1].load < nodes_[2 * node].load ? 1 : 0);
    visit(lighter, tokens, best);
    visit(lighter ^ 1, tokens, best);
  }

  std::size_t leaves_;
  std::vector<Node> nodes_;  // [1] is the root, [leaves_ + i] bin i
};

}  // namespace

std::vector<std::size_t> place_by_attention(std::span<const std::int64_t> lengths, std::size_t bins,
                                            std::int64_t capacity) {
  LeastLoaded<double> load(bins);
  std::vector<std::int64_t> room(bins, capacity);
  std::optional<BinsWithRoom> with_room;  // built when the lightest bin is full for the first time
  std::vector<std::size_t> bin_of(lengths.size(), kNowhere);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t tokens = lengths[i];
    std::size_t best = load.least();
    if (room[best] < tokens) {
      if (!with_room) with_room.emplace(room, load);
      best = with_room->lightest(tokens);
      if (best == kNowhere) continue;
    }
    bin_of[i] = best;
    room[best] -= tokens;
    load.add(best, static_cast<double>(tokens) * static_cast<double>(tokens));
    if (with_room) with_room->set(best, load.load(best), room[best]);
  }
  return bin_of;
}

Room room_by_window(const PackOptions& options, std::int64_t tokens) {
  const std::int64_t window = (tokens + options.micro_batch_size - 1) / options.micro_batch_size;
  Room room = room_by<&PackOptions::context_window>("context_window", window, options);
  room.change = change_note("batch.context_window", window);
  return room;
}

Plan plan_fixed_greedy(const PackingProblem& problem) {
  FixedGreedy packer(problem);
  const std::int64_t pack_window = problem.options.of<FixedLengthOptions>().pack_window;
  if (pack_window < 1) throw UserError("pack_window: expected a number >= 1, found ", pack_window);
  const auto width = static_cast<std::size_t>(pack_window);
  for (std::size_t first = 0; first < problem.batches.size(); first += width) {
    const std::size_t count = std::min(width, problem.batches.size() - first);
    std::vector<Held> arriving;
    for (std::size_t k = first; k < first + count; ++k)
      for (const Slice& slice : problem.batches[k].slices) arriving.push_back({slice, k});
    packer.pack(std::move(arriving), count, false);
  }
  return packer.finish();
}

}  // namespace equipoise
