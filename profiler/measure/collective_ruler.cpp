#include "profiler/measure/collective_ruler.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

Measurement measure_collective(Communicator& host, Communicator& data, kernels::Backend& backend,
                               RandomPool& pool, const CollectivePoint& point, const RulerOptions& options) {
  const std::int64_t elements =
      point.bytes / static_cast<std::int64_t>(kernels::bytes_of(backend.element_type()));
  const kernels::Buffer send = pool.elements(elements);
  const kernels::Buffer receive = pool.elements(elements);
  const Call call{data, point.kind, send.data(), receive.data(), elements};
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

}  // namespace equipoise::measure
