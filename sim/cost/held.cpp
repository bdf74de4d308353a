#include "sim/cost/held.h"

#include <algorithm>
#include <span>

#include "policies/base/index.h"
#include "policies/sharding/disaggregation.h"

namespace equipoise {

void count_held(const CostBasis& basis, const MicroBatch& micro_batch, const Sharding& sharding,
                std::vector<HeldByHalf>& out) {
  const int ranks = sharding.ranks();
  const bool halves = basis.layout.nano_batches_of(ranks) == 2;
  const NanoCut cut = halves ? nano_cut(micro_batch, ranks) : NanoCut{};
  out.assign(at(ranks), {});
  for (int r = 0; r < ranks; ++r) {
    HeldByHalf& held = out[at(r)];
    const std::span<const Segment> segments = sharding.of_rank(r);
    held[0].tokens = halves ? cut.tokens_before(segments) : sharding.rank_tokens[at(r)];
    held[1].tokens = sharding.rank_tokens[at(r)] - held[0].tokens;
    if (basis.framework.fused_rope) continue;
    thread_local std::array<std::vector<std::int32_t>, kMostNanoBatches> slices;
    for (auto& of_half : slices) of_half.clear();
    for (const Segment& s : segments) slices[halves && cut.behind(s) ? 1 : 0].push_back(s.slice);
    for (std::size_t half = 0; half < slices.size(); ++half) {
      auto& of_half = slices[half];
      std::sort(of_half.begin(), of_half.end());  // because a document's two chunks are apart
      held[half].documents =
          std::max<std::int64_t>(1, std::unique(of_half.begin(), of_half.end()) - of_half.begin());
    }
  }
}

}  // namespace equipoise
