// How a layer mixes the tokens of a sequence where it does not attend to keys, or not only: by a linear
// recurrence.
//
// Each head has a state S of key_dim x value_dim numbers. Token t decays it, adds to it and reads it:
//   S_t = decay_t S_(t-1) + k_t u_t^T,    o_t = S_t^T q_t.
// By the delta rule u_t is beta_t (v_t - decay_t S_(t-1)^T k_t), and otherwise v_t. Training computes it in
// chunks by matrix products: inside a chunk as attention without a softmax, and from chunk to chunk by the
// state. A document begins with an empty state, so that nothing grows with the square of its length.
//
// A layer projects its input to q, k and v, which a short causal convolution smooths, to numbers for decay
// and beta, and to a gate, which scales the normed output before its projection.
//
// A short convolution alone (LFM2, arXiv 2511.23404) is the same without a state: the convolution smooths the
// product of k and v, channel by channel, and q scales what it makes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {

enum class Recurrence : std::uint8_t { gated_delta, kimi_delta, mamba2, lightning, convolution };

struct RecurrenceFacts {
  Recurrence rule{};
  std::string_view name;           // as notes spell it
  bool delta = false;              // whether it has the delta rule
  int inputs_of_head = 0;          // numbers of a head that a token's input projection makes: decay, beta
  int learned_of_head = 0;         // learned numbers of a head: rates of decay, shifts, skips
  bool decays_by_channel = false;  // whether each key channel has a decay, and a learned shift
  bool norms_heads_alone = false;  // whether one scale per channel of a head serves the norms of all heads
  bool convolution_bias = false;
  bool state = true;  // without one there are neither decays nor a norm and a gate behind it
  // What public kernels reach: the share of the device's bf16 peak in the forward, by `chunk_flops`, and the
  // time of the backward over that of the forward.
  double efficiency = 0, backward = 0;
};

// Tokens of a chunk by which products are counted, as flash-linear-attention (FLA) cuts them.
inline constexpr std::int64_t kRecurrenceChunk = 64;

// Sources of the shares, all of FLA's Triton kernels with heads of 128.
//
// Gated delta net (arXiv 2412.06464): QwenLM/FlashQLA, benchmark_results_H200.txt, FLA 0.5.1. 8,192 tokens of
// 32 heads take 0.472 ms, and 1.444 ms backward.
//
// Kimi delta attention (arXiv 2510.26692): PaddlePaddle/flash-attention, pull request 133. 8,192 tokens of 96
// heads take 3.268 ms on an H800. MoonshotAI/FlashKDA, BENCHMARK_TRAIN_RTX5090.md: both passes take 15.325
// ms, 3.591 ms of them forward.
//
// Lightning attention (arXiv 2401.04658, 2501.08313), which decays each head at a fixed rate: pytorch/helion,
// examples/fla/BENCHMARKS.md, retention on an H100. 16,384 tokens of 64 heads take 1.147 ms, and 4.524 ms in
// both passes.
//
// Mamba-2 (arXiv 2405.21060): half of that rate. FLA's pull request 50 measures its own kernels (the form
// with a decay by token) and those of mamba_ssm at one shape: 3.07 and 6.25 ms. No row of its backward was
// found; it is as many times its forward as retention's.
inline constexpr RecurrenceFacts kRecurrences[] = {
    {.rule = Recurrence::gated_delta,
     .name = "gated delta net",
     .delta = true,
     .inputs_of_head = 2,
     .learned_of_head = 2,
     .norms_heads_alone = true,
     .efficiency = 0.101,
     .backward = 3.06},
    {.rule = Recurrence::kimi_delta,
     .name = "Kimi delta attention",
     .delta = true,
     .inputs_of_head = 1,
     .learned_of_head = 1,
     .decays_by_channel = true,
     .norms_heads_alone = true,
     .efficiency = 0.0438,
     .backward = 3.27},
    {.rule = Recurrence::mamba2,
     .name = "Mamba-2",
     .inputs_of_head = 1,
     .learned_of_head = 3,
     .convolution_bias = true,
     .efficiency = 0.0446,
     .backward = 2.94},
    {.rule = Recurrence::lightning, .name = "lightning attention", .efficiency = 0.0908, .backward = 2.94},
    {.rule = Recurrence::convolution, .name = "short convolution", .state = false},
};
static_assert(
    [] {
      std::size_t place = 0;
      for (const RecurrenceFacts& facts : kRecurrences)
        if (at(facts.rule) != place++) return false;
      return true;
    }(),
    "the rules are in the order of their enumerators");

constexpr const RecurrenceFacts& facts_of(Recurrence rule) {
  return kRecurrences[at(rule)];
}

struct RecurrentShape {
  Recurrence rule{};
  int key_heads = 0;                // heads of q and k; each serves as many heads of v
  int heads = 0;                    // heads of v, each with a state
  int key_dim = 0;                  // rows of a state
  int value_dim = 0;                // columns of a state
  int convolution = 0;              // tokens that the short convolution sees; 0: there is none
  std::vector<bool> layers{};       // by layer: whether it has the recurrence in place of attention
  std::vector<bool> without_ffn{};  // by layer: whether no FFN follows; if empty all layers have one
  bool next_to_attention = false;   // whether these layers attend, too, and add up what both make

  // What one of `tensor` TP ranks computes, which replicate heads of q and k if there are fewer than ranks.
  [[nodiscard]] RecurrentShape of_rank(int tensor) const {
    return {rule, std::max(1, key_heads / tensor), heads / tensor, key_dim, value_dim, convolution};
  }
  // What a TP rank computes once its heads are shared out over `context` CP ranks: heads of q and k are
  // replicated if there are fewer than ranks (Megatron-core's mamba_context_parallel.py).
  [[nodiscard]] RecurrentShape shared_out(int context) const {
    return {rule, std::max(key_heads, context), heads, key_dim, value_dim, convolution};
  }
  [[nodiscard]] const RecurrenceFacts& facts() const { return facts_of(rule); }
  [[nodiscard]] std::int64_t key_width() const { return std::int64_t{key_heads} * key_dim; }
  [[nodiscard]] std::int64_t value_width() const { return std::int64_t{heads} * value_dim; }
  // Elements of a token's q, k and v.
  [[nodiscard]] std::int64_t mixed_width() const { return 2 * key_width() + value_width(); }
  // Those that the convolution smooths: all of them, or the product of k and v.
  [[nodiscard]] std::int64_t smoothed_width() const { return facts().state ? mixed_width() : value_width(); }
  // Elements that a token's fused input projection makes: q, k, v, and what each head takes. A gate as wide
  // as v is among them, and the decays of channels are not, where these come of two thin products each.
  [[nodiscard]] std::int64_t input_width() const {
    const bool gate = facts().state && !facts().decays_by_channel;
    return mixed_width() + (gate ? value_width() : 0) + std::int64_t{facts().inputs_of_head} * heads;
  }
  // Elements that all input projections of a token make, with the decays of channels and their gate.
  [[nodiscard]] std::int64_t projected_width() const {
    return input_width() + (facts().decays_by_channel ? key_width() + value_width() : 0);
  }
  // Learned numbers outside the projections: of the convolution, the decays and the output's norm.
  [[nodiscard]] std::int64_t other_parameters() const {
    const std::int64_t taps = convolution + (convolution > 0 && facts().convolution_bias ? 1 : 0);
    const std::int64_t scales = facts().norms_heads_alone ? value_dim : value_width();
    return taps * smoothed_width() + std::int64_t{facts().learned_of_head} * heads +
           (facts().decays_by_channel ? key_width() : 0) + (facts().state ? scales : 0);
  }
  // FLOPs of a token's forward by the recurrence itself, token by token: the state is updated and read, and
  // by the delta rule read once more. A convolution's are counted by its parameters.
  [[nodiscard]] double state_flops() const {
    if (!facts().state) return 0;
    return (facts().delta ? 6.0 : 4.0) * heads * key_dim * value_dim;
  }
  // FLOPs of a token's forward by the products of chunks of C tokens. All rules have q k^T and its product
  // with u (2 C (d_k + d_v)), and the state's update and read. The delta rule adds k k^T, the products of its
  // inverse with k and v, and one more product with the state (Gated DeltaNet, arXiv 2412.06464,
  // section 3.3). All are counted for each head of v, as FLA runs them, also Mamba-2's q k^T, which mamba_ssm
  // computes once for the heads that share q and k.
  [[nodiscard]] double chunk_flops() const {
    if (!facts().state) return 0;
    const double within = 2.0 * kRecurrenceChunk;
    return heads * within * (facts().delta ? 3.0 * key_dim + 2.0 * value_dim : key_dim + value_dim) +
           state_flops();
  }
};

}  // namespace equipoise
