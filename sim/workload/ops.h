// What a rank executes: kernels and collectives with integer-picosecond durations, in issue order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "policies/base/clock.h"
#include "policies/base/index.h"

namespace equipoise {

// The stream an op runs on: compute, or one communication axis.
enum class Stream : std::uint8_t { compute, tp, cp, ep, pp, dp };
inline constexpr int kStreams = 6;

enum class OpName : std::uint8_t {
  rms_norm,
  tp_all_gather,
  tp_reduce_scatter,
  qkv_gemm,
  rope,
  cp_all_gather,
  cp_reduce_scatter,
  cp_ring_step,
  cp_all_to_all,
  attention,
  convolution,
  recurrence,
  out_gemm,
  residual,
  gate_up_gemm,
  activation,
  down_gemm,
  expert_bias,
  router,
  routing,  // the router's small kernels: softmax, choice, loss, maps
  permute,
  quantize,
  ep_all_to_all,
  taken_sms,  // time that compute under an exchange loses to the SMs of the exchange
  expert_gemm,
  mla_projection,
  mtp_projection,
  input_gradient,
  weight_gradient,
  host_stall,
  nano_batch,  // the other half's ops of a layer, during the transfer of a half's Q, K, V or output
  embedding,
  logits_gemm,
  cross_entropy,
  pp_send,
  dp_reduce,
  dp_all_gather,
  optimizer
};
inline constexpr std::size_t kOpNames = at(OpName::optimizer) + 1;
const char* name_of(OpName op);
const char* name_of(Stream stream);

struct Op {
  OpName name{};
  Stream stream = Stream::compute;
  bool with_next = false;      // runs concurrently with the next op, and what follows waits for both
  std::uint8_t over = 0;       // for exchanges of experts: how many of the next ops, including pairs, run
                               // meanwhile; what follows waits for it and them
  std::uint32_t launches = 1;  // number of products or small kernels that the host launches for it
  std::uint32_t kernels = 0;  // launches of PyTorch's own functions, counted; unless 0, instead of `launches`
  Picoseconds duration = 0;
  double flops = 0;
  double bytes = 0;             // moved or sent by this rank
  bool again = false;           // whether it repeats a forward's op in the backward
  bool once = false;            // whether a recomputation of its layer skips it
  bool ffn = false;             // whether it is in the layer's half after attention
  bool arrived = false;         // whether it works for token copies that arrived at experts, from any rank
  bool behind_lengths = false;  // whether the host reads the documents' lengths from the GPU before it
  friend bool operator==(const Op&, const Op&) = default;
};

// A short run of ops without a synchronisation between context-parallel ranks. Fixed capacity: it is rebuilt
// for every micro-batch and must not allocate.
class OpList {
 public:
  void clear() { size_ = 0; }
  void push(const Op& op) { ops_.at(size_++) = op; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // Marks the ops from number `first` on as repeats of a forward's.
  void mark_again(std::size_t first) {
    for (std::size_t i = first; i < size_; ++i) ops_.at(i).again = true;
  }
  // The ops from number `first` on run `times` over, the last time as a part.
  void repeat(std::size_t first, double times) {
    for (Op& op : std::span(ops_).subspan(first, size_ - first)) {
      op.duration = static_cast<Picoseconds>(std::llround(static_cast<double>(op.duration) * times));
      op.launches = static_cast<std::uint32_t>(std::ceil(op.launches * times));
      op.kernels = static_cast<std::uint32_t>(std::ceil(op.kernels * times));
      op.flops *= times;
      op.bytes *= times;
    }
  }
  // Marks the ops from number `first` on as those that a recomputation does not repeat.
  void mark_once(std::size_t first) {
    for (std::size_t i = first; i < size_; ++i) ops_.at(i).once = true;
  }
  void mark_ffn(std::size_t first) {
    for (std::size_t i = first; i < size_; ++i) ops_.at(i).ffn = true;
  }
  // Marks the ops from number `first` on as work for token copies that arrived at experts.
  void mark_arrived(std::size_t first) {
    for (std::size_t i = first; i < size_; ++i) ops_.at(i).arrived = true;
  }
  // Turns the list into that of a rank without tokens whose experts get some: all ops stay, and only those
  // marked as work for arrived copies take time.
  void keep_arrived() {
    for (std::size_t i = 0; i < size_; ++i) {
      Op& op = ops_.at(i);
      if (op.arrived) continue;
      op.launches = op.kernels = 0;
      op.duration = 0;
      op.flops = op.bytes = 0;
    }
  }
  // Lets all ops after op number `first`, an exchange of experts, run during it.
  void put_under(std::size_t first) { ops_.at(first).over = static_cast<std::uint8_t>(size_ - first - 1); }
  [[nodiscard]] std::span<const Op> ops() const { return std::span(ops_).first(size_); }

 private:
  std::array<Op, 320> ops_{};  // the head of 16 modules of multi-token prediction has up to 300
  std::size_t size_ = 0;
};

// Time of a run on one rank, and what it consists of.
struct RunTime {
  Picoseconds total = 0;                        // counts concurrent ops once
  std::array<Picoseconds, kStreams> busy{};     // by stream
  std::array<Picoseconds, kStreams> exposed{};  // communication that no compute hides, without overlaps

  void operator+=(const RunTime& o) {
    total += o.total;
    for (std::size_t i = 0; i < busy.size(); ++i) {
      busy[i] += o.busy[i];
      exposed[i] += o.exposed[i];
    }
  }
};

RunTime run_time(std::span<const Op> ops);

}  // namespace equipoise
