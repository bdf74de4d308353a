// gather, a start of equipoise, chooses the documents of each step so that documents that slow a step share
// one.
//
// A document of a whole window takes as long as several micro-batches of short ones, while other lanes and
// stages idle: a step with one such document is as slow as a step with one on every lane. Policies that pack
// several global batches together use this, and move every document for it. Here only long documents move
// (those of more than 1 % of a mean batch, which is half of kEqualBatch, or half a window; at most 64 per
// step on the mean), each to a step fewer than `look_ahead` from its arrival.
//
// Delay: steps keep the tokens of their batches, so short documents move against long ones across the border
// between two steps. If R tokens of long documents move to later steps and L to earlier ones, max(R, L)
// tokens are delayed across the border. The total delay is at least the sum of max(R, L) over borders, and
// equals it, up to rounding, where short documents go in arrival order to each step until it has its tokens.
// So a document that runs before its batch also costs delay.
//
// Time of a step: its long documents, heaviest first, form rows of as many documents as there are lanes that
// wait for each other. A row lasts as long as its first document and goes to the group of lanes with the
// least time. Short documents fill the gaps in rows as far as L_max allows, and then all lanes evenly. The
// largest micro-batch fills the pipeline's P stages of V chunks:
//   (lane + (P - 1) / V x max(heaviest, lane / its micro-batches)) / P
//
// Search: starting from arrival order, a document moves to another step, two documents of different steps are
// exchanged, or the heaviest documents of a step leave it in turn while that pays. The gain of a move is its
// reduction of the sum of seconds / mean seconds, minus price x delay / mean batch. The best move is taken
// while one gains and the mean delay stays within max_delay. The price falls from 1 to 0.01, so that the
// moves with the largest gain use the allowed delay first. The order is fixed and nothing is drawn, so the
// result is deterministic. It is not proven optimal.
//
// Cost: a visit of a step rates look_ahead x (n + 64) moves of its n long documents, each in O(n +
// look_ahead) where an O(1) bound does not exclude it. A step is visited again only after a step near it
// changed. 8 searches over at most 16 batches take 36 ms of one core per batch of 2M tokens on 4 lanes.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/packing/wlb.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr double kPrices[] = {1, 0.3, 0.1, 0.03, 0.01};  // price of one iteration of mean delay, in steps
constexpr int kPasses = 8;                               // passes over all steps at each price
constexpr std::size_t kMostLong = 64;                    // long documents of a step, on the mean
constexpr std::size_t kEmptied = 32;                     // most documents that leave a step in turn
constexpr std::size_t kExchanged = 8;                    // heaviest documents of a step that are exchanged
constexpr double kLeastGain = 1e-9, kRounding = 1e-12;
constexpr std::uint32_t kNoOne = std::numeric_limits<std::uint32_t>::max();

// `place`: index in the arrival order of all documents.
struct Document {
  std::int64_t tokens = 0;
  double weight = 0;
  std::size_t arrived = 0, place = 0;
};

class Gathering {
 public:
  explicit Gathering(const PackingProblem& problem)
      : options_(problem.options),
        steps_(problem.batches.size()),
        reach_(static_cast<std::size_t>(options_.of<EquipoiseOptions>().look_ahead)),
        lanes_(static_cast<std::size_t>(std::max(1, options_.lanes))),
        waiting_(waiting_lanes(options_)),
        slices_(options_.of<EquipoiseOptions>().start == Start::sequence_slices
                    ? static_cast<double>(options_.of<SequenceSlicesOptions>().slices)
                    : 1),
        micro_batches_(slices_ * static_cast<double>(micro_batches_of_step(options_))),
        room_(steps_, 0),
        long_tokens_(steps_, 0),
        later_(steps_, 0),
        earlier_(steps_, 0),
        delay_(steps_, 0),
        held_(steps_),
        beyond_(steps_, 0),
        settled_(steps_, 0),
        group_time_((lanes_ + waiting_ - 1) / waiting_) {
    weigh(problem);
    for (std::size_t s = 0; s < steps_; ++s) seconds_.push_back(seconds_of(s, held_[s]));
    mean_ = sum_of(seconds_) / static_cast<double>(steps_);
  }

  // The step of each document, in arrival order.
  std::vector<std::uint32_t> run() {
    // Dealing short documents rounds by half a document at each border.
    const double bound = std::min(options_.of<EquipoiseOptions>().max_delay, static_cast<double>(steps_));
    const double most = bound - kEqualBatch / 4;
    most_delay_ = static_cast<std::int64_t>(most * static_cast<double>(tokens_));
    for (const double price : kPrices)
      if (most_delay_ > 0) improve(price);
    return deal();
  }

 private:
  void weigh(const PackingProblem& problem) {
    std::vector<Document> all;
    for (std::size_t b = 0; b < steps_; ++b) {
      const std::vector<std::int64_t> lengths = lengths_of(problem.batches[b].slices);
      const std::vector<double> weights = weights_of(lengths, problem.workload);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        all.push_back({lengths[i], weights[i], b, all.size()});
        room_[b] += lengths[i];
      }
    }
    tokens_ = sum_of(room_);
    const double batch = static_cast<double>(tokens_) / static_cast<double>(steps_);
    std::int64_t short_tokens = std::min(static_cast<std::int64_t>(kEqualBatch / 2 * batch),
                                         std::max<std::int64_t>(1, options_.context_window / 2));
    if (const std::size_t most = kMostLong * steps_; all.size() > most) {
      std::vector<std::int64_t> longest = each_of(all, &Document::tokens);
      std::ranges::nth_element(longest, longest.begin() + static_cast<std::ptrdiff_t>(most),
                               std::greater<>());
      short_tokens = std::max(short_tokens, longest[most]);
    }
    double weight = 0, tokens = 0;
    for (const Document& d : all) {
      (d.tokens > short_tokens ? longs_ : shorts_).push_back(d);
      if (d.tokens > short_tokens) continue;
      weight += d.weight;
      tokens += static_cast<double>(d.tokens);
    }
    per_token_ = weight / std::max(1.0, tokens);
    std::ranges::stable_sort(longs_, std::greater<>(), &Document::weight);
    for (std::uint32_t d = 0; d < longs_.size(); ++d) {
      held_[longs_[d].arrived].push_back(d);
      long_tokens_[longs_[d].arrived] += longs_[d].tokens;
      beyond_[longs_[d].arrived] += beyond(d);
    }
  }

  // The work of a rank for each document, spread over all ranks or whole on one rank, whichever is less.
  [[nodiscard]] std::vector<double> weights_of(std::span<const std::int64_t> lengths,
                                               const Workload& workload) const {
    const int ranks = std::max(1, options_.context);
    std::vector<double> weights(lengths.size()), whole(lengths.size());
    workload.spread(lengths, ranks, weights);
    if (ranks == 1 || !options_.of<EquipoiseOptions>().place) return weights;
    workload.on_group(lengths, 1, whole);
    const double target = sum_of(weights) / micro_batches_;
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (whole[i] <= target) weights[i] = std::min(weights[i], whole[i] / ranks);
    return weights;
  }

  // The time of the step with these long documents, heaviest first.
  double seconds_of(std::size_t step, std::span<const std::uint32_t> held) {
    const double most = per_token_ * static_cast<double>(max_tokens(options_));
    std::fill(group_time_.begin(), group_time_.end(), 0.0);
    double left = 0, rest = per_token_ * static_cast<double>(room_[step]);
    for (std::size_t row = 0; row < held.size(); row += waiting_) {
      const double height = longs_[held[row]].weight;
      *std::min_element(group_time_.begin(), group_time_.end()) += height;
      for (std::size_t i = row; i < row + waiting_; ++i) {
        const double weight = i < held.size() ? longs_[held[i]].weight : 0;
        const double as_short =
            i < held.size() ? per_token_ * static_cast<double>(longs_[held[i]].tokens) : 0;
        rest -= as_short;
        left += std::min(height - weight, std::max(0.0, most - as_short));
      }
    }
    double lane = *std::max_element(group_time_.begin(), group_time_.end());
    for (const double time : group_time_) left += (lane - time) * static_cast<double>(waiting_);
    lane += std::max(0.0, rest - left) / static_cast<double>(lanes_);
    return through_pipeline(lane, held.empty() ? 0 : longs_[held.front()].weight);
  }
  [[nodiscard]] double through_pipeline(double lane, double heaviest) const {
    const double even = lane / std::max(1.0, micro_batches_ / static_cast<double>(lanes_));
    const double largest = std::max(heaviest / slices_, even);
    return (lane + (options_.stages - 1) * largest / options_.chunks) / options_.stages;
  }
  // A lower bound on seconds_of after `out` left and `in` came, with all work spread evenly. O(1).
  [[nodiscard]] double least_seconds(std::size_t step, std::uint32_t out, std::uint32_t in) const {
    const auto& held = held_[step];
    const std::size_t stays = !held.empty() && held.front() == out ? 1 : 0;
    const std::uint32_t first = std::min(in, stays < held.size() ? held[stays] : kNoOne);
    const double heaviest = first == kNoOne ? 0 : longs_[first].weight;
    const double work =
        beyond_[step] + beyond(in) - beyond(out) + per_token_ * static_cast<double>(room_[step]);
    return through_pipeline(std::max(heaviest, work / static_cast<double>(lanes_)), heaviest);
  }
  // The work that a long document adds to a step in place of equally many tokens of short ones.
  [[nodiscard]] double beyond(std::uint32_t d) const {
    return d == kNoOne ? 0 : longs_[d].weight - per_token_ * static_cast<double>(longs_[d].tokens);
  }

  // ---- The search ----

  void improve(double price) {
    price_ = price * static_cast<double>(steps_) / static_cast<double>(tokens_);
    std::fill(settled_.begin(), settled_.end(), 0);
    for (int pass = 0; pass < kPasses; ++pass)
      for (std::size_t from = 0; from < steps_; ++from)
        while (settled_[from] == 0) {
          settled_[from] = 1;
          best_.gain = kLeastGain;
          each_near(from, [&](std::size_t to) { rate_all(from, to); });
          if (best_.gain > kLeastGain) {
            take(from);
            unsettle(from);
            unsettle(best_.to);
          } else {
            empty(from);
          }
        }
  }

  template <class Visit>
  void each_near(std::size_t step, Visit&& visit) const {
    const std::size_t end = std::min(steps_, step + reach_);
    for (std::size_t s = step - std::min(step, reach_ - 1); s < end; ++s)
      if (s != step) visit(s);
  }
  void unsettle(std::size_t changed) {
    settled_[changed] = 0;
    each_near(changed, [&](std::size_t s) { settled_[s] = 0; });
  }

  void rate_all(std::size_t from, std::size_t to) {
    for (const std::uint32_t d : held_[from]) rate(from, to, d, kNoOne);
    const auto heaviest = [&](std::size_t step) {
      return std::span(held_[step]).first(std::min(kExchanged, held_[step].size()));
    };
    for (const std::uint32_t d : heaviest(from))
      for (const std::uint32_t e : heaviest(to))
        if (d < e) rate(from, to, d, e);
  }

  // The heaviest documents leave in turn, each to the step where it costs least, as many as gain most.
  void empty(std::size_t from) {
    std::vector<Move> gone;
    double sum = 0, most = kLeastGain;
    std::size_t pay = 0;
    const std::vector<std::uint32_t> held = held_[from];
    for (std::size_t i = 0; i < std::min(kEmptied, held.size()); ++i) {
      best_.gain = -std::numeric_limits<double>::infinity();
      best_.to = from;
      each_near(from, [&](std::size_t to) { rate(from, to, held[i], kNoOne); });
      if (best_.to == from) continue;
      take(from);
      gone.push_back(best_);
      sum += best_.gain;
      if (sum > most) most = sum, pay = gone.size();
    }
    for (std::size_t g = gone.size(); g-- > pay;) {
      best_ = {0, from, gone[g].out, kNoOne};
      take(gone[g].to);
    }
    if (pay > 0) unsettle(from);
    for (std::size_t g = 0; g < pay; ++g) unsettle(gone[g].to);
  }

  // Exchanges a document for another, or for none. It becomes the best move if it gains more.
  void rate(std::size_t from, std::size_t to, std::uint32_t out, std::uint32_t in) {
    if (!reaches(out, to) || (in != kNoOne && !reaches(in, from))) return;
    const std::int64_t more = longs_[out].tokens - (in == kNoOne ? 0 : longs_[in].tokens);
    if (!has_room(from, -more) || !has_room(to, more)) return;
    const double before = seconds_[from] + seconds_[to];
    const double least = least_seconds(from, out, in) + least_seconds(to, in, out);
    const double most = (before - least) / mean_ + kRounding;
    const auto far = static_cast<double>(std::max(from, to) - std::min(from, to));
    const std::int64_t both = longs_[out].tokens + (in == kNoOne ? 0 : longs_[in].tokens);
    if (most + price_ * far * static_cast<double>(both) < best_.gain)
      return;  // it cannot become the best move, whatever delay it saves
    exchange_flows(from, to, out, in);
    std::int64_t delay = 0;
    for (std::size_t b = std::min(from, to); b < std::max(from, to); ++b)
      delay += std::max(later_[b], earlier_[b]) - delay_[b];
    exchange_flows(to, from, out, in);
    if (delay > 0 && all_delay_ + delay > most_delay_) return;
    const double paid = price_ * static_cast<double>(delay);
    if (most - paid < best_.gain) return;
    double gain = before - seconds_of(from, with(held_[from], out, in));
    gain -= seconds_of(to, with(held_[to], in, out));
    gain = gain / mean_ - paid;
    if (gain > best_.gain) best_ = {gain, to, out, in};
  }
  [[nodiscard]] bool reaches(std::uint32_t d, std::size_t step) const {
    const std::size_t arrived = longs_[d].arrived;
    return (step > arrived ? step - arrived : arrived - step) < reach_;
  }
  // Long tokens above the tokens of a step are missing in other steps. They may sum to at most 1 % of a
  // batch.
  [[nodiscard]] bool has_room(std::size_t step, std::int64_t more) const {
    const std::int64_t excess = excess_of(step, more) - excess_of(step, 0);
    return excess <= 0 || static_cast<double>(excess_ + excess) * static_cast<double>(steps_) <=
                              kEqualBatch / 2 * static_cast<double>(tokens_);
  }
  [[nodiscard]] std::int64_t excess_of(std::size_t step, std::int64_t more) const {
    return std::max<std::int64_t>(0, long_tokens_[step] + more - room_[step]);
  }
  std::span<const std::uint32_t> with(std::span<const std::uint32_t> held, std::uint32_t out,
                                      std::uint32_t in) {
    made_.clear();
    for (const std::uint32_t d : held) {
      if (in < d) made_.push_back(std::exchange(in, kNoOne));
      if (d != out) made_.push_back(d);
    }
    if (in != kNoOne) made_.push_back(in);
    return made_;
  }

  // Moves `out` from one step to the other, and `in` back.
  void exchange_flows(std::size_t from, std::size_t to, std::uint32_t out, std::uint32_t in) {
    flow(out, from, -1), flow(out, to, 1);
    if (in != kNoOne) flow(in, to, -1), flow(in, from, 1);
  }
  void flow(std::uint32_t d, std::size_t step, int sign) {
    const std::size_t arrived = longs_[d].arrived;
    for (std::size_t b = arrived; b < step; ++b) later_[b] += sign * longs_[d].tokens;
    for (std::size_t b = step; b < arrived; ++b) earlier_[b] += sign * longs_[d].tokens;
  }

  void take(std::size_t from) {
    const auto [gain, to, out, in] = best_;
    exchange_flows(from, to, out, in);
    for (std::size_t b = std::min(from, to); b < std::max(from, to); ++b) {
      all_delay_ += std::max(later_[b], earlier_[b]) - delay_[b];
      delay_[b] = std::max(later_[b], earlier_[b]);
    }
    const std::int64_t more = longs_[out].tokens - (in == kNoOne ? 0 : longs_[in].tokens);
    const auto replace = [&](std::size_t step, std::uint32_t gone, std::uint32_t come, std::int64_t tokens) {
      with(held_[step], gone, come);
      held_[step] = made_;
      seconds_[step] = seconds_of(step, made_);
      excess_ += excess_of(step, tokens) - excess_of(step, 0);
      long_tokens_[step] += tokens;
      beyond_[step] += beyond(come) - beyond(gone);
    };
    replace(from, out, in, -more);
    replace(to, in, out, more);
  }

  [[nodiscard]] std::vector<std::uint32_t> deal() const {
    std::vector<std::uint32_t> step_of(longs_.size() + shorts_.size());
    for (std::size_t s = 0; s < steps_; ++s)
      for (const std::uint32_t d : held_[s]) step_of[longs_[d].place] = static_cast<std::uint32_t>(s);
    std::int64_t due = 0, dealt = 0;
    std::size_t end = 0;  // end of the steps that already have documents
    for (const Document& d : shorts_) {
      for (; end < steps_ && dealt + d.tokens / 2 >= due; ++end) due += room_[end] - long_tokens_[end];
      step_of[d.place] = static_cast<std::uint32_t>(end - 1);
      dealt += d.tokens;
    }
    return step_of;
  }

  struct Move {
    double gain = 0;
    std::size_t to = 0;
    std::uint32_t out = kNoOne, in = kNoOne;
  };

  const PackOptions& options_;
  std::size_t steps_, reach_, lanes_, waiting_;
  double slices_;         // slices of a long document, where those are cut
  double micro_batches_;  // mean micro-batches of a step
  std::int64_t tokens_ = 0;
  std::vector<Document> longs_, shorts_;  // long ones heaviest first, short ones in arrival order
  double per_token_ = 0;                  // weight of a token of short documents

  // Members by step follow.
  std::vector<std::int64_t> room_, long_tokens_;
  std::vector<std::int64_t> later_, earlier_,
      delay_;                                     // tokens across the border after the step: R, L, the larger
  std::vector<std::vector<std::uint32_t>> held_;  // long documents, heaviest first
  std::vector<double> beyond_, seconds_;
  std::vector<char> settled_;  // whether no move from the step gains

  double mean_ = 0, price_ = 0;  // mean seconds of a step at the start; price per token in steps
  std::int64_t all_delay_ = 0, most_delay_ = 0, excess_ = 0;
  Move best_;
  std::vector<std::uint32_t> made_;
  std::vector<double> group_time_;
};

}  // namespace

std::vector<std::uint32_t> gathered_steps(const PackingProblem& problem) {
  if (problem.batches.empty()) return {};
  return Gathering(problem).run();
}

Plan plan_gathered(const PackingProblem& problem) {
  std::size_t documents = 0;
  for (const GlobalBatch& batch : problem.batches) documents += batch.slices.size();
  std::vector<std::uint32_t> step_of = problem.options.of<EquipoiseOptions>().step_of;
  if (step_of.size() != documents) step_of = gathered_steps(problem);
  std::vector<GlobalBatch> held(problem.batches.size());
  std::vector<std::vector<Slice>> carried(held.size());
  std::size_t place = 0;
  for (std::size_t b = 0; b < held.size(); ++b)
    for (const Slice& slice : problem.batches[b].slices) {
      const std::size_t step = step_of[place++];
      held[step].slices.push_back(slice);
      for (std::size_t s = b; s < step; ++s) carried[s].push_back(slice);
    }
  const bool cuts = problem.options.of<EquipoiseOptions>().start == Start::sequence_slices;
  Plan plan = (cuts ? plan_sequence_slices : plan_lpt)({std::move(held), problem.options, problem.workload});
  for (std::size_t s = 0; s < carried.size(); ++s) plan.steps[s].carried = std::move(carried[s]);
  return plan;
}

}  // namespace equipoise
