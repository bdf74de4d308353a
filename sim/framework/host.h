// The host of a training step: what it launches, what a launch takes it, and where it waits for the GPU.
//
// An op of ours represents several kernels of a framework: norms with their statistics, copies between
// layouts, gradients added to an fp32 sum. `LaunchCounts` says how many, op by op and pass by pass, read off
// the framework's source. The host issues them one by one into a queue. Where it falls behind the GPU runs
// dry; where it is ahead, it fills the queue, and later work of many small kernels lives on that lead. A
// synchronisation takes the lead away. CUDA graphs put what they cover into one launch.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "sim/workload/ops.h"

namespace equipoise {

inline constexpr std::int64_t kQueuedLaunches = 1024;  // that a CUDA stream takes before the host has to wait

inline constexpr int kMostLaunches = 255;  // of an op

struct LaunchCounts {
  LaunchCounts() {
    forward.fill(1);
    backward.fill(1);
  }
  std::array<std::uint8_t, kOpNames> forward, backward;
};

// What runs from CUDA graphs: nothing; a layer's attention with its norm and projections; each pass of a
// layer; a whole step.
enum class Graphs : std::uint8_t { none, attention, layer, full };
inline constexpr std::string_view kGraphsNames[] = {"none", "attention", "layer", "full"};

struct HostOptions {
  double seconds_per_launch = 0;
  LaunchCounts launches;
  Graphs graphs = Graphs::none;
  bool waits_at_hops = false;     // for a transfer between pipeline stages
  bool waits_for_routes = false;  // for the counts of tokens that the router sends to each expert
};

// Launches of a pass of a layer, and how long they keep the GPU busy.
struct Issued {
  std::int64_t launches = 0;
  Picoseconds busy = 0;
  friend Issued operator+(Issued a, Issued b) { return {a.launches + b.launches, a.busy + b.busy}; }
  friend Issued operator-(Issued a, Issued b) { return {a.launches - b.launches, a.busy - b.busy}; }
};

// Kernels and collectives of a layer's ops that the host launches.
std::int64_t launches_of(const HostOptions& host, std::span<const Op> ops, bool backward);
// The launches of a forward that are counted one by one, document by document. The host has read the
// documents' lengths from the GPU before, so that nothing is queued when it issues them.
Issued behind_lengths(const HostOptions& host, std::span<const Op> ops);
// Those of attention, or of the graph that it is in, `calls` times.
std::int64_t attention_launches(const HostOptions& host, bool backward, std::int64_t calls);

// How long the GPU waits for the host in a pass. `lead`: GPU work that was in the queue when it began.
Picoseconds stall_of(Issued pass, Picoseconds per_launch, Picoseconds lead = 0);

// How much GPU work the queue has when the host has issued a pass of so many layers. `pass`: one of them.
// The length of the queue bounds it.
Picoseconds lead_after(Issued pass, Picoseconds per_launch, int layers);

}  // namespace equipoise
