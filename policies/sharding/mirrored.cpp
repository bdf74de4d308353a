// A toy: per-document sharding with the ranks in reverse order. O(documents * ranks).
#include "policies/sharding/rules.h"
#include "policies/sharding/segment_writer.h"

namespace equipoise {

void shard_mirrored(const MicroBatch& micro_batch, int ranks, const ShardOptions&, const AttentionCost&,
                    Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  sharding::lay_out(view, 2, out, [&](const auto& emit) {
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.distributed(i)) continue;
      for (int r = 0; r < ranks; ++r) {
        const std::int64_t from = view.tokens(i) * r / ranks, to = view.tokens(i) * (r + 1) / ranks;
        if (from < to) emit(ranks - 1 - r, 1, view.segment(i, from, to));
      }
    }
  });
  out.chosen = "mirrored";
}

}  // namespace equipoise
