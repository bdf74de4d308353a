// Per-document zig-zag (WLB-LLM section 5.2): every document is cut into 2c contiguous chunks and rank r
// owns chunks r and 2c-1-r, so that every rank gets an equal share of every document's pairs. It needs no
// padding: where 2c does not divide a length L, the L mod 2c tokens left over go
//   slots  to chunk slots, one each, round-robin with ONE counter over all documents of the micro-batch
//          (as the authors' code does): rank token totals differ by at most 1;
//   tail   one by one to the CP ranks as segments of their own, behind the 2c even chunks (as the paper's
//          prose says), again with one running counter;
//   pad    nowhere: the document is rounded up and the padding is computed (Transformer Engine's way).
// The price is more and shorter segments than per-sequence. Cost: O(documents * c).
#include <cstdint>

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

void shard_slots(const sharding::View& view, Sharding& out) {
  const int chunks = 2 * view.ranks();
  sharding::lay_out(view, 3, out, [&](const auto& emit) {
    std::int64_t counter = 0;
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      const std::int64_t base = view.tokens(i) / chunks;
      const std::int64_t extra = view.tokens(i) - base * chunks;
      emit_chunks(view, i, base, counter, extra, emit);
      counter += extra;
      if (counter >= chunks) counter -= chunks;
    }
  });
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
