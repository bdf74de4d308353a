#include "profiler/measure/ruler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/wall_clock.h"

namespace equipoise::measure {
namespace {

struct Batch {
  double answer = 0;  // seconds of one call
  double wall = 0;
  double pace = 0;
  bool stolen = false;
};

// Linear interpolation between order statistics.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

template <class Member>
std::vector<double> column(const std::vector<Batch>& batches, Member member) {
  std::vector<double> values;
  for (const Batch& batch : batches) values.push_back(batch.*member);
  return values;
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

// Calls that fill a batch, by doubling: every try is warm-up for the next. A first call that had to load its
// code is a starved one and says nothing of the others.
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

// Below this a batch is throttled.
double slowest_pace(double fastest, const RulerOptions& options) {
  return (1 - options.most_throttled) * std::max(fastest, options.usual_pace);
}

std::vector<Batch> drop_throttled(const std::vector<Batch>& batches, const RulerOptions& options,
                                  int& dropped) {
  if (batches.empty()) return batches;
  const double usual = quantile(column(batches, &Batch::pace), options.clock_against_median ? 0.5 : 1);
  const double slowest = slowest_pace(usual, options);
  std::vector<Batch> kept;
  for (const Batch& batch : batches) {
    if (batch.pace >= slowest) kept.push_back(batch);
  }
  dropped = static_cast<int>(batches.size() - kept.size());
  return kept;
}

// The pace now, or what it is after waiting for the usual one as long as patience lasts.
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
    return spent >= options.budget_seconds * (clean.size() >= kFewest ? 1 : 3);  // patience for clean ones
  };
  while (!enough()) {
    const double before = settled_pace(pace, options, result.waited_seconds);
    const kernels::Elapsed elapsed = time_batch(first, result.calls_per_batch);
    first += result.calls_per_batch;
    spent += elapsed.seconds + (options.cpu_time ? 0 : elapsed.cpu_seconds);
    all.push_back(batch_of(elapsed, result.calls_per_batch, std::min(before, pace()), options));
    if (all.back().stolen) {
      result.stolen += 1;
    } else if (all.back().pace < slowest_pace(0, options)) {
      result.throttled += 1;
    } else {
      clean.push_back(all.back());
    }
  }
  result.paces = column(all, &Batch::pace);
  int slower = 0;  // than the fastest of this call
  clean = drop_throttled(clean, options, slower);
  result.throttled += slower;
  result.disturbed = clean.size() < kFewest;
  const std::vector<Batch>& kept = result.disturbed ? all : clean;
  result.kept = static_cast<int>(kept.size());
  const std::vector<double> answers = column(kept, &Batch::answer);
  result.seconds = quantile(answers, options.answer_quantile);
  result.wall_seconds = quantile(column(kept, &Batch::wall), options.answer_quantile);
  result.pace = quantile(column(kept, &Batch::pace), 0.5);
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

}  // namespace equipoise::measure
