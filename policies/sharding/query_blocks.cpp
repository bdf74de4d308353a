#include "policies/sharding/query_blocks.h"

#include <algorithm>
#include <numeric>

#include "policies/base/index.h"

namespace equipoise::sharding {
namespace {

// visit(block, segment) for every piece of the sequence that lies in one block and one document.
template <class Visit>
void for_each_piece(const View& view, std::int64_t block, const Visit& visit) {
  std::size_t b = 0;
  std::int64_t room = block;
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (!view.distributed(i)) continue;
    for (std::int64_t at = 0; at < view.tokens(i);) {
      const std::int64_t take = std::min(view.tokens(i) - at, room);
      visit(b, view.segment(i, at, at + take));
      at += take;
      room -= take;
      if (room == 0) {
        ++b;
        room = block;
      }
    }
  }
}

}  // namespace

QueryBlocks cut_query_blocks(const View& view, std::int64_t block, Sharding& out) {
  const auto count = static_cast<std::size_t>((view.distributed_tokens() + block - 1) / block);
  out.work.assign(3 * count, 0);
  const std::span<std::int64_t> work(out.work);
  const QueryBlocks blocks{work.first(count), work.subspan(count, count), work.last(count)};
  for_each_piece(view, block, [&](std::size_t b, const Segment& s) { blocks.pairs[b] += s.pairs(); });
  std::iota(blocks.order.begin(), blocks.order.end(), 0);
  std::sort(blocks.order.begin(), blocks.order.end(), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t area_a = blocks.pairs[at(a)];
    const std::int64_t area_b = blocks.pairs[at(b)];
    return area_a != area_b ? area_a > area_b : a < b;
  });
  return blocks;
}

void lay_out_blocks(const View& view, std::int64_t block, const QueryBlocks& blocks, Sharding& out) {
  lay_out(view, 2, out, [&](const auto& emit) {
    for_each_piece(view, block,
                   [&](std::size_t b, const Segment& s) { emit(static_cast<int>(blocks.rank[b]), 1, s); });
  });
}

}  // namespace equipoise::sharding
