#include "sim/cost/attention_cost.h"

#include <functional>

#include "policies/sharding/sharding.h"

namespace equipoise {
namespace {

std::span<const QueryKeys> kernel_pieces(std::span<const Segment> segments, bool strided) {
  thread_local std::vector<QueryKeys> pieces;
  pieces.clear();
  for_each_kernel_piece(segments, strided, [](std::int64_t queries, std::int64_t keys) {
    pieces.push_back({queries, keys});
  });
  return pieces;
}

AttentionCall count_segments(std::span<const Segment> segments, bool strided, std::int64_t window) {
  return count_call(window, [&](const auto& add) { for_each_kernel_piece(segments, strided, add); });
}

}  // namespace

double ProfiledAttentionCost::seconds(std::span<const Segment> segments) const {
  RangeUse use;  // a decision, not a prediction of the run
  const auto layer = [&](std::int64_t window) {
    if (costs_.prices_counts()) {
      counted_.push_back({segments, window, count_segments(segments, false, window)});
      return to_seconds(costs_.attention_forward_time(counted_.back().call, use));
    }
    return to_seconds(costs_.attention_forward_time(kernel_pieces(segments, false), use, window));
  };
  const double sliding = costs_.sliding_share();
  double seconds = 0;
  if (sliding < 1) seconds += (1 - sliding) * layer(0);
  if (sliding > 0) seconds += sliding * layer(costs_.model().sliding_window);
  return seconds;
}

LayerCosts::AttentionTimes ProfiledAttentionCost::times(std::span<const Segment> segments, bool strided,
                                                        std::int64_t window, int head_shares,
                                                        RangeUse& use) const {
  if (!costs_.prices_counts())
    return costs_.attention_times(kernel_pieces(segments, strided), use, window, head_shares);
  const AttentionCall* const counted = strided ? nullptr : known(segments, window);
  return costs_.attention_times(counted ? *counted : count_segments(segments, strided, window), use,
                                head_shares);
}

const AttentionCall* ProfiledAttentionCost::known(std::span<const Segment> segments,
                                                  std::int64_t window) const {
  for (const CountedAttention& counted : counted_)
    if (counted.segments.data() == segments.data() && counted.segments.size() == segments.size() &&
        counted.window == window)
      return &counted.call;
  return nullptr;
}

AttentionCounts ProfiledAttentionCost::counts_of(const Sharding& sharding) const {
  AttentionCounts counts;
  const Segment* const begin = sharding.segments.data();
  constexpr std::less<> before{};
  for (const CountedAttention& counted : counted_)
    if (!before(counted.segments.data(), begin) &&
        before(counted.segments.data(), begin + sharding.segments.size()))
      counts.push_back(counted);
  return counts;
}

}  // namespace equipoise
