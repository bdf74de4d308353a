// The host of a training step: what it launches, how long a launch takes, and where it waits for the GPU.
//
// An op of ours represents several kernels of a framework: norms with their statistics, copies between
// layouts, gradients added to an fp32 sum. `LaunchCounts` says how many, op by op and pass by pass, read off
// the framework's source. The host issues them one by one into a queue. If it falls behind, the GPU runs dry.
// If it is ahead, it fills the queue, and later work of many small kernels lives on that lead. A
// synchronisation takes the lead away. CUDA graphs turn what they cover into one launch.
//
// A framework's launch goes through a module: its Python, its checks, its part of autograd. Kernels that
// PyTorch's own functions launch in a row have none of these around them and take the host less.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "sim/workload/ops.h"

namespace equipoise {

inline constexpr std::int64_t kQueuedLaunches = 1024;  // limit of a CUDA stream, then the host waits

inline constexpr int kMostLaunches = 255;  // for one op

struct LaunchCounts {
  LaunchCounts() {
    forward.fill(1);
    backward.fill(1);
  }
  std::array<std::uint8_t, kOpNames> forward, backward;
};

// What CUDA graphs cover: nothing; a layer's attention with norm and projections; each pass of a layer; a
// step.
enum class Graphs : std::uint8_t { none, attention, layer, full };
inline constexpr std::string_view kGraphsNames[] = {"none", "attention", "layer", "full"};

struct HostOptions {
  double seconds_per_launch = 0;
  std::optional<double> seconds_per_kernel;  // of PyTorch's own functions; if not stated, a launch's
  bool by_op = false;                        // whether an op has one launch, whatever the framework launches
  LaunchCounts launches;
  Graphs graphs = Graphs::none;
  bool router_graphs = false;     // the norm and the router of a layer with experts run from a graph, too
  bool waits_at_hops = false;     // at a transfer between pipeline stages
  bool waits_for_routes = false;  // at the counts of tokens that the router sends to each expert
};

// Launches of a pass of a layer, the host's time for them, and how long they keep the GPU busy.
struct Issued {
  std::int64_t launches = 0;
  Picoseconds host = 0, busy = 0;
  [[nodiscard]] Issued keeping(Picoseconds gpu) const { return {launches, host, gpu}; }
  friend Issued operator+(Issued a, Issued b) {
    return {a.launches + b.launches, a.host + b.host, a.busy + b.busy};
  }
  friend Issued operator-(Issued a, Issued b) {
    return {a.launches - b.launches, a.host - b.host, a.busy - b.busy};
  }
  friend Issued operator*(int times, Issued a) {
    return {times * a.launches, times * a.host, times * a.busy};
  }
};

// Kernels and collectives of a layer's ops that the host launches. What they keep busy is the caller's to
// say.
Issued launches_of(const HostOptions& host, std::span<const Op> ops, bool backward);
// The launches of a forward that are issued document by document. The host has just read the documents'
// lengths from the GPU, so the queue is empty.
Issued behind_lengths(const HostOptions& host, std::span<const Op> ops);
// Launches of `calls` attention calls, or of the graph that attention is part of.
Issued attention_launches(const HostOptions& host, bool backward, std::int64_t calls);

// How long the GPU waits for the host in a pass. `lead` is the GPU work in the queue when the pass began.
Picoseconds stall_of(Issued pass, Picoseconds lead = 0);

// GPU work in the queue after the host issued so many layers like `pass`, bounded by the queue's length.
Picoseconds lead_after(Issued pass, int layers);

}  // namespace equipoise
