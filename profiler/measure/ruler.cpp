#include "profiler/measure/ruler.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "policies/base/index.h"
#include "profiler/measure/workload.h"

namespace equipoise::measure {
namespace {

struct Batch {
  double answer = 0;  // seconds of one call
  double wall = 0;
  double pace = 0;
  bool stolen = false;
};

// Interpolates linearly between order statistics.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

Batch batch_of(const kernels::Elapsed& elapsed, std::size_t calls, double pace, const RulerOptions& options) {
  const auto count = static_cast<double>(calls);
  Batch batch;
  batch.wall = elapsed.seconds / count;
  batch.answer = options.cpu_time ? elapsed.cpu_seconds / count : batch.wall;
  batch.pace = pace;
  batch.stolen =
      options.cpu_time ? elapsed.cpu_seconds < (1 - options.most_stolen) * elapsed.seconds : elapsed.starved;
  return batch;
}

// Finds how many calls fill a batch by doubling; every try also warms up the next. The first call is not
// representative, since it may have to load its code.
std::size_t calls_for(const TimeBatch& time_batch, const RulerOptions& options) {
  constexpr int kPatience = 4;
  std::size_t calls = 1;
  for (int starved = 0;;) {
    const kernels::Elapsed elapsed = time_batch(0, calls);
    if (elapsed.starved && ++starved < kPatience) continue;
    const double answer = options.cpu_time ? elapsed.cpu_seconds : elapsed.seconds;
    std::size_t most = options.most_calls;
    if (!options.cpu_time && elapsed.cpu_seconds > 0) {
      const double issued = options.issue_seconds * static_cast<double>(calls) / elapsed.cpu_seconds;
      most = static_cast<std::size_t>(std::clamp(issued, 1.0, static_cast<double>(most)));
    }
    if (answer >= options.batch_seconds || calls >= most) return calls;
    const double grow = answer > 0 ? options.batch_seconds / answer : 16.0;
    calls =
        static_cast<std::size_t>(std::ceil(static_cast<double>(calls) * std::clamp(grow * 1.1, 2.0, 16.0)));
    calls = std::min(calls, most);
  }
}

// A batch with a lower pace is throttled.
double slowest_pace(double fastest, const RulerOptions& options) {
  return (1 - options.most_throttled) * std::max(fastest, options.usual_pace);
}

std::vector<Batch> drop_throttled(const std::vector<Batch>& batches, const RulerOptions& options,
                                  int& dropped) {
  if (batches.empty()) return batches;
  const double usual = quantile(each_of(batches, &Batch::pace), options.clock_against_median ? 0.5 : 1);
  const double slowest = slowest_pace(usual, options);
  std::vector<Batch> kept;
  for (const Batch& batch : batches)
    if (batch.pace >= slowest) kept.push_back(batch);
  dropped = static_cast<int>(batches.size() - kept.size());
  return kept;
}

// The pace now, after waiting for the usual one as long as patience lasts.
double settled_pace(const std::function<double()>& pace, const RulerOptions& options, double& waited) {
  double now = pace();
  while (now < slowest_pace(0, options) && waited < options.patience_seconds) {
    const double start = kernels::wall_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    now = pace();
    waited += kernels::wall_seconds() - start;
  }
  return now;
}

}  // namespace

Measurement measure_call(const TimeBatch& time_batch, const std::function<double()>& pace,
                         const RulerOptions& options) {
  constexpr std::size_t kFewest = 3;
  Measurement result;
  result.calls_per_batch = calls_for(time_batch, options);
  double spent = 0;
  std::vector<Batch> all;
  std::vector<Batch> clean;
  std::size_t first = 0;
  const auto enough = [&] {
    if (all.size() < kFewest) return false;
    if (all.size() >= static_cast<std::size_t>(options.most_batches)) return true;
    if (clean.size() >= static_cast<std::size_t>(options.enough_batches)) return true;
    return spent >= options.budget_seconds *
                        (clean.size() >= kFewest ? 1 : 3);  // wait longer while clean batches are few
  };
  while (!enough()) {
    const double before = settled_pace(pace, options, result.waited_seconds);
    const kernels::Elapsed elapsed = time_batch(first, result.calls_per_batch);
    first += result.calls_per_batch;
    spent += elapsed.seconds + (options.cpu_time ? 0 : elapsed.cpu_seconds);
    all.push_back(batch_of(elapsed, result.calls_per_batch, std::min(before, pace()), options));
    if (all.back().stolen)
      result.stolen += 1;
    else if (all.back().pace < slowest_pace(0, options))
      result.throttled += 1;
    else
      clean.push_back(all.back());
  }
  result.paces = each_of(all, &Batch::pace);
  int slower = 0;  // batches slower than the fastest of this call
  clean = drop_throttled(clean, options, slower);
  result.throttled += slower;
  result.disturbed = clean.size() < kFewest;
  const std::vector<Batch>& kept = result.disturbed ? all : clean;
  result.kept = static_cast<int>(kept.size());
  const std::vector<double> answers = each_of(kept, &Batch::answer);
  result.seconds = quantile(answers, options.answer_quantile);
  result.wall_seconds = quantile(each_of(kept, &Batch::wall), options.answer_quantile);
  result.pace = quantile(each_of(kept, &Batch::pace), 0.5);
  result.spread =
      result.seconds > 0 ? (quantile(answers, 0.75) - quantile(answers, 0.25)) / result.seconds : 0;
  return result;
}

RulerTest test_ruler(kernels::Backend& backend, double seconds, const RulerOptions& options) {
  const Measurement measured = measure_call(
      [&](std::size_t, std::size_t count) {
        backend.start_timer();
        for (std::size_t i = 0; i < count; ++i) backend.spin(seconds);
        return backend.stop_timer();
      },
      [&] { return backend.pace(); }, options);
  return {seconds, measured.seconds};
}

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
  std::int64_t elements;  // elements of the whole point

  void operator()() const {
    const std::int64_t share = elements / data.size();
    switch (kind) {
      case Collective::all_gather:
        return data.all_gather(send, receive, share);
      case Collective::reduce_scatter:
        return data.reduce_scatter(send, receive, share);
      case Collective::all_reduce:
        return data.all_reduce(send, receive, elements);
      case Collective::all_to_all:
        return data.all_to_all(send, receive, share);
      case Collective::send_recv: {
        const int next = (data.rank() + 1) % data.size();
        const int previous = (data.rank() + data.size() - 1) % data.size();
        return data.send_receive(send, next, receive, previous, elements);
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
  // Every rank computes the same numbers from the same means, so all decide alike.
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

// Runs calls one at a time over several pairs of buffers.
class LoneCalls {
 public:
  LoneCalls(Communicator& host, Communicator& data, kernels::Backend& backend, RandomPool& pool,
            const CollectivePoint& point, std::int64_t elements, double footprint)
      : host_(host), data_(data), backend_(backend), point_(point), elements_(elements) {
    constexpr double kMostPairs = 64;
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

  // The wall time of a call with its preparation, the fastest of several. All ranks return the same number.
  double guess() {
    constexpr int kCalls = 5;
    double best = 1e300;
    for (int i = 0; i < kCalls; ++i) {
      const double start = kernels::wall_seconds();
      one();
      best = std::min(best, kernels::wall_seconds() - start);
    }
    return mean_over_ranks(host_, best);
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

// Gathers all ranks' stays, ordered by call. Gathering moves bits, so a Stay may travel as floats.
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

// Whether the rank was off its processor for longer than the clocks' resolution explains.
bool stolen(const Stay& stay, double most_stolen) {
  constexpr double kClocks = 1e-6;  // the most seconds that reading the clocks takes
  const double wall = stay.left - stay.arrived;
  return wall - stay.cpu_seconds > most_stolen * wall + kClocks;
}

bool clean(std::span<const Stay> call, const RulerOptions& options) {
  return std::ranges::none_of(call, [&](const Stay& stay) { return stolen(stay, options.most_stolen); });
}

// The time from the last arrival on, averaged over ranks.
double seconds_of(std::span<const Stay> call) {
  double last = call.front().arrived;
  for (const Stay& stay : call) last = std::max(last, stay.arrived);
  double seconds = 0;
  for (const Stay& stay : call) seconds += (stay.left - last) / static_cast<double>(call.size());
  return seconds;
}

double at_quantile(const std::vector<double>& sorted, double quantile) {
  return sorted[static_cast<std::size_t>(quantile * as_double(sorted.size() - 1) + 0.5)];
}

// Seconds of a barrier, the fastest of several runs. All ranks return the same number.
double reach_of(Communicator& host) {
  constexpr int kRuns = 5;
  constexpr int kBarriers = 8;
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    const double start = kernels::wall_seconds();
    for (int i = 0; i < kBarriers; ++i) host.barrier();
    best = std::min(best, (kernels::wall_seconds() - start) / kBarriers);
  }
  return mean_over_ranks(host, best);
}

// Runs calls in stretches of some milliseconds, reading the reach after each, until enough calls are clean.
// Every decision depends only on what all ranks know, so all decide alike.
Measurement measure_alone(Communicator& host, LoneCalls& calls, const RulerOptions& options) {
  constexpr double kFewest = 7;
  constexpr double kMost = 500;
  constexpr double kStretchSeconds = 0.01;
  const auto ranks = static_cast<std::size_t>(host.size());
  calls.guess();  // connections are made at the first call
  const double guess = calls.guess();
  const auto enough =
      static_cast<std::size_t>(std::clamp(2 * options.budget_seconds / guess, kFewest, kMost));
  const auto stretch =
      std::min(enough, static_cast<std::size_t>(std::clamp(kStretchSeconds / guess, 1.0, kMost)));
  std::vector<Stay> stays;
  std::vector<double> reaches{reach_of(host)};
  for (std::size_t taken = 0, done = 0; taken < 3 * enough && done < enough; taken += stretch) {
    std::vector<Stay> mine;
    mine.reserve(stretch);
    for (std::size_t i = 0; i < stretch; ++i) mine.push_back(calls.one());
    reaches.push_back(reach_of(host));
    const std::vector<Stay> all = gathered(host, mine);
    for (std::size_t at = 0; at < all.size(); at += ranks)
      done += clean({all.data() + at, ranks}, options) ? 1 : 0;
    stays.insert(stays.end(), all.begin(), all.end());
  }
  Measurement result = answer_of(stays, ranks, options);
  std::sort(reaches.begin(), reaches.end());
  result.reach_seconds = at_quantile(reaches, 0.5);
  return result;
}

}  // namespace

Measurement answer_of(std::span<const Stay> stays, std::size_t ranks, const RulerOptions& options) {
  std::vector<double> undisturbed;
  std::vector<double> all;
  for (std::size_t at = 0; at + ranks <= stays.size(); at += ranks) {
    const std::span<const Stay> call = stays.subspan(at, ranks);
    all.push_back(seconds_of(call));
    if (clean(call, options)) undisturbed.push_back(all.back());
  }
  Measurement result;
  result.stolen = static_cast<int>(all.size() - undisturbed.size());
  result.disturbed = undisturbed.size() < 3;
  std::vector<double>& kept = result.disturbed ? all : undisturbed;
  std::sort(kept.begin(), kept.end());
  result.seconds = result.wall_seconds = at_quantile(kept, options.answer_quantile);
  result.spread = (at_quantile(kept, 0.75) - at_quantile(kept, 0.25)) / result.seconds;
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
  return measure_alone(host, calls, options);
}

}  // namespace equipoise::measure
