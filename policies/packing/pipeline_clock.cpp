#include "policies/packing/pipeline_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policies/base/index.h"
#include "policies/base/random.h"

namespace equipoise {
namespace {

// The k-th forward or backward of a stage.
struct Turn {
  std::size_t micro_batch;
  std::size_t chunk;
};

// Micro-batches advance in rounds of P: all P through chunk 0, then through chunk 1, and so on.
Turn turn_of(std::size_t k, std::size_t stages, std::size_t chunks, bool backward) {
  if (chunks == 1) return {k, 0};
  const std::size_t round = k / (stages * chunks), inside = k % (stages * chunks);
  const std::size_t chunk = inside / stages;
  return {round * stages + inside % stages, backward ? chunks - 1 - chunk : chunk};
}

}  // namespace

PipelineClock::PipelineClock(int stages, int chunks, std::size_t micro_batches)
    : stages_(std::max(1, stages)),
      chunks_(stages > 1 && micro_batches % static_cast<std::size_t>(stages) == 0 ? std::max(1, chunks) : 1),
      count_(micro_batches) {
  if (stages_ > 1) order_ops();
}

// Runs the schedule with ops of one unit each: the order in which they come is one that all waits allow, and
// those of a unit do not wait for each other, so that a processor has several of them in flight.
void PipelineClock::order_ops() {
  const auto stages = static_cast<std::size_t>(stages_), chunks = static_cast<std::size_t>(chunks_);
  const std::size_t total = count_ * chunks, virtual_stages = stages * chunks;
  constexpr std::uint32_t kBegin = 0, kNotYet = std::numeric_limits<std::uint32_t>::max();
  // The op that makes the input of each micro-batch's forward and backward on each virtual stage.
  std::vector<std::uint32_t> maker(2 * count_ * virtual_stages, kNotYet);
  const auto input_of = [&](std::size_t micro_batch, std::size_t virtual_stage, bool back) -> std::uint32_t& {
    return maker[((back ? count_ : 0) + micro_batch) * virtual_stages + virtual_stage];
  };
  for (std::size_t m = 0; m < count_; ++m) input_of(m, 0, false) = kBegin;
  std::vector<std::size_t> forwards(stages, 0), backwards(stages, 0);
  last_.assign(stages, kBegin);
  ops_.reserve(2 * total * stages);
  while (ops_.size() < 2 * total * stages) {
    const std::size_t made_before = ops_.size();
    for (std::size_t s = stages; s-- > 0;) {
      const std::size_t behind = stages - 1 - s;
      const std::size_t warm_up = std::min(total, chunks > 1 ? 2 * behind + (chunks - 1) * stages : behind);
      // A unit runs one op of a stage if its input was there before.
      const bool back = forwards[s] == total || forwards[s] > warm_up + backwards[s];
      if (back && backwards[s] == total) continue;
      const auto [micro_batch, chunk] = turn_of(back ? backwards[s] : forwards[s], stages, chunks, back);
      const std::size_t v = chunk * stages + s;
      const std::uint32_t input = input_of(micro_batch, v, back);
      if (input > made_before) continue;
      ops_.push_back({last_[s], input, static_cast<std::uint32_t>(2 * micro_batch + (back ? 1 : 0))});
      const auto made = static_cast<std::uint32_t>(ops_.size());
      last_[s] = made;
      if (back && v > 0) input_of(micro_batch, v - 1, true) = made;
      if (!back) input_of(micro_batch, v + 1 < virtual_stages ? v + 1 : v, v + 1 == virtual_stages) = made;
      ++(back ? backwards : forwards)[s];
    }
  }
  ends_.assign(ops_.size() + 1, 0.0);
  all_ends_.resize(ops_.size() + 1, {});
}

double PipelineClock::makespan(std::span<const PassTimes> times) {
  if (stages_ == 1) return sum_of(times, &PassTimes::total);
  const double* const time = &times.front().forward;  // forward and backward times alternate
  double* const ends = ends_.data();
  for (std::size_t k = 0; k < ops_.size(); ++k) {
    const Op& op = ops_[k];
    ends[k + 1] = std::max(ends[op.before], ends[op.input]) + time[op.time];
  }
  double latest = 0;
  for (const std::uint32_t op : last_) latest = std::max(latest, ends[op]);
  return latest / parts();
}

void PipelineClock::makespans(std::span<const AtOnce> times, AtOnce& found) {
  found.fill(0);
  if (stages_ == 1) {
    for (std::size_t m = 0; m < 2 * count_; m += 2)
      for (std::size_t i = 0; i < kAtOnce; ++i) found[i] += times[m][i] + times[m + 1][i];
    return;
  }
  AtOnce* const ends = all_ends_.data();
  for (std::size_t k = 0; k < ops_.size(); ++k) {
    const Op& op = ops_[k];
    const AtOnce before = ends[op.before], input = ends[op.input],
                 time = times[op.time];  // copies, so that the compiler makes vector code
    AtOnce end;
    for (std::size_t i = 0; i < kAtOnce; ++i)
      end[i] = (before[i] < input[i] ? input[i] : before[i]) + time[i];
    ends[k + 1] = end;
  }
  for (const std::uint32_t op : last_)
    for (std::size_t i = 0; i < kAtOnce; ++i) found[i] = std::max(found[i], ends[op][i]);
  for (double& latest : found) latest /= parts();
}

void PipelineClock::longest_path(std::span<PassTimes> passes) const {
  std::fill(passes.begin(), passes.end(), PassTimes{});
  double* const counts = &passes.front().forward;
  const double one = 1 / parts();
  std::uint32_t at = *std::ranges::max_element(last_, {}, [&](std::uint32_t op) { return ends_[op]; });
  while (at != 0) {
    const Op& op = ops_[at - 1];
    counts[op.time] += one;
    at = ends_[op.before] < ends_[op.input] ? op.input : op.before;
  }
}

void LongestPaths::reset(std::size_t places) {
  passes_.assign(places, {});
  lengths_.fill(0);
  next_ = 0;
}

void LongestPaths::add(std::span<const PassTimes> passes, double length) {
  for (std::size_t p = 0; p < passes_.size(); ++p) {
    passes_[p].forward[next_] = passes[p].forward;
    passes_[p].backward[next_] = passes[p].backward;
  }
  lengths_[next_] = length;
  next_ = (next_ + 1) % kPaths;
}

void LongestPaths::change(std::span<const PlaceChange> changes) {
  lengths_ = changed(changes);
}

double LongestPaths::longest_after(std::span<const PlaceChange> changes) const {
  const std::array<double, kPaths> after = changed(changes);
  return *std::max_element(after.begin(), after.end());
}

std::array<double, LongestPaths::kPaths> LongestPaths::changed(std::span<const PlaceChange> changes) const {
  std::array<double, kPaths> after = lengths_;
  for (const PlaceChange& change : changes) {
    const Passes& passes = passes_[change.place];
    for (std::size_t k = 0; k < kPaths; ++k)
      after[k] += passes.forward[k] * change.more.forward + passes.backward[k] * change.more.backward;
  }
  return after;
}

namespace {

class ShareSearch {
 public:
  ShareSearch(PipelineClock& clock, double fixed, double forward, double most)
      : clock_(clock),
        fixed_(fixed),
        forward_(forward),
        most_(most),
        times_(clock.micro_batches()),
        at_once_(2 * clock.micro_batches()) {}

  double price(const std::vector<double>& shares) {
    for (std::size_t i = 0; i < shares.size(); ++i) times_[i] = time_of(shares[i]);
    return clock_.makespan(times_);
  }

  // Scales the shares to sum to 1, with none above the limit.
  void level(std::vector<double>& shares) const {
    for (int round = 0; round < 8; ++round) {
      double open = 0, full = 0;
      for (const double s : shares) (s < most_ ? open : full) += s;
      if (open <= 0) break;
      const double stretch = (1 - full) / open;
      for (double& s : shares) s = s < most_ ? std::min(most_, s * stretch) : most_;
    }
    const double sum = sum_of(shares);
    for (double& s : shares) s /= sum;
  }

  void try_ramps(std::vector<double>& best, double& least) {
    constexpr double kFirst[] = {0.03, 0.08, 0.2, 0.4, 0.7, 1};
    constexpr double kGrowth[] = {1.2, 1.5, 2, 3};
    const std::size_t n = best.size();
    const std::size_t round = clock_.round();
    std::vector<std::vector<double>> tried;
    const auto try_all = [&] {
      for (std::size_t k = 0; k < tried.size(); ++k)
        for (std::size_t i = 0; i < n; ++i) set_time(i, k, time_of(tried[k][i]));
      clock_.makespans(at_once_, found_);
      for (std::size_t k = 0; k < tried.size(); ++k)
        if (found_[k] < least) {
          least = found_[k];
          best = tried[k];
        }
      tried.clear();
    };
    for (const double first : kFirst)
      for (const double growth : kGrowth)
        for (const double last : kFirst)
          for (const double fall : kGrowth) {
            std::vector<double>& shares = tried.emplace_back(n);
            double rising = first, falling = last;
            for (std::size_t i = 0; i < n; ++i) {
              if (i > 0 && i % round == 0) rising = std::min(1.0, rising * growth);
              shares[i] = rising;
            }
            for (std::size_t i = n; i-- > 0;) {
              shares[i] = std::min(shares[i], falling);
              if ((n - i) % round == 0) falling = std::min(1.0, falling * fall);
            }
            level(shares);
            if (tried.size() == PipelineClock::kAtOnce) try_all();
          }
    try_all();
  }

  // Goes down the slope from `best`, in steps that shrink.
  void descend(std::vector<double>& best, double& least) {
    const std::size_t n = best.size();
    const double even = 1 / static_cast<double>(n);
    std::vector<double> shares = best, slope(n);
    for (int step = 1; step <= kSlopes; ++step) {
      const double here = price(shares);
      double mean = 0;
      const double more = 0.01 * even;
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t k = 0; k < PipelineClock::kAtOnce; ++k) set_time(i, k, times_[i]);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t k = i % PipelineClock::kAtOnce;
        set_time(i, k, {times_[i].forward + forward_ * more, times_[i].backward + (1 - forward_) * more});
        if (k + 1 < PipelineClock::kAtOnce && i + 1 < n) continue;
        clock_.makespans(at_once_, found_);
        for (std::size_t j = i - k; j <= i; ++j) {
          slope[j] = (found_[j % PipelineClock::kAtOnce] - here) / more;
          set_time(j, j % PipelineClock::kAtOnce, times_[j]);
        }
      }
      for (const double s : slope) mean += s / static_cast<double>(n);
      double size = 0;
      for (double& s : slope) size = std::max(size, std::abs(s -= mean));
      if (size <= 0) return;
      const double length = 0.5 * even / (size * std::sqrt(static_cast<double>(step)));
      for (std::size_t i = 0; i < n; ++i) shares[i] = std::max(0.02 * even, shares[i] - length * slope[i]);
      level(shares);
      if (const double price_of = price(shares); price_of < least) {
        least = price_of;
        best = shares;
      }
    }
  }

  // Moves work between pairs drawn at random.
  void move_between(std::vector<double>& best, double& least) {
    SplitMix64 random(best.size());
    LongestPaths paths;
    paths.reset(best.size());
    std::vector<PassTimes> passes(best.size());
    price(best);
    for (double part = 0.3; part > 0.01; part /= 2) {
      const double moved = part / static_cast<double>(best.size());
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const std::size_t from = random.next() % best.size(), to = random.next() % best.size();
        if (from == to || best[from] < 1.5 * moved || best[to] + moved > most_) continue;
        best[from] -= moved;
        best[to] += moved;
        const PlaceChange changes[] = {{from, time_of(best[from]) - times_[from]},
                                       {to, time_of(best[to]) - times_[to]}};
        const double bound = paths.longest_after(changes);
        if (bound < least * (1 + LongestPaths::kRounding)) {
          for (const PlaceChange& c : changes) times_[c.place] = time_of(best[c.place]);
          const double price_of = clock_.makespan(times_);
          clock_.longest_path(passes);
          if (price_of < least * (1 - 1e-12)) {
            least = price_of;
            paths.change(changes);
            paths.add(passes, price_of);
            continue;
          }
          double before = price_of;
          for (const PlaceChange& c : changes)
            before -= passes[c.place].forward * c.more.forward + passes[c.place].backward * c.more.backward;
          paths.add(passes, before);
        }
        best[from] += moved;
        best[to] -= moved;
        for (const std::size_t i : {from, to}) times_[i] = time_of(best[i]);
      }
    }
  }

 private:
  static constexpr int kAttempts = 1000, kSlopes = 300;

  [[nodiscard]] PassTimes time_of(double share) const {
    const double time = fixed_ + share;
    return {forward_ * time, (1 - forward_) * time};
  }
  void set_time(std::size_t micro_batch, std::size_t k, const PassTimes& time) {
    at_once_[2 * micro_batch][k] = time.forward;
    at_once_[2 * micro_batch + 1][k] = time.backward;
  }

  PipelineClock& clock_;
  double fixed_, forward_, most_;
  std::vector<PassTimes> times_;
  std::vector<PipelineClock::AtOnce> at_once_;  // times of several lanes at once
  PipelineClock::AtOnce found_{};
};

// Beyond this number ramps suffice, because a slope costs as many makespans as there are micro-batches.
constexpr std::size_t kMostDescended = 80;

}  // namespace

std::vector<double> best_shares(PipelineClock& clock, double fixed, double forward, double most) {
  const auto n = clock.micro_batches();
  const double even = 1 / static_cast<double>(n);
  std::vector<double> best(n, even);
  ShareSearch search(clock, fixed, forward, std::max(most, even));
  double least = search.price(best);
  if (n < 2) return best;
  const bool few = n <= kMostDescended;
  if (few) search.descend(best, least);
  search.try_ramps(best, least);
  if (few) search.descend(best, least);
  search.move_between(best, least);
  return best;
}

}  // namespace equipoise
