// Linear recurrences: parameters and FLOPs, counted by hand for each rule.
#include <doctest/doctest.h>

#include <cmath>

#include "sim/workload/model.h"

using namespace equipoise;

namespace {

// 2 heads of q and k, 4 of v; states of 3 x 5; a convolution over 4 tokens. q and k: 6 each, v: 20.
ModelShape hybrid_of(Recurrence rule) {
  ModelShape m;
  m.layers = 2;
  m.hidden = 8;
  m.heads = m.kv_heads = 2;
  m.head_dim = 4;
  m.ffn = 16;
  m.vocab = 32;
  m.recurrence = RecurrentShape{rule, 2, 4, 3, 5, rule == Recurrence::lightning ? 0 : 4, {true, false}, {}};
  return m;
}

}  // namespace

TEST_CASE("The parameters of each rule's mixer") {
  // In: q, k, v, gate, decay and beta. Convolution of 32 channels, rates and shifts of 4 heads, a norm of 5.
  CHECK(hybrid_of(Recurrence::gated_delta).mixer_parameters(0) ==
        8 * (6 + 6 + 20 + 20 + 2 * 4) + 20 * 8 + 4 * 32 + 2 * 4 + 5);
  // In: q, k, v, beta. Decays and gate by two products of rank 5 each. Rates of heads, shifts of channels.
  CHECK(hybrid_of(Recurrence::kimi_delta).mixer_parameters(0) ==
        8 * (32 + 4) + 8 * 5 + 5 * 6 + 8 * 5 + 5 * 20 + 20 * 8 + 4 * 32 + 4 + 6 + 5);
  // In: x, z, B, C, dt. A convolution with a bias; A, D and a shift of heads; a norm of all channels.
  CHECK(hybrid_of(Recurrence::mamba2).mixer_parameters(0) ==
        8 * (32 + 20 + 4) + 20 * 8 + 5 * 32 + 3 * 4 + 20);
  CHECK(hybrid_of(Recurrence::lightning).mixer_parameters(0) == 8 * (32 + 20) + 20 * 8 + 20);
  // In: q, k and v. A convolution of the 20 channels of k times v; neither gate nor norm nor decays.
  CHECK(hybrid_of(Recurrence::convolution).mixer_parameters(0) == 8 * 32 + 20 * 8 + 4 * 20);
  // Attention of the other layer is untouched.
  CHECK(hybrid_of(Recurrence::mamba2).mixer_parameters(1) == 8 * 24 + 8 * 8);
}

TEST_CASE("A recurrence without an FFN has one norm and no more") {
  ModelShape m = hybrid_of(Recurrence::mamba2);
  const std::int64_t whole = m.layer_parameters(0);
  m.recurrence->without_ffn = {true, false};
  CHECK(m.kind(0) == LayerKind::recurrent_alone);
  CHECK(whole - m.layer_parameters(0) == 3 * 8 * 16 + 8);
  CHECK(m.layer_parameters(0) == m.mixer_parameters(0) + 8);
}

TEST_CASE("Half of the heads on each of two ranks, and replicated key heads on eight") {
  const RecurrentShape shape = hybrid_of(Recurrence::gated_delta).recurrence->of_rank(2);
  CHECK(shape.input_width() == 3 + 3 + 10 + 10 + 2 * 2);
  CHECK(hybrid_of(Recurrence::gated_delta).recurrence->of_rank(4).key_heads == 1);
}

TEST_CASE("FLOPs by the recurrence and by the products of its chunks") {
  const ModelShape delta = hybrid_of(Recurrence::gated_delta), mamba = hybrid_of(Recurrence::mamba2);
  // A product with a state of 3 x 5 takes 30 FLOPs. The delta rule has three in each of 4 heads, others two.
  CHECK(delta.recurrence->state_flops() == 4 * 3 * 30);
  CHECK(mamba.recurrence->state_flops() == 4 * 2 * 30);
  // A product of a token with its chunk of 64 takes 128 per channel.
  CHECK(delta.recurrence->chunk_flops() == 4 * 128 * (3 * 3 + 2 * 5) + 4 * 3 * 30);
  CHECK(mamba.recurrence->chunk_flops() == 4 * 128 * (3 + 5) + 4 * 2 * 30);
}

TEST_CASE("A training step's FLOPs: pairs count in layers with attention alone") {
  const ModelShape m = hybrid_of(Recurrence::mamba2);
  const double tokens = 100, pairs = 5050;
  const double products = 6.0 * static_cast<double>(m.active_matmul_parameters()) * tokens;
  CHECK(m.training_flops(tokens, pairs) == products + 3.0 * 240 * tokens + 3.0 * 2 * (4 + 4) * 2 * pairs);
  CHECK(m.training_flops(2 * tokens, 0) == 2 * m.training_flops(tokens, 0));
  ModelShape all = m;
  all.recurrence->layers = {true, true};
  CHECK(all.training_flops(tokens, pairs) == all.training_flops(tokens, 0));
}

TEST_CASE("A layer with attention and a recurrence has the parameters and the FLOPs of both") {
  ModelShape m = hybrid_of(Recurrence::mamba2);
  const std::int64_t recurrence = m.mixer_parameters(0), attention = m.mixer_parameters(1);
  m.recurrence->next_to_attention = true;
  CHECK(m.kind(0) == LayerKind::parallel_dense);
  CHECK(m.mixer_parameters(0) == recurrence + attention);
  CHECK(m.layer_parameters(0) == recurrence + attention + 3 * 8 * 16 + 2 * 8);
  const double tokens = 100, pairs = 5050;
  const double products = 6.0 * static_cast<double>(m.active_matmul_parameters()) * tokens;
  CHECK(m.training_flops(tokens, pairs) ==
        products + 3.0 * 240 * tokens + 2 * 3.0 * 2 * (4 + 4) * 2 * pairs);  // both layers attend
}

TEST_CASE("A gate of attention is projected with the queries") {
  ModelShape m = hybrid_of(Recurrence::gated_delta);
  const std::int64_t plain = m.mixer_parameters(1);
  m.gated_attention = true;
  CHECK(m.mixer_parameters(1) - plain == 8 * 2 * 4);
}
