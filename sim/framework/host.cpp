#include "sim/framework/host.h"

#include <algorithm>

namespace equipoise {

namespace {

Issued launched(const HostOptions& host, std::int64_t launches) {
  return {launches, launches * to_picoseconds(host.seconds_per_launch), 0};
}

Issued launched_by_functions(const HostOptions& host, std::int64_t kernels) {
  const double each =
      std::min(host.seconds_per_kernel.value_or(host.seconds_per_launch), host.seconds_per_launch);
  return {kernels, kernels * to_picoseconds(each), 0};
}

// What comes before a layer's tokens are sent to experts. A dense layer has no router, and its norm stays.
bool in_router_graph(const Op& op, bool routes) {
  return routes && op.ffn &&
         (op.name == OpName::rms_norm || op.name == OpName::router || op.name == OpName::routing);
}

}  // namespace

Issued launches_of(const HostOptions& host, std::span<const Op> ops, bool backward) {
  if (host.graphs >= Graphs::layer) return {};
  const auto routes_with = [&](bool again) {
    return host.router_graphs && std::ranges::any_of(ops, [again](const Op& op) {
             return op.name == OpName::router && op.again == again;
           });
  };
  // A backward pass that recomputes the router replays the graph of its forward pass, too.
  const bool first = routes_with(false), again = routes_with(true), routes = first || again;
  Issued sum = launched(host, std::int64_t{first} + std::int64_t{again});
  for (const Op& op : ops) {
    if ((host.graphs == Graphs::attention && !op.ffn) || in_router_graph(op, routes)) continue;
    const auto& counts = backward && !op.again ? host.launches.backward : host.launches.forward;
    const std::int64_t launches = std::int64_t{op.launches} * counts[at(op.name)];
    if (op.kernels > 0 && !host.by_op)
      sum = sum + launched_by_functions(host, op.kernels);
    else
      sum = sum + launched(host, launches);
  }
  return sum;
}

Issued behind_lengths(const HostOptions& host, std::span<const Op> ops) {
  Issued sum;
  if (host.by_op || host.graphs != Graphs::none) return sum;
  for (const Op& op : ops)
    if (op.behind_lengths) sum = sum + launched_by_functions(host, op.kernels).keeping(op.duration);
  return sum;
}

Issued attention_launches(const HostOptions& host, bool backward, std::int64_t calls) {
  if (host.graphs != Graphs::none) return launched(host, host.graphs == Graphs::full ? 0 : 1);
  const std::int64_t forward = host.launches.forward[at(OpName::attention)];
  return launched(host,
                  backward ? host.launches.backward[at(OpName::attention)] + (calls - 1) * forward : forward);
}

Picoseconds stall_of(Issued pass, Picoseconds lead) {
  return std::max<Picoseconds>(0, pass.host - pass.busy - lead);
}

Picoseconds lead_after(Issued pass, int layers) {
  if (pass.launches == 0) return 0;
  const Picoseconds queued = pass.busy / (pass.launches * layers) * kQueuedLaunches;
  return std::clamp<Picoseconds>(pass.busy - pass.host, 0, queued);
}

}  // namespace equipoise
