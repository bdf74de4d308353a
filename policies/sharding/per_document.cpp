// Per-document zig-zag (WLB-LLM section 5.2): every document is cut into 2c contiguous chunks and rank r
// owns chunks r and 2c-1-r, so that every rank gets an equal share of every document's pairs. It needs no
// padding: where 2c does not divide a length L, the L mod 2c tokens left over go
//   slots  to chunk slots, one each, round-robin with ONE counter over all documents of the micro-batch
//          (as the authors' code does): rank token totals differ by at most 1;
//   tail   one by one to the CP ranks as segments of their own, behind the 2c even chunks (as the paper's
//          prose says), again with one running counter;
//   pad    nowhere: the document is rounded up and the padding is computed (Transformer Engine's way).
// The price is more and shorter segments than per-sequence. Cost: O(documents * c).
#include <cassert>
#include <cstdint>
#include <span>

#include "policies/base/index.h"
#include "policies/sharding/rules.h"
#include "policies/sharding/segment_writer.h"

namespace equipoise {
namespace {

constexpr int kEarlyRun = 1;
constexpr int kLateRun = 2;
constexpr int kTailRun = 3;

// Emits the 2c chunks of slice i: `base` tokens each, one more in the `extra` slots from `first` on, cyclic.
template <class Emit>
void emit_chunks(const sharding::View& view, std::size_t i, std::int64_t base, std::int64_t first,
                 std::int64_t extra, const Emit& emit) {
  const int chunks = 2 * view.ranks();
  const std::int64_t wrapped = first + extra - chunks;  // slots below it are enlarged too, if positive
  std::int64_t at = 0;
  for (int slot = 0; slot < chunks; ++slot) {
    const bool enlarged = (slot >= first && slot < first + extra) || slot < wrapped;
    const std::int64_t end = at + base + (enlarged ? 1 : 0);
    const bool early = slot < view.ranks();
    emit(early ? slot : chunks - 1 - slot, early ? kEarlyRun : kLateRun, view.segment(i, at, end));
    at = end;
  }
}

// The usual remainder is written rank by rank, each segment behind the one before it. Where they go is known
// without a walk that counts: tokens left over fill the slots of all slices one after the other.
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
          behind + (behind < 0 ? chunks_ : 0);  // of the slot, from the first larger one
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
  bool places_ = false;  // slices on single ranks
  std::size_t segments_ = 0;
  std::int64_t base_sum_ = 0, extra_sum_ = 0;  // over all distributed slices
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

}  // namespace equipoise
