// The zig-zag rules cut the packed sequence or every document into 2c chunks, and choose between the two.
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/sharding/rules.h"

namespace equipoise {

// Per-sequence zig-zag: the whole packed sequence is cut into 2c equal chunks, rank r owns chunks r and
// 2c-1-r, and each chunk is split at document borders. With one document, every cheap early chunk is paired
// with an expensive late one, so that all ranks have equal pairs. With several documents ranks have only
// equal tokens, and a rank whose chunks hold the tails of long documents works longest (WLB-LLM section 3.2).
// Cost: O(segments + ranks).

namespace {

constexpr int kEarlyRun = 1;
constexpr int kLateRun = 2;

[[noreturn]] void refuse(std::int64_t tokens, int ranks) {
  throw UserError("per-sequence sharding over " + std::to_string(ranks) +
                  " CP ranks: " + std::to_string(tokens) + " tokens are not divisible by " +
                  std::to_string(2 * ranks) + "; allowed: a multiple of it, or --pad tail");
}

}  // namespace

void shard_per_sequence(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                        const AttentionCost&, Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  const int chunks = 2 * ranks;
  const std::int64_t tokens = view.distributed_tokens();
  const std::int64_t padding = (chunks - tokens % chunks) % chunks;
  if (padding > 0 && options.pad == Pad::error) refuse(tokens, ranks);

  std::size_t last = 0;  // the slice that padding extends
  for (std::size_t i = 0; i < view.size(); ++i)
    if (view.distributed(i)) last = i;
  const std::int64_t chunk_tokens = (tokens + padding) / chunks;

  sharding::lay_out(view, 3, out, [&](const auto& emit) {
    int chunk = 0;
    std::int64_t room = chunk_tokens;
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      const std::int64_t end = view.tokens(i) + (i == last ? padding : 0);
      for (std::int64_t at = 0; at < end;) {
        const std::int64_t take = std::min(end - at, room);
        const bool early = chunk < ranks;
        emit(early ? chunk : chunks - 1 - chunk, early ? kEarlyRun : kLateRun,
             view.segment(i, at, at + take));
        at += take;
        room -= take;
        if (room == 0) {
          ++chunk;
          room = chunk_tokens;
        }
      }
    }
  });
  out.padding_tokens += padding;
  out.chosen = "per-sequence";
}

// Per-document zig-zag (WLB-LLM section 5.2): every document is cut into 2c contiguous chunks and rank r owns
// chunks r and 2c-1-r, so that every rank gets an equal share of every document's pairs. It needs no padding.
// Where 2c does not divide a length L, the L mod 2c remaining tokens go
//   slots  to chunk slots, one each, round-robin with ONE counter over all documents of the micro-batch
//          (as the authors' code does): rank token totals differ by at most 1;
//   tail   one by one to the CP ranks as separate segments after the 2c even chunks (as the paper's text
//          says), also with one counter;
//   pad    nowhere: the document is padded, and the padding is computed (as Transformer Engine does).
// Segments are more and shorter than those of per-sequence. Cost: O(documents * c).

namespace {

constexpr int kTailRun = 3;

// Emits the 2c chunks of slice i with `base` tokens each, and one more in the `extra` slots from `first` on,
// cyclically.
template <class Emit>
void emit_chunks(const sharding::View& view, std::size_t i, std::int64_t base, std::int64_t first,
                 std::int64_t extra, const Emit& emit) {
  const int chunks = 2 * view.ranks();
  const std::int64_t wrapped = first + extra - chunks;  // if positive, slots below it are enlarged too
  std::int64_t at = 0;
  for (int slot = 0; slot < chunks; ++slot) {
    const bool enlarged = (slot >= first && slot < first + extra) || slot < wrapped;
    const std::int64_t end = at + base + (enlarged ? 1 : 0);
    const bool early = slot < view.ranks();
    emit(early ? slot : chunks - 1 - slot, early ? kEarlyRun : kLateRun, view.segment(i, at, end));
    at = end;
  }
}

// The default remainder is written rank by rank in one pass. No counting pass is needed, since remaining
// tokens fill the slots of all slices in sequence.
class SlotWriter {
 public:
  SlotWriter(const sharding::View& view, Sharding& out)
      : view_(view), out_(out), chunks_(std::int64_t{2} * view.ranks()) {}

  void write() {
    cut();
    const auto ranks = static_cast<std::size_t>(view_.ranks());
    sharding::begin_result(view_, out_);
    out_.rank_begin.resize(ranks + 1);
    out_.segments.resize(segments_);
    Segment* next = out_.segments.data();
    const auto written = [&] { return static_cast<std::uint32_t>(next - out_.segments.data()); };
    for (std::size_t r = 0; r < ranks; ++r) {
      out_.rank_begin[r] = written();
      if (places_) next = write_local(static_cast<int>(r), next);
      const auto early = static_cast<std::int64_t>(r), late = chunks_ - 1 - early;
      next = write_slot<true>(early, next);
      next = write_slot<false>(late, next);
      out_.rank_tokens[r] = out_.rank_local_tokens[r] + slot_tokens(early) + slot_tokens(late);
    }
    out_.rank_begin[ranks] = written();
    assert(written() == segments_);
  }

 private:
  void cut() {
    std::int64_t counter = 0;
    out_.cuts.assign(view_.size(), {});
    for (std::size_t i = 0; i < view_.size(); ++i) {
      const std::int64_t tokens = view_.tokens(i);
      if (!view_.distributed(i)) {
        places_ = true;
        segments_ += tokens > 0 ? 1 : 0;
        continue;
      }
      const std::int64_t base = tokens / chunks_, extra = tokens - base * chunks_;
      const std::int64_t begin = view_.slice(i).begin;
      out_.cuts[i] = {base, extra, counter, begin, begin + tokens};
      segments_ += static_cast<std::size_t>(base > 0 ? chunks_ : extra);
      base_sum_ += base;
      extra_sum_ += extra;
      counter += extra;
      if (counter >= chunks_) counter -= chunks_;
    }
  }
  [[nodiscard]] std::int64_t slot_tokens(std::int64_t slot) const {
    return base_sum_ + extra_sum_ / chunks_ + (slot < extra_sum_ % chunks_ ? 1 : 0);
  }
  Segment* write_local(int rank, Segment* next) {
    for (std::size_t i = 0; i < view_.size(); ++i) {
      if (view_.rank_of(i) != rank || view_.tokens(i) == 0) continue;
      *next++ = view_.segment(i, 0, view_.tokens(i));
      out_.rank_local_tokens[at(rank)] += view_.tokens(i);
    }
    return next;
  }
  template <bool kEarly>
  Segment* write_slot(std::int64_t slot, Segment* next) const {
    const std::span<SliceCut> cuts(out_.cuts);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      SliceCut& cut = cuts[i];
      const std::int64_t behind = slot - cut.first;
      const std::int64_t place =
          behind + (behind < 0 ? chunks_ : 0);  // index of the slot, counted from the first larger one
      const std::int64_t tokens = cut.base + (place < cut.extra ? 1 : 0);
      if (tokens == 0) continue;
      const std::int64_t begin = kEarly ? cut.early : cut.late - tokens;
      (kEarly ? cut.early : cut.late) = kEarly ? begin + tokens : begin;
      *next++ = {static_cast<std::int32_t>(i), begin, begin + tokens, view_.kv_begin(i)};
    }
    return next;
  }

  const sharding::View& view_;
  Sharding& out_;
  std::int64_t chunks_;
  bool places_ = false;  // whether slices are placed on single ranks
  std::size_t segments_ = 0;
  std::int64_t base_sum_ = 0, extra_sum_ = 0;  // sums over all distributed slices
};

void shard_slots(const sharding::View& view, Sharding& out) {
  SlotWriter(view, out).write();
}

void shard_tail(const sharding::View& view, Sharding& out) {
  const int chunks = 2 * view.ranks();
  sharding::lay_out(view, 4, out, [&](const auto& emit) {
    int counter = 0;
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      const std::int64_t base = view.tokens(i) / chunks;
      emit_chunks(view, i, base, 0, 0, emit);
      for (std::int64_t at = base * chunks; at < view.tokens(i); ++at) {
        emit(counter, kTailRun, view.segment(i, at, at + 1));
        counter = counter + 1 == view.ranks() ? 0 : counter + 1;
      }
    }
  });
}

void shard_pad(const sharding::View& view, Sharding& out) {
  const int chunks = 2 * view.ranks();
  std::int64_t padding = 0;
  for (std::size_t i = 0; i < view.size(); ++i)
    if (view.distributed(i)) padding += (chunks - view.tokens(i) % chunks) % chunks;
  sharding::lay_out(view, 3, out, [&](const auto& emit) {
    for (std::size_t i = 0; i < view.size(); ++i)
      if (view.distributed(i)) emit_chunks(view, i, (view.tokens(i) + chunks - 1) / chunks, 0, 0, emit);
  });
  out.padding_tokens += padding;
}

}  // namespace

namespace sharding {

void per_document(const View& view, Remainder remainder, Sharding& out) {
  switch (remainder) {
    case Remainder::slots:
      shard_slots(view, out);
      break;
    case Remainder::tail:
      shard_tail(view, out);
      break;
    case Remainder::pad:
      shard_pad(view, out);
      break;
  }
  out.chosen = "per-document";
}

}  // namespace sharding

void shard_per_document(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                        const AttentionCost&, Sharding& out) {
  sharding::per_document(sharding::View(micro_batch, ranks), options.remainder, out);
}

// Adaptive (WLB-LLM section 5.3): per-document balances the pairs but makes more and shorter segments, whose
// queries fill the kernel's tiles badly; per-sequence has the opposite properties. For each micro-batch both
// are laid out, and the one whose slowest rank is predicted to be faster is taken; a tie takes per-sequence.
// Where 2c does not divide the length, per-sequence is padded at its tail, as it would run. Cost: both rules,
// and one cost prediction per rank for each.

namespace {

double slowest_rank_seconds(const Sharding& sharding, const AttentionCost& cost) {
  double slowest = 0;
  for (int r = 0; r < sharding.ranks(); ++r) slowest = std::max(slowest, cost.seconds(sharding.of_rank(r)));
  return slowest;
}

// Whether all ranks are predicted to be faster than `seconds`. Stops at the first rank that is not.
bool every_rank_within(const Sharding& sharding, const AttentionCost& cost, double seconds) {
  for (int r = 0; r < sharding.ranks(); ++r)
    if (!(cost.seconds(sharding.of_rank(r)) < seconds)) return false;
  return true;
}

void swap_result(Sharding& a, Sharding& b) {
  std::swap(a.segments, b.segments);
  std::swap(a.rank_begin, b.rank_begin);
  std::swap(a.rank_tokens, b.rank_tokens);
  std::swap(a.rank_local_tokens, b.rank_local_tokens);
  std::swap(a.padding_tokens, b.padding_tokens);
  std::swap(a.chosen, b.chosen);
}

}  // namespace

void shard_adaptive(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                    const AttentionCost& cost, Sharding& out) {
  if (out.alternative.empty()) out.alternative.resize(1);
  Sharding& other = out.alternative.front();
  ShardOptions padded = options;
  padded.pad = Pad::tail;
  shard_per_sequence(micro_batch, ranks, padded, cost, out);
  shard_per_document(micro_batch, ranks, options, cost, other);
  if (every_rank_within(other, cost, slowest_rank_seconds(out, cost))) swap_result(out, other);
}

}  // namespace equipoise
