// The rules that cut the packed sequence without pairing chunks, into runs (contiguous) or token by token
// (striped).
#include <algorithm>
#include <string>

#include "policies/base/error.h"
#include "policies/sharding/rules.h"

namespace equipoise {

// Contiguous: rank r takes the r-th run of the packed sequence. This placement predates zig-zag and serves
// for comparison; with one document the last rank has almost twice the mean pairs. Where c does not divide
// the length, the first ranks take one token more. Cost: O(documents + ranks).
void shard_contiguous(const MicroBatch& micro_batch, int ranks, const ShardOptions&, const AttentionCost&,
                      Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  const std::int64_t tokens = view.distributed_tokens();
  const auto share = [&](int rank) { return tokens / ranks + (rank < tokens % ranks ? 1 : 0); };

  sharding::lay_out(view, 2, out, [&](const auto& emit) {
    int rank = 0;
    std::int64_t room = share(0);
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      for (std::int64_t at = 0; at < view.tokens(i);) {
        const std::int64_t take = std::min(view.tokens(i) - at, room);
        emit(rank, 1, view.segment(i, at, at + take));
        at += take;
        room -= take;
        if (room == 0 && rank + 1 < ranks) room = share(++rank);
      }
    }
  });
  out.chosen = "contiguous";
}

// Striped (striped attention): token t of the packed sequence goes to rank t mod c. Pairs are even, but
// no two tokens of a rank are adjacent, so a segment is one token and takes 32 bytes. Sequences of more than
// 16 M tokens (512 MiB of segments) are refused, since they could exhaust the memory. With one rank all
// tokens are adjacent, and a document is one segment. Cost: O(tokens).

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{16} << 20;

}  // namespace

void shard_striped(const MicroBatch& micro_batch, int ranks, const ShardOptions&, const AttentionCost&,
                   Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  const std::int64_t tokens = view.distributed_tokens();
  if (ranks > 1 && tokens > kMostTokens)
    throw UserError("striped sharding: a micro-batch of " + std::to_string(tokens) +
                    " tokens; allowed: at most " + std::to_string(kMostTokens) +
                    ", for every token is a segment of its own");

  sharding::lay_out(view, 2, out, [&](const auto& emit) {
    int rank = 0;
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      const std::int64_t length = view.tokens(i);
      const std::int64_t run = ranks == 1 ? length : 1;
      for (std::int64_t at = 0; at < length; at += run) {
        emit(rank, 1, view.segment(i, at, at + run));
        rank = rank + 1 == ranks ? 0 : rank + 1;
      }
    }
  });
  out.pieces.strided = true;
  out.chosen = "striped";
}

}  // namespace equipoise
