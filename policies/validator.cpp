#include "policies/validator.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

constexpr std::int64_t kDropped = -1;

// A slice of the set, with the step of its arrival and the last step in which a piece of it runs.
struct Original {
  Slice slice;
  std::int64_t arrived = 0;
  std::int64_t executed = kDropped;
  std::int64_t carried = 0;              // number of steps that list it as carried
  std::int64_t last_carried = kDropped;  // the last of these steps
};

// A piece of a slice as the plan runs it. `at` orders pieces in time.
struct Piece {
  Slice slice;
  std::int64_t step = 0;         // kDropped: not executed
  std::int64_t micro_batch = 0;  // index over the whole plan
  std::int64_t at = 0;           // place in the plan
};

std::string name(const Slice& s) {
  return concatenated("document ", s.document, " [", s.begin, ", ", s.end, ")");
}

template <class A, class B>
bool before(const A& a, const B& b) {
  return std::tie(a.slice.document, a.slice.begin) < std::tie(b.slice.document, b.slice.begin);
}

template <class Item>
void sort_by_token(std::vector<Item>& items) {
  if (!std::is_sorted(items.begin(), items.end(), before<Item, Item>))
    std::stable_sort(items.begin(), items.end(), before<Item, Item>);
}

class Validator {
 public:
  Validator(const Batches& batches, const Plan& plan, const PlanLimits& limits)
      : plan_(plan), limits_(limits) {
    for (std::size_t b = 0; b < batches.size(); ++b)
      for (const Slice& s : batches[b].slices) set_.push_back({s, static_cast<std::int64_t>(b)});
    sort_by_token(set_);
  }

  std::optional<std::string> run() {
    for (std::size_t s = 0; s < plan_.steps.size() && !wrong_; ++s) check_step(s);
    if (!wrong_) check_tokens();
    if (!wrong_) check_carried();
    return wrong_;
  }

 private:
  void fail(const auto&... text) {
    if (!wrong_) wrong_ = concatenated(text...);
  }

  void check_step(std::size_t s) {
    const Step& step = plan_.steps[s];
    where_ = "step " + std::to_string(s);
    if (step.lanes.empty()) fail(where_ + ": no lanes");
    std::vector<std::pair<int, std::int64_t>> gpus;  // GPUs of each barrier group
    for (std::size_t l = 0; l < step.lanes.size() && !wrong_; ++l) {
      const Lane& lane = step.lanes[l];
      where_ = concatenated("step ", s, ", lane ", l);
      if (lane.context < 1) fail(where_, ": CP degree ", lane.context);
      const auto same = [&](const auto& g) { return g.first == lane.barrier_group; };
      const auto group = std::find_if(gpus.begin(), gpus.end(), same);
      if (group == gpus.end())
        gpus.emplace_back(lane.barrier_group, lane.context);
      else
        group->second += lane.context;
      for (const MicroBatch& micro_batch : lane.micro_batches) {
        check_budget(micro_batch, lane.context);
        check_placement(micro_batch, lane.context);
        for (const Slice& slice : micro_batch.slices) {
          pieces_.push_back({slice, static_cast<std::int64_t>(s), micro_batches_,
                             static_cast<std::int64_t>(pieces_.size())});
        }
        ++micro_batches_;
      }
      check_chunks(lane);
    }
    for (const auto& [barrier_group, used] : gpus)
      if (limits_.gpus > 0 && used > limits_.gpus)
        fail("step ", s, ": lanes use ", used, " GPUs of ", limits_.gpus);
  }

  void check_budget(const MicroBatch& micro_batch, int degree) {
    const std::int64_t tokens = micro_batch.tokens();
    std::int64_t most = limits_.micro_batch_tokens;
    if (limits_.context > 0) most = most * degree / limits_.context;
    for (const std::int64_t limit : {most, micro_batch.pack_length})
      if (limit > 0 && tokens > limit)
        fail(where_, ": micro-batch of ", tokens, " tokens above its limit of ", limit);
    for (const Slice& s : micro_batch.slices) {
      if (s.tokens() < 1) fail(where_ + ": empty slice, " + name(s));
      if (micro_batch.pad_each_to > 0 && s.tokens() > micro_batch.pad_each_to)
        fail(where_ + ": " + name(s) + " is longer than its padded length");
    }
  }

  void check_placement(const MicroBatch& micro_batch, int context) {
    if (micro_batch.placement.empty()) return;
    if (micro_batch.placement.size() != micro_batch.slices.size()) {
      fail(where_ + ": a placement for some slices only");
      return;
    }
    // Counts in units of 1/context token, so that the shares of distributed slices are exact.
    std::vector<std::int64_t> used(static_cast<std::size_t>(context));
    std::int64_t everywhere = 0;
    for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) {
      const int rank = micro_batch.placement[i];
      if (rank != kDistributed && (rank < 0 || rank >= context)) {
        fail(where_, ": ", name(micro_batch.slices[i]), " placed on CP rank ", rank, " of ", context);
        return;
      }
      if (rank == kDistributed)
        everywhere += micro_batch.slices[i].tokens();
      else
        used[at(rank)] += micro_batch.slices[i].tokens() * context;
    }
    const std::int64_t most = *std::max_element(used.begin(), used.end()) + everywhere;
    if (limits_.rank_tokens > 0 && most > limits_.rank_tokens * context)
      fail(where_, ": a CP rank holds more than its ", limits_.rank_tokens, " tokens");
  }

  void check_chunks(const Lane& lane) {
    const std::vector<MicroBatch>& all = lane.micro_batches;
    for (std::size_t i = 0; i < all.size() && !wrong_; ++i) {
      const Chunk& first = all[i].chunk;
      if (first.count <= 1) continue;
      const auto count = static_cast<std::size_t>(first.count);
      std::int64_t next_token = first.group_begin;
      for (std::size_t c = 0; c < count; ++c) {
        if (i + c >= all.size()) {
          fail(where_, ": chunk group of document ", first.sequence, " is not whole");
          return;
        }
        const MicroBatch& chunk = all[i + c];
        Chunk expected = first;
        expected.index = static_cast<int>(c);
        if (!(chunk.chunk == expected) || chunk.slices.size() != 1 ||
            chunk.slices[0].document != first.sequence || chunk.slices[0].begin != next_token) {
          fail(where_, ": chunk ", c, " of document ", first.sequence, " is not in its place");
          return;
        }
        next_token = chunk.slices[0].end;
      }
      i += count - 1;
    }
  }

  // Checks that pieces sorted by token tile the set's slices, and that pieces of one slice run in order.
  void check_tokens() {
    for (const Slice& s : plan_.dropped) pieces_.push_back({s, kDropped, 0, kDropped});
    sort_by_token(pieces_);
    std::size_t p = 0;
    for (Original& original : set_) {
      std::int64_t next = original.slice.begin;
      const Piece* last = nullptr;
      while (next < original.slice.end) {
        p = skip_dropped(p, &original);
        if (p == pieces_.size() || pieces_[p].slice.document != original.slice.document ||
            pieces_[p].slice.begin != next || pieces_[p].slice.end > original.slice.end)
          return report_tiling(original, next, p);
        const Piece& piece = pieces_[p++];
        next = piece.slice.end;
        tiled_ = piece.slice;
        if (piece.step == kDropped) continue;
        if (last != nullptr &&
            (piece.step < last->step || (piece.micro_batch == last->micro_batch && piece.at < last->at)))
          return fail(name(piece.slice) + " runs before " + name(last->slice));
        last = &piece;
        original.executed = piece.step;
      }
    }
    p = skip_dropped(p, nullptr);
    if (p < pieces_.size()) fail(name(pieces_[p].slice) + " is executed once too often or is not in the set");
  }

  // Skips tokens that were dropped before the policy saw the set, up to `original` or to the end. They lie
  // between the set's slices.
  std::size_t skip_dropped(std::size_t p, const Original* original) {
    for (; p < pieces_.size() && pieces_[p].step == kDropped; ++p) {
      if (original != nullptr && !before(pieces_[p], *original)) break;
      const Slice& dropped = pieces_[p].slice;
      if (dropped.document == tiled_.document && dropped.begin < tiled_.end)
        fail(name(dropped) + " is dropped and also executed, or dropped twice");
      tiled_ = dropped;
    }
    return p;
  }

  void report_tiling(const Original& original, std::int64_t next, std::size_t p) {
    const bool lost = p == pieces_.size() || std::tie(original.slice.document, next) <
                                                 std::tie(pieces_[p].slice.document, pieces_[p].slice.begin);
    if (lost) {
      fail("token ", next, " of document ", original.slice.document, " is neither executed nor dropped");
    } else {
      fail(name(pieces_[p].slice) + " does not continue " + name(original.slice) +
           " of the set: a token is executed twice or slices are joined");
    }
  }

  void check_carried() {
    const std::int64_t step_count = static_cast<std::int64_t>(plan_.steps.size());
    for (std::int64_t s = 0; s < step_count && !wrong_; ++s)
      for (const Slice& slice : plan_.steps[at(s)].carried) check_carried(s, slice);
    if (wrong_ || plan_.sees_whole_set) return;
    for (const Original& original : set_) {
      if (original.executed == kDropped) continue;
      const std::int64_t held = std::max<std::int64_t>(0, original.executed - original.arrived);
      if (original.carried != held) {
        fail(name(original.slice), " waits ", held, " steps and is reported as carried in ",
             original.carried);
        return;
      }
    }
  }

  void check_carried(std::int64_t s, const Slice& slice) {
    const std::string where = "step " + std::to_string(s) + ": carried " + name(slice);
    const Original probe{slice};
    const auto found = std::lower_bound(set_.begin(), set_.end(), probe, before<Original, Original>);
    if (found == set_.end() || !(found->slice == slice)) return fail(where + " is not a slice of the set");
    if (plan_.sees_whole_set) return fail(where + ", by a policy that holds nothing");
    if (s < found->arrived) return fail(where + " has not arrived");
    if (s >= found->executed) return fail(where + " was executed already");
    if (found->last_carried == s) return fail(where + " is listed twice");
    found->last_carried = s;
    ++found->carried;
  }

  const Plan& plan_;
  const PlanLimits& limits_;
  std::vector<Original> set_;  // ordered by document and token
  std::vector<Piece> pieces_;
  Slice tiled_{-1, 0, 0};  // the previous piece in token order
  std::int64_t micro_batches_ = 0;
  std::string where_;
  std::optional<std::string> wrong_;
};

}  // namespace

std::optional<std::string> plan_violation(const Batches& batches, const Plan& plan,
                                          const PlanLimits& limits) {
  return Validator(batches, plan, limits).run();
}

bool is_verified([[maybe_unused]] const PackOptions& options) {
#ifdef NDEBUG
  return options.verify;
#else
  return true;
#endif
}

}  // namespace equipoise
