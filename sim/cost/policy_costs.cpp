#include "sim/cost/policy_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {

constexpr int kPerOctave = 16;
constexpr int kOctaves = 31;                        // documents up to 2^31 tokens
constexpr std::int64_t kFilledCall = 65536;         // query tokens that fill a call's waves
constexpr std::int64_t kLongestMeasured = 1 << 22;  // beyond it, attention follows its quadratic law

static std::span<const QueryKeys> kernel_pieces(std::span<const Segment> segments, PieceForm form) {
  thread_local std::vector<QueryKeys> pieces;
  pieces.clear();
  for_each_kernel_piece(segments, form.strided, [&](std::int64_t queries, std::int64_t keys) {
    pieces.push_back({queries, keys, form.rows});
  });
  return pieces;
}

static AttentionCall count_segments(std::span<const Segment> segments, bool strided, std::int64_t window) {
  return count_call(window, [&](const auto& add) { for_each_kernel_piece(segments, strided, add); });
}

// ---- Documents ----

// The exchanges of all layers: of attention in the form given, if W counts it, and of recurrences.
static Picoseconds exchanges_of_layers(const LayerCosts& costs, const ContextForm& attention,
                                       const ExchangedTokens& tokens, int context, RangeUse& use) {
  Picoseconds sum = 0;
  const auto add = [&](const ContextForm& form, int layers) {
    if (form.counts_in_workload && layers > 0)
      sum += layers * exchange_time(form, costs, tokens, context, use);
  };
  add(attention, costs.basis.attending_layers());
  add(kRecurrenceForm, costs.basis.recurring_layers());
  return sum;
}

// Both passes of all layers but their attention and exchanges, for the tokens of a rank.
static Picoseconds local_time(const LayerCosts& costs, std::int64_t tokens, RangeUse& use) {
  OpList before, after;
  Picoseconds sum = 0;
  for (int k = 0; k < kLayerKinds; ++k) {
    const int count = costs.layer_counts()[at(k)], backwards = costs.backward_counts()[at(k)];
    if (count == 0) continue;
    const auto kind = static_cast<LayerKind>(k);
    costs.layers.forward(kind, tokens, before, after, use);
    sum += count * (run_time(before.ops()).total + run_time(after.ops()).total);
    costs.layers.backward(kind, tokens, before, after, use);
    sum += backwards * (run_time(before.ops()).total + run_time(after.ops()).total);
    if (!recurs(mixer_of(kind))) continue;
    const AttentionTimes recurrence = costs.recurrence.times(as_double(tokens));
    sum += count * recurrence.forward + backwards * recurrence.backward;
  }
  return sum;
}

namespace {

// The attention of one document as part of a well filled call, on a rank of its CP group.
class DocumentAttention {
 public:
  explicit DocumentAttention(const LayerCosts& costs)
      : costs_(costs),
        layers_(costs.basis.attending_layers()),
        sliding_(as_double(costs.basis.mixers[at(Mixer::window)]) / std::max(1, layers_)),
        backwards_(1 - as_double(costs.model().training.frozen_layers) / costs.model().all_layers()),
        forwards_(costs.layout().repeats(RecomputeModule::core_attn) ? 1 + backwards_ : 1) {}

  // Seconds of all layers. Nothing if the document is longer than was measured, or takes longer than the
  // clock holds (a large model on a slow device).
  [[nodiscard]] std::optional<double> seconds(std::int64_t length) const {
    if (length > kLongestMeasured) return std::nullopt;
    try {
      return layers_ * (costs_.model().chunked ? in_chunks(length) : of_layer(length, sliding_));
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  // By how much the logarithm of the seconds grows between two entries of the table beyond the priced
  // lengths: pairs grow with the square, or under windows alone with the length.
  [[nodiscard]] double growth() const { return (sliding_ < 1 ? 2.0 : 1.0) * std::log(2.0) / kPerOctave; }

 private:
  // Seconds of a mean layer, of which this share sees only a window.
  [[nodiscard]] double of_layer(std::int64_t length, double share) const {
    double mean = 0;
    if (share < 1) mean += (1 - share) * of_reach(length, 0);
    if (share > 0) mean += share * of_reach(length, costs_.attention.window_of(Mixer::window));
    return mean;
  }

  [[nodiscard]] double in_chunks(std::int64_t length) const {
    const double whole = of_layer(length, 0);
    const std::int64_t chunk = costs_.model().sliding_window;
    if (sliding_ == 0 || length <= chunk) return whole;
    const double rest = length % chunk > 0 ? of_layer(length % chunk, 0) : 0;
    return (1 - sliding_) * whole + sliding_ * (as_double(length / chunk) * of_layer(chunk, 0) + rest);
  }

  [[nodiscard]] double of_reach(std::int64_t length, std::int64_t reach) const {
    // Per-document sharding gives each rank two pieces; their mean is half the keys of the document.
    const std::int64_t queries = std::max<std::int64_t>(1, length / (2 * costs_.layout().context));
    const std::int64_t copies =
        std::clamp<std::int64_t>(kFilledCall / std::max<std::int64_t>(1, 2 * queries), 1, 256);
    const QueryKeys of_document[] = {{queries, queries}, {queries, std::max<std::int64_t>(queries, length)}};
    const AttentionTimes call = times(of_document, copies, reach);
    const double launch = costs_.profile().device().launch_seconds;
    const double forward = std::max(0.0, to_seconds(call.forward) - launch);
    const double backward = std::max(0.0, to_seconds(call.backward) - launch);
    return (forwards_ * forward + backwards_ * backward) / as_double(copies);
  }

  [[nodiscard]] AttentionTimes times(std::span<const QueryKeys> document, std::int64_t copies,
                                     std::int64_t reach) const {
    RangeUse use;  // not the caller's: this is a decision, not a prediction of the run
    if (costs_.attention.prices_counts())
      return costs_.attention.times(count_call(document, reach).repeated(copies), use);
    std::vector<QueryKeys> pieces;
    for (std::int64_t c = 0; c < copies; ++c) pieces.insert(pieces.end(), document.begin(), document.end());
    return costs_.attention.times(pieces, use, reach);
  }

  const LayerCosts& costs_;
  int layers_;
  double sliding_;    // share of the attending layers that see a window or a chunk
  double backwards_;  // share of the layers that have a backward
  double forwards_;   // with the recomputed ones
};

}  // namespace

ProfiledWorkload::ProfiledWorkload(const LayerCosts& costs, std::int64_t window) : costs_(costs) {
  RangeUse use;
  const int context = costs.layout().context;
  const std::int64_t tokens = std::max<std::int64_t>(1, window / context);
  Picoseconds linear = local_time(costs, tokens, use);
  local_linear_ = to_seconds(linear) / as_double(tokens);
  if (context > 1)
    linear += exchanges_of_layers(costs, context_form(costs),
                                  {.distributed = window,
                                   .fullest = tokens,
                                   .fullest_inner = tokens * costs.layout().inner_ranks(context)},
                                  context, use);
  linear_ = to_seconds(linear) / as_double(tokens * context);

  const DocumentAttention attention(costs);
  bool measured = true;
  for (int i = 0; i <= kPerOctave * kOctaves; ++i) {
    const double exact = std::exp2(as_double(i) / kPerOctave);
    const auto seconds = measured ? attention.seconds(std::llround(exact)) : std::nullopt;
    measured = seconds.has_value();
    if (!measured && i == 0)
      throw UserError(costs.profile().origin(), ": attention to one token is longer than the clock holds");
    log_seconds_.push_back(measured ? std::log(std::max(*seconds, 1e-15))
                                    : log_seconds_.back() + attention.growth());
  }
}

double ProfiledWorkload::attention_seconds(std::int64_t tokens) const {
  const double at = std::log2(as_double(tokens)) * kPerOctave;
  const auto below = std::min(static_cast<std::size_t>(at), log_seconds_.size() - 2);
  const double share = at - as_double(below);
  return std::exp(log_seconds_[below] + share * (log_seconds_[below + 1] - log_seconds_[below]));
}

void ProfiledWorkload::on_group(std::span<const std::int64_t> tokens, int degree,
                                std::span<double> out) const {
  RangeUse use;  // not the caller's: this is a decision, not a prediction of the run
  const double attention_ranks = as_double(costs_.layout().context) / degree;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    out[i] = attention_seconds(tokens[i]) * attention_ranks + local_linear_ * as_double(tokens[i]) / degree;
    if (degree > 1 && tokens[i] > 0)
      out[i] += to_seconds(exchanges_of_layers(
          costs_, kAllGatherForm, {.distributed = tokens[i], .fullest = (tokens[i] + degree - 1) / degree},
          degree, use));
  }
}

void ProfiledWorkload::of(std::span<const std::int64_t> tokens, std::span<double> out) const {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    out[i] = attention_seconds(tokens[i]) + linear_ * as_double(tokens[i]);
}

// ---- Segments ----

double ProfiledAttentionCost::seconds(std::span<const Segment> segments, PieceForm form) const {
  RangeUse use;  // not the caller's: this is a decision, not a prediction of the run
  const auto layer = [&](std::int64_t window) {
    if (costs_.attention.prices_counts()) {
      counted_.push_back({segments, window, count_segments(segments, form.strided, window)});
      return to_seconds(costs_.attention.forward_time(counted_.back().call, use));
    }
    return to_seconds(costs_.attention.forward_time(kernel_pieces(segments, form), use, window));
  };
  const double whole = costs_.basis.share_attending_to_all(), sliding = costs_.basis.share_of(Mixer::window);
  double seconds = 0;
  if (whole > 0) seconds += whole * layer(0);
  if (sliding > 0 && costs_.model().chunked) {
    thread_local std::vector<Segment> chunks;
    chunks.clear();
    cut_into_chunks(segments, costs_.model().sliding_window, chunks);
    seconds += sliding * to_seconds(costs_.attention.forward_time(kernel_pieces(chunks, form), use));
  } else if (sliding > 0) {
    seconds += sliding * layer(costs_.attention.window_of(Mixer::window));
  }
  return seconds;
}

AttentionTimes ProfiledAttentionCost::times(std::span<const Segment> segments, PieceForm form,
                                            std::int64_t window, int head_shares, RangeUse& use) const {
  if (!costs_.attention.prices_counts())
    return costs_.attention.times(kernel_pieces(segments, form), use, window, head_shares);
  const AttentionCall* const counted = form.strided ? nullptr : known(segments, window);
  return costs_.attention.times(counted ? *counted : count_segments(segments, form.strided, window), use,
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

void cut_into_chunks(std::span<const Segment> segments, std::int64_t chunk, std::vector<Segment>& out) {
  for (Segment s : segments)
    for (const std::int64_t end = s.q_end, begin = s.kv_begin; s.q_begin < end; s.q_begin = s.q_end) {
      s.kv_begin = begin + (s.q_begin - begin) / chunk * chunk;
      s.q_end = std::min(end, s.kv_begin + chunk);
      out.push_back(s);
    }
}

void cut_into_chunks(const Sharding& sharding, std::int64_t chunk, Sharding& out) {
  out.segments.clear();
  out.rank_begin.assign(1, 0);
  for (int r = 0; r < sharding.ranks(); ++r) {
    cut_into_chunks(sharding.of_rank(r), chunk, out.segments);
    out.rank_begin.push_back(static_cast<std::uint32_t>(out.segments.size()));
  }
  out.rank_tokens = sharding.rank_tokens;
  out.rank_local_tokens = sharding.rank_local_tokens;
  out.placement = sharding.placement;
  out.pieces = sharding.pieces;
}

}  // namespace equipoise
