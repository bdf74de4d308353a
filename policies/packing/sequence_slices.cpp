// Sequence slices: a long document is cut into slices of equal work that pass through the pipeline in
// sequence, with K and V carried forward. The unit of the pipeline is a slice, so bubble and memory shrink
// with the number of slices (schedule seq1f1b). Sources: Seq1F1B (arXiv 2406.03488: computation-wise
// partition), SlimPipe (arXiv 2504.14519: slices of equal tokens) and InfiniPipe (arXiv 2509.21275: documents
// of many lengths, short ones packed).
//
// W(t) is the work of a document's first t tokens, so a slice [a, b) takes W(b) - W(a): its linear layers,
// and attention to itself and to all tokens before it. Per global batch:
//   - The longest document, of L tokens, is cut into k = `slices` slices: a slice takes at most T = W(L) / k.
//     The first holds the most tokens, C, since later tokens see more keys.
//   - A document of more than C tokens is cut into n = ceil(W / T) slices of equal work. None of them takes
//     more than T or holds more than C tokens.
//   - The others are packed whole into the fewest micro-batches of C tokens (ChunkFlow's rule). Each takes
//       at most T, since several documents take less than one of the sum of their lengths.
// Cuts are at multiples of 2 x CP tokens, so that every slice but the last is distributed over the CP ranks
// without padding, which later slices would have to mask. Cut i of n is the first multiple at which W reaches
// i / n of the document's, so the error of a slice is less than the work of 2 x CP tokens. `slice_by: tokens`
// is the same with W(t) = t. Example, W(t) = t^2, L = 16, k = 4, CP 1: cuts at W = 64, 128, 192 of 256, so at
// 8, 12, 14 tokens: slices of 8, 4, 2, 2 tokens that take 64, 80, 52, 60.
//
// Documents with the most slices come first, ties by document; packed ones follow. So the pipeline has the
// most forwards in flight during the longest documents, and then fewer (InfiniPipe's execution order). Units
// go to lanes by W, heaviest first to the least loaded. Where micro-batches come in rounds (interleaved), the
// last ones of a lane may be empty.
//
// Through a pipeline, lanes that wait for each other in every micro-batch (for experts over lanes, ZeRO-2 and
// 3) must have equal orders of ops. Documents then go to them in rows, most work first: one to each lane, all
// cut into as many slices as the row's first. The longest documents that need no cut fill the last row. Where
// they are too few or too short, the row's documents stay whole.
//
// Departures: Seq1F1B gives every sequence k slices and packs nothing. InfiniPipe cuts all documents at the
// same lengths as the longest and fills the remaining slice of each with short documents; here a document's
// slices have equal work and a micro-batch of their own. InfiniPipe also runs several pipelines per step.
//
// Cost: O(n log n) for n documents, and log2 L calls of the cost for all cuts of a batch together.
#include "policies/packing/sequence_slices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/least_loaded.h"
#include "policies/packing/chunkflow.h"
#include "policies/steps.h"
#include "policies/workload.h"

namespace equipoise {
namespace {

class TokenCount final : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    std::transform(tokens.begin(), tokens.end(), out.begin(), [](std::int64_t t) { return as_double(t); });
  }
};

double work_of_tokens(std::int64_t tokens, const Workload& workload) {
  double work = 0;
  workload.of({&tokens, 1}, {&work, 1});
  return work;
}

// A document that is cut, with its tokens, its work and its number of slices.
struct Long {
  Slice slice;
  double work = 0;
  std::int64_t count = 0;
};

std::int64_t steps_of(std::int64_t tokens, std::int64_t step) {
  return (tokens + step - 1) / step;
}

// The ends of the slices of all documents, in tokens from the document's begin. They are multiples of `step`
// or the document's end, and no slice is empty. One bisection finds all cuts together.
std::vector<std::int64_t> equal_cuts(std::span<const Long> documents, const Workload& workload,
                                     std::int64_t step) {
  std::vector<double> targets;
  std::vector<std::int64_t> below, reached, end;  // in steps, W(below) < target <= W(reached); in tokens
  for (const Long& d : documents)
    for (std::int64_t i = 1; i <= d.count; ++i) {
      targets.push_back(d.work * as_double(i) / as_double(d.count));
      end.push_back(d.slice.tokens());
      reached.push_back(steps_of(end.back(), step));
      below.push_back(i < d.count ? 0 : reached.back() - 1);
    }
  const auto tokens_at = [&](std::size_t c, std::int64_t steps) { return std::min(steps * step, end[c]); };
  std::vector<std::int64_t> middle(targets.size()), tokens(targets.size());
  std::vector<double> work(targets.size());
  for (bool open = true; open;) {
    for (std::size_t c = 0; c < targets.size(); ++c) {
      middle[c] = below[c] + (reached[c] - below[c] + 1) / 2;
      tokens[c] = tokens_at(c, middle[c]);
    }
    workload.of(tokens, work);
    open = false;
    for (std::size_t c = 0; c < targets.size(); ++c) {
      if (reached[c] - below[c] <= 1) continue;
      (work[c] < targets[c] ? below[c] : reached[c]) = middle[c];
      open = open || reached[c] - below[c] > 1;
    }
  }
  std::size_t c = 0;
  for (const Long& d : documents) {
    std::int64_t before = 0;
    for (std::int64_t left = d.count - 1; left >= 0; --left, ++c) {
      before = std::clamp(reached[c], before + 1, steps_of(end[c], step) - left);
      tokens[c] = tokens_at(c, before);
    }
  }
  return tokens;
}

class Slicer {
 public:
  Slicer(const GlobalBatch& batch, const Workload& workload, std::int64_t slices, const PackOptions& options)
      : workload_(workload), options_(options), step_(2 * std::int64_t{std::max(1, options.context)}) {
    std::int64_t longest = 0;
    for (const Slice& slice : batch.slices) longest = std::max(longest, slice.tokens());
    if (longest == 0) return;
    const double work = work_of_tokens(longest, workload);
    const std::int64_t most = std::min(slices, steps_of(longest, step_));
    const Long all{{0, 0, longest}, work, most};
    capacity_ = equal_cuts({&all, 1}, workload, step_).front();
    for (const Slice& slice : batch.slices) {
      if (slice.tokens() <= capacity_) {
        short_.push_back(slice);
        continue;
      }
      const double own = work_of_tokens(slice.tokens(), workload);
      const auto count = static_cast<std::int64_t>(std::ceil(own / work * as_double(most) * (1 - kRounding)));
      long_.push_back(
          {slice, own, std::clamp<std::int64_t>(count, 2, std::min(most, steps_of(slice.tokens(), step_)))});
    }
    if (in_rows())
      make_rows(waiting_lanes(options));
    else
      std::ranges::stable_sort(long_, std::greater<>(), &Long::count);
  }

  [[nodiscard]] Step step() const {
    const std::vector<std::int64_t> ends = equal_cuts(long_, workload_, step_);
    std::vector<Unit> units;  // units whose weight is their work
    std::size_t cut = 0;
    for (const Long& document : long_) {
      units.push_back(dependent_unit(document.slice, std::span(ends).subspan(cut, at(document.count))));
      units.back().weight = document.work;
      cut += at(document.count);
    }
    std::vector<Unit> others = standalone_units(short_, capacity_);
    for (const Slice& slice : whole_) others.emplace_back().chunks.emplace_back().slices = {slice};
    for (Unit& unit : others) {
      const std::vector<double> work = work_of(unit.chunks.front().slices, workload_);
      unit.weight = sum_of(work);
      units.push_back(std::move(unit));
    }
    return step_of_units(std::move(units), options_, in_rows() ? long_.size() : 0);
  }

 private:
  static constexpr double kRounding = 1e-12;  // so that work of n T gives n slices, not n + 1

  // Without a pipeline, lanes that wait for each other may have different orders of ops.
  [[nodiscard]] bool in_rows() const { return options_.stages > 1 && waiting_lanes(options_) > 1; }

  void make_rows(std::size_t waiting) {
    std::ranges::stable_sort(long_, std::greater<>(), &Long::work);
    const std::vector<std::uint32_t> order = longest_first(lengths_of(short_));
    std::vector<char> moved(short_.size(), 0);
    for (const std::uint32_t i : order) {
      if (long_.size() % waiting == 0) break;
      long_.push_back({short_[i], work_of_tokens(short_[i].tokens(), workload_), 1});
      moved[i] = 1;
    }
    std::size_t i = 0;
    std::erase_if(short_, [&](const Slice&) { return moved[i++] != 0; });
    for (std::size_t row = 0; row < long_.size(); row += waiting) {
      const std::size_t end = std::min(row + waiting, long_.size());
      const std::int64_t count = long_[row].count;
      if (end - row == waiting && steps_of(long_[end - 1].slice.tokens(), step_) >= count) {
        for (std::size_t d = row; d < end; ++d) long_[d].count = count;
        continue;
      }
      for (std::size_t d = row; d < long_.size(); ++d) whole_.push_back(long_[d].slice);
      long_.resize(row);
    }
  }

  const Workload& workload_;
  const PackOptions& options_;
  std::int64_t step_;
  std::int64_t capacity_ = 0;
  std::vector<Long> long_;  // cut documents in the order of their execution
  std::vector<Slice> short_, whole_;
};

void fill_rounds(Step& step, int round) {
  for (Lane& lane : step.lanes) {
    const std::size_t whole = at(round), count = lane.micro_batches.size();
    lane.micro_batches.resize((count + whole - 1) / whole * whole);
  }
}

}  // namespace

Plan plan_sequence_slices(const PackingProblem& problem) {
  const auto& own = problem.options.of<SequenceSlicesOptions>();
  if (own.slices < 1) throw UserError("slices: expected a number >= 1, found ", own.slices);
  const TokenCount tokens;
  const Workload& workload = own.slice_by == SliceBy::tokens ? tokens : problem.workload;
  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    add_step(problem, Slicer(batch, workload, own.slices, problem.options).step(), plan);
    fill_rounds(plan.steps.back(), problem.options.lane_round);
  }
  return plan;
}

}  // namespace equipoise
