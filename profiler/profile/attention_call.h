// A packed attention call, counted piece by piece: what the time of either pass follows from on a kernel that
// gives each document tiles of its own. Hot loops count a call once and price both passes from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "profiler/profile/attention_work.h"

namespace equipoise {

struct AttentionCall {
  AttentionWork work;
  std::int64_t fewest_queries = INT64_MAX;  // of a piece
  std::int64_t most_keys = 0;

  void add_causal(std::int64_t queries, std::int64_t keys) {
    if (queries <= 0) return;
    work.add_causal(queries, keys);
    extend(queries, keys);
  }
  // `window` as in AttentionModel, not 0: keys that nobody sees do not count.
  void add_window(std::int64_t queries, std::int64_t keys, std::int64_t window) {
    if (queries <= 0) return;
    keys = std::min(keys, queries + window - 1);
    if (keys > window)
      work.add_window(queries, keys, window);
    else
      work.add_causal(queries, keys);
    extend(queries, keys);
  }
  // The call with each of its pieces so many times.
  [[nodiscard]] AttentionCall repeated(std::int64_t times) const {
    AttentionCall all = *this;
    for (std::int64_t* sum : {&all.work.tiles, &all.work.masked_tiles, &all.work.blocks, &all.work.idle_rows,
                              &all.work.query_tokens, &all.work.key_tokens})
      *sum *= times;
    return all;
  }

 private:
  void extend(std::int64_t queries, std::int64_t keys) {
    fewest_queries = std::min(fewest_queries, queries);
    most_keys = std::max(most_keys, keys);
  }
};

// for_each(add) calls add(queries, keys) for every piece. `window`: 0 where queries see all keys up to their
// own.
template <class ForEachPiece>
AttentionCall count_call(std::int64_t window, const ForEachPiece& for_each) {
  AttentionCall call;
  if (window == 0)
    for_each([&call](std::int64_t queries, std::int64_t keys) { call.add_causal(queries, keys); });
  else
    for_each(
        [&call, window](std::int64_t queries, std::int64_t keys) { call.add_window(queries, keys, window); });
  return call;
}
inline AttentionCall count_call(std::span<const QueryKeys> pieces, std::int64_t window) {
  return count_call(window, [pieces](const auto& add) {
    for (const QueryKeys& piece : pieces) add(piece.queries, piece.keys);
  });
}

}  // namespace equipoise
