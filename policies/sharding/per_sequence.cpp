// Per-sequence zig-zag: the whole packed sequence is cut into 2c equal chunks, rank r owns chunks r and
// 2c-1-r, and each chunk is split at document borders. With one document an early, cheap chunk is paired
// with a late, dear one and all ranks have equal pairs. With several documents they have equal tokens only:
// a rank whose chunks hold the tails of long documents works longest (WLB-LLM section 3.2).
// Cost: O(segments + ranks).
#include <algorithm>
#include <string>

#include "policies/base/error.h"
#include "policies/sharding/rules.h"
#include "policies/sharding/segment_writer.h"

namespace equipoise {
namespace {

constexpr int kEarlyRunOfSequence = 1;
constexpr int kLateRunOfSequence = 2;

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

  std::size_t last = 0;  // the slice that the padding extends
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
        emit(early ? chunk : chunks - 1 - chunk, early ? kEarlyRunOfSequence : kLateRunOfSequence,
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

}  // namespace equipoise
