#include "profiler/measure/collective_ruler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "kernels/wall_clock.h"

namespace equipoise::measure {
namespace {

using kernels::Communicator;

double mean_over_ranks(Communicator& host, double value) {
  const auto mine = static_cast<float>(value);
  float total = 0;
  host.all_reduce(&mine, &total, 1);
  return static_cast<double>(total) / host.size();
}

struct Call {
  Communicator& data;
  Collective kind;
  const void* send;
  void* receive;
  std::int64_t elements;  // of the whole point

  void operator()() const {
    const std::int64_t share = elements / data.size();
    switch (kind) {
      case Collective::all_gather:
        data.all_gather(send, receive, share);
        return;
      case Collective::reduce_scatter:
        data.reduce_scatter(send, receive, share);
        return;
      case Collective::all_reduce:
        data.all_reduce(send, receive, elements);
        return;
      case Collective::all_to_all:
        data.all_to_all(send, receive, share);
        return;
      case Collective::send_recv: {
        const int next = (data.rank() + 1) % data.size();
        const int previous = (data.rank() + data.size() - 1) % data.size();
        data.send_receive(send, next, receive, previous, elements);
        return;
      }
    }
  }
};

double time_calls(Communicator& host, kernels::Backend& backend, const Call& call, int calls) {
  host.barrier();
  const double start = kernels::wall_seconds();
  for (int i = 0; i < calls; ++i) call();
  backend.synchronize();
  return mean_over_ranks(host, (kernels::wall_seconds() - start) / calls);
}

Measurement measure_batches(Communicator& host, kernels::Backend& backend, const Call& call,
                            const RulerOptions& options) {
  time_calls(host, backend, call, 2);  // connections are made at the first call
  const double guess = time_calls(host, backend, call, 3);
  // Every rank computes the same numbers from the same means, so all take the same decisions.
  const int calls = static_cast<int>(std::clamp(std::ceil(4 * options.batch_seconds / guess), 1.0, 1000.0));
  const double room = options.budget_seconds / (guess * calls);
  const int batches = static_cast<int>(std::clamp(room, 5.0, static_cast<double>(options.most_batches)));
  std::vector<double> times;
  for (int i = 0; i < batches; ++i) times.push_back(time_calls(host, backend, call, calls));
  std::sort(times.begin(), times.end());
  Measurement result;
  result.seconds = result.wall_seconds = times[times.size() / 2];
  result.spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / result.seconds;
  result.calls_per_batch = static_cast<std::size_t>(calls);
  result.kept = batches;
  return result;
}

struct BufferPair {
  kernels::Buffer send;
  kernels::Buffer receive;
};

// Calls one at a time over some pairs of buffers.
class LoneCalls {
 public:
  LoneCalls(Communicator& host, Communicator& data, kernels::Backend& backend, RandomPool& pool,
            const CollectivePoint& point, std::int64_t elements, double footprint)
      : host_(host), data_(data), backend_(backend), point_(point), elements_(elements) {
    constexpr double kMostPairs = 16;
    const double pairs = footprint / (2.0 * static_cast<double>(point.bytes));
    for (int i = 0; i < static_cast<int>(std::clamp(pairs, 1.0, kMostPairs)); ++i)
      pairs_.push_back({pool.elements(elements), pool.elements(elements)});
    made_ = pool.elements(elements);
  }

  Stay one() {
    const BufferPair& pair = pairs_[next_++ % pairs_.size()];
    const Call call{data_, point_.kind, pair.send.data(), pair.receive.data(), elements_};
    backend_.copy(pair.send.data(), made_.data(), pair.send.bytes());
    host_.barrier();
    Stay stay;
    const double cpu = kernels::thread_cpu_seconds();
    stay.arrived = kernels::wall_seconds();
    call();
    stay.left = kernels::wall_seconds();
    stay.cpu_seconds = kernels::thread_cpu_seconds() - cpu;
    return stay;
  }

  // Wall time of a call with all that belongs to it, the same number on every rank.
  double guess() {
    constexpr int kCalls = 3;
    const double start = kernels::wall_seconds();
    for (int i = 0; i < kCalls; ++i) one();
    return mean_over_ranks(host_, (kernels::wall_seconds() - start) / kCalls);
  }

 private:
  Communicator& host_;
  Communicator& data_;
  kernels::Backend& backend_;
  const CollectivePoint& point_;
  std::int64_t elements_;
  std::vector<BufferPair> pairs_;
  kernels::Buffer made_;
  std::size_t next_ = 0;
};

// All ranks' stays, by call. Gathering moves bits, so a Stay may travel as floats.
std::vector<Stay> gathered(Communicator& host, const std::vector<Stay>& mine) {
  const auto ranks = static_cast<std::size_t>(host.size());
  std::vector<Stay> by_rank(mine.size() * ranks);
  host.all_gather(mine.data(), by_rank.data(),
                  static_cast<std::int64_t>(mine.size() * sizeof(Stay) / sizeof(float)));
  std::vector<Stay> by_call(by_rank.size());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t i = 0; i < mine.size(); ++i) by_call[i * ranks + rank] = by_rank[rank * mine.size() + i];
  return by_call;
}

// Off the processor for longer than clocks and chance explain?
bool stolen(const Stay& stay, double most_stolen) {
  constexpr double kClocks = 1e-6;  // seconds that reading them takes at most
  const double wall = stay.left - stay.arrived;
  return wall - stay.cpu_seconds > most_stolen * wall + kClocks;
}

enum class Verdict { clean, stolen, throttled };

Verdict verdict_of(std::span<const Stay> call, double least_pace, const RulerOptions& options) {
  for (const Stay& stay : call)
    if (stolen(stay, options.most_stolen)) return Verdict::stolen;
  return call.front().pace < least_pace ? Verdict::throttled : Verdict::clean;
}

// From the last arrival on, averaged over ranks.
double seconds_of(std::span<const Stay> call) {
  double last = call.front().arrived;
  for (const Stay& stay : call) last = std::max(last, stay.arrived);
  double seconds = 0;
  for (const Stay& stay : call) seconds += (stay.left - last) / static_cast<double>(call.size());
  return seconds;
}

double at_quantile(const std::vector<double>& sorted, double quantile) {
  return sorted[static_cast<std::size_t>(quantile * static_cast<double>(sorted.size() - 1) + 0.5)];
}

// The pace of the slowest rank while all compute; the same number on every rank.
double pace_of_all(Communicator& host, kernels::Backend& backend) {
  host.barrier();
  const auto mine = static_cast<float>(backend.pace());
  std::vector<float> all(static_cast<std::size_t>(host.size()));
  host.all_gather(&mine, all.data(), 1);
  return static_cast<double>(*std::min_element(all.begin(), all.end()));
}

double word_of_first(Communicator& host, double mine) {
  const auto word = static_cast<float>(mine);
  std::vector<float> all(static_cast<std::size_t>(host.size()));
  host.all_gather(&word, all.data(), 1);
  return static_cast<double>(all.front());
}

// Takes calls in stretches of some milliseconds between readings of the pace, until enough of them are clean.
// Every decision follows from what all ranks know, so all take the same.
class PacedCalls {
 public:
  PacedCalls(Communicator& host, kernels::Backend& backend, LoneCalls& calls, const RulerOptions& options)
      : host_(host),
        backend_(backend),
        calls_(calls),
        options_(options),
        usual_pace_(word_of_first(host, options.usual_pace)),
        patience_(word_of_first(host, options.patience_seconds)) {}

  Measurement measure() {
    calls_.guess();  // connections are made at the first call
    const double guess = calls_.guess();
    const auto enough =
        static_cast<std::size_t>(std::clamp(2 * options_.budget_seconds / guess, kFewest, kMost));
    const auto stretch = static_cast<std::size_t>(std::clamp(kStretchSeconds / guess, 1.0, kMost));
    read_pace();
    for (std::size_t taken = 0; taken < 3 * enough && clean_ < enough; taken += stretch) {
      while (paces_.back() < least_pace() && patience_ > 0) wait();
      take(std::min(stretch, enough));
    }
    Measurement result = answer_of(stays_, ranks(), least_pace(), options_);
    result.paces = paces_;
    result.waited_seconds = waited_;
    return result;
  }

 private:
  static constexpr double kFewest = 7;
  static constexpr double kMost = 500;
  static constexpr double kStretchSeconds = 0.01;
  static constexpr double kNap = 2e-3;

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(host_.size()); }
  [[nodiscard]] double least_pace() const {
    return (1 - options_.most_throttled) * std::max(usual_pace_, best_pace_);
  }

  void read_pace() {
    paces_.push_back(pace_of_all(host_, backend_));
    best_pace_ = std::max(best_pace_, paces_.back());
  }

  void wait() {
    std::this_thread::sleep_for(std::chrono::duration<double>(kNap));
    patience_ -= kNap;
    waited_ += kNap;
    read_pace();
  }

  void take(std::size_t count) {
    std::vector<Stay> mine;
    mine.reserve(count);
    for (std::size_t i = 0; i < count; ++i) mine.push_back(calls_.one());
    const double before = paces_.back();
    read_pace();
    for (Stay& stay : mine) stay.pace = std::min(before, paces_.back());
    const std::vector<Stay> all = gathered(host_, mine);
    for (std::size_t at = 0; at < all.size(); at += ranks()) {
      if (verdict_of({all.data() + at, ranks()}, least_pace(), options_) == Verdict::clean) ++clean_;
    }
    stays_.insert(stays_.end(), all.begin(), all.end());
  }

  Communicator& host_;
  kernels::Backend& backend_;
  LoneCalls& calls_;
  const RulerOptions& options_;
  double usual_pace_;
  double patience_;
  double best_pace_ = 0;
  double waited_ = 0;
  std::size_t clean_ = 0;
  std::vector<double> paces_;
  std::vector<Stay> stays_;
};

}  // namespace

Measurement answer_of(std::span<const Stay> stays, std::size_t ranks, double least_pace,
                      const RulerOptions& options) {
  std::vector<double> clean;
  std::vector<double> all;
  std::vector<double> paces;
  Measurement result;
  for (std::size_t at = 0; at + ranks <= stays.size(); at += ranks) {
    const std::span<const Stay> call = stays.subspan(at, ranks);
    const Verdict verdict = verdict_of(call, least_pace, options);
    result.stolen += verdict == Verdict::stolen ? 1 : 0;
    result.throttled += verdict == Verdict::throttled ? 1 : 0;
    all.push_back(seconds_of(call));
    if (verdict == Verdict::clean) clean.push_back(all.back());
    paces.push_back(call.front().pace);
  }
  result.disturbed = clean.size() < 3;
  std::vector<double>& kept = result.disturbed ? all : clean;
  std::sort(kept.begin(), kept.end());
  std::sort(paces.begin(), paces.end());
  result.seconds = result.wall_seconds = at_quantile(kept, options.answer_quantile);
  result.spread = (at_quantile(kept, 0.75) - at_quantile(kept, 0.25)) / result.seconds;
  result.pace = result.disturbed ? at_quantile(paces, 0.5) : std::max(least_pace, at_quantile(paces, 0.5));
  result.calls_per_batch = 1;
  result.kept = static_cast<int>(kept.size());
  return result;
}

Measurement measure_collective(Communicator& host, Communicator& data, kernels::Backend& backend,
                               RandomPool& pool, const CollectivePoint& point, const RulerOptions& options,
                               bool one_clock, double footprint) {
  const std::int64_t elements =
      point.bytes / static_cast<std::int64_t>(kernels::bytes_of(backend.element_type()));
  if (!one_clock) {
    const kernels::Buffer send = pool.elements(elements);
    const kernels::Buffer receive = pool.elements(elements);
    const Call call{data, point.kind, send.data(), receive.data(), elements};
    return measure_batches(host, backend, call, options);
  }
  LoneCalls calls(host, data, backend, pool, point, elements, footprint);
  return PacedCalls(host, backend, calls, options).measure();
}

}  // namespace equipoise::measure
