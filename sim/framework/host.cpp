#include "sim/framework/host.h"

#include <algorithm>

namespace equipoise {

std::int64_t launches_of(const HostOptions& host, std::span<const Op> ops, bool backward) {
  if (host.graphs >= Graphs::layer) return 0;
  std::int64_t sum = 0;
  for (const Op& op : ops) {
    if (host.graphs == Graphs::attention && !op.ffn) continue;
    const auto& counts = backward && !op.again ? host.launches.backward : host.launches.forward;
    sum += op.kernels > 0 ? std::int64_t{op.kernels} : std::int64_t{op.launches} * counts[at(op.name)];
  }
  return sum;
}

Issued behind_lengths(const HostOptions& host, std::span<const Op> ops) {
  Issued sum;
  for (const Op& op : ops)
    if (op.kernels > 0 && host.graphs == Graphs::none) sum = sum + Issued{op.kernels, op.duration};
  return sum;
}

std::int64_t attention_launches(const HostOptions& host, bool backward, std::int64_t calls) {
  if (host.graphs != Graphs::none) return host.graphs == Graphs::full ? 0 : 1;
  const std::int64_t forward = host.launches.forward[at(OpName::attention)];
  return backward ? host.launches.backward[at(OpName::attention)] + (calls - 1) * forward : forward;
}

Picoseconds stall_of(Issued pass, Picoseconds per_launch, Picoseconds lead) {
  return std::max<Picoseconds>(0, pass.launches * per_launch - pass.busy - lead);
}

Picoseconds lead_after(Issued pass, Picoseconds per_launch, int layers) {
  if (pass.launches == 0) return 0;
  const Picoseconds ahead = pass.busy - pass.launches * per_launch;
  const Picoseconds queued = pass.busy / (pass.launches * layers) * kQueuedLaunches;
  return std::clamp<Picoseconds>(ahead, 0, queued);
}

}  // namespace equipoise
