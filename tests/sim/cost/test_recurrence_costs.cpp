// The cost of linear recurrences: laws of tokens, documents and ranks, and bytes counted by hand.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/cost/kept_bytes.h"
#include "sim/cost/policy_costs.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr auto kRecurrent = static_cast<std::size_t>(LayerKind::recurrent_dense);

// Three of four layers are recurrences.
ModelShape hybrid_model(Recurrence rule = Recurrence::gated_delta) {
  ModelShape m = builtin_model("llama3.1-8b");
  m.recurrence = RecurrentShape{.rule = rule,
                                .key_heads = 16,
                                .heads = 32,
                                .key_dim = 128,
                                .value_dim = 128,
                                .convolution = rule == Recurrence::lightning ? 0 : 4};
  for (int i = 0; i < m.layers; ++i) m.recurrence->layers.push_back(i % 4 != 3);
  return m;
}

Layout on(int tensor, int context, ContextComm form = ContextComm::all_gather) {
  Layout layout;
  layout.tensor = tensor;
  layout.context = context;
  layout.context_comm = form;
  return layout;
}

// What a CP group of `ranks` exchanges when each of them has 1,024 tokens.
ContextExchanges exchanges_of(const Models& models, int ranks) {
  ContextExchanges exchanges;
  RangeUse use;
  ExchangedTokens tokens;
  tokens.distributed = std::int64_t{1024} * ranks;
  tokens.fullest = 1024;
  kRecurrenceForm.exchange(models.costs, tokens, context_group(models.costs, ranks), exchanges, use);
  return exchanges;
}

double bytes_in(std::span<const Op> ops, OpName name) {
  double sum = 0;
  for (const Op& op : ops) sum += op.name == name ? op.bytes : 0;
  return sum;
}

}  // namespace

TEST_CASE("A recurrence takes time by tokens, whatever documents they are of") {
  for (const RecurrenceFacts& facts : kRecurrences) {
    const Models models(hybrid_model(facts.rule), Layout{});
    const MicroBatchCost one = cost_of(models, documents({16384})),
                         many = cost_of(models, documents({8192, 1, 191, 4000, 4000}));
    CHECK(one.forward[kRecurrent].local == many.forward[kRecurrent].local);
    CHECK(one.backward[kRecurrent].local == many.backward[kRecurrent].local);
    CHECK(one.attention_forward[2] == many.attention_forward[2]);
    CHECK(one.forward[0].local[0] > many.forward[0].local[0]);  // attention does care
    const AttentionTimes of_one = models.costs.recurrence.times(8192),
                         of_two = models.costs.recurrence.times(16384);
    CHECK(std::abs(of_two.forward - 2 * of_one.forward) <= 1);
    CHECK(one.attention_forward[2][0] == of_two.forward);
    CHECK(one.attention_backward[2][0] == of_two.backward);
  }
}

TEST_CASE("Its rate is that of the public tables, on the GPU that they were measured on") {
  const Models models(hybrid_model(), Layout{});
  // 8,192 tokens of 32 heads, of an H100 with the peak of the H200 that took 0.472 and 1.444 ms.
  CHECK(models.profile.device().peak_bf16_tflops == doctest::Approx(989).epsilon(0.01));
  const AttentionTimes times = models.costs.recurrence.times(8192);
  CHECK(to_seconds(times.forward) == doctest::Approx(0.472e-3).epsilon(0.01));
  CHECK(to_seconds(times.backward) == doctest::Approx(1.444e-3).epsilon(0.01));
}

TEST_CASE("Ranks of a CP group share its heads, equally, in any form of the attention's exchange") {
  const Models alone(hybrid_model(), Layout{});
  const MicroBatch micro_batch = documents({10000, 300, 5000, 1084});
  const Picoseconds all = cost_of(alone, micro_batch).attention_forward[2][0];
  for (const ContextComm form : {ContextComm::all_gather, ContextComm::ring, ContextComm::ulysses}) {
    const Models models(hybrid_model(), on(1, 4, form));
    const MicroBatchCost cost = cost_of(models, micro_batch);
    CHECK(std::ranges::count(cost.attention_forward[2], cost.attention_forward[2][0]) == 4);
    // Ranks hold padding, too.
    CHECK(static_cast<double>(cost.attention_forward[2][0]) ==
          doctest::Approx(static_cast<double>(all) / 4).epsilon(1e-3));
    CHECK(cost.forward[kRecurrent].syncs() == 2);
    CHECK(cost.backward[kRecurrent].syncs() == 2);
  }
}

TEST_CASE("Its all-to-alls send a rank's projected inputs and bring its results back") {
  const Models models(hybrid_model(), on(2, 4));
  const ContextExchanges exchanges = exchanges_of(models, 4);
  // A TP rank's q, k, v, gate, decay and beta: 8 x 128 twice, 16 x 128 twice, 16 twice; in bf16.
  CHECK(exchanges.forward[0].bytes == 1024 * 2 * (2 * 1024 + 2 * 2048 + 2 * 16));
  CHECK(exchanges.forward[1].bytes == 1024 * 2 * 2048);
  CHECK(exchanges.backward[0].bytes == exchanges.forward[1].bytes);
}

TEST_CASE("Keys are replicated where a CP group has more ranks than they have heads") {
  ModelShape m = hybrid_model(Recurrence::mamba2);
  m.recurrence->key_heads = 2;
  const Models models(m, on(1, 8)), alone(m, Layout{});
  // x and the gate: 32 x 128 each. B and C: a replica of 128 for each of the 8 ranks. 32 steps.
  CHECK(exchanges_of(models, 8).forward[0].bytes == 1024 * 2 * (2 * 4096 + 2 * 8 * 128 + 32));
  // In a group of four there are four replicas.
  CHECK(exchanges_of(models, 4).forward[0].bytes == 1024 * 2 * (2 * 4096 + 2 * 4 * 128 + 32));
  const auto convolved = [&](const Models& of) {
    OpList before, after;
    RangeUse use;
    of.costs.layers.forward(LayerKind::recurrent_dense, 1024, before, after, use);
    return bytes_in(before.ops(), OpName::convolution);
  };
  CHECK(convolved(models) - convolved(alone) == 2 * 2 * 1024 * 2.0 * (8 - 2) * 128);
  const auto kept = [&](const Layout& layout) {
    return kept_bytes(m, layout, FrameworkOptions{}, LayerKind::recurrent_dense);
  };
  CHECK(kept(on(1, 8)) - kept(on(1, 1)) == 2 * 2.0 * (8 - 2) * 128);
  CHECK(kept(on(1, 2)) == kept(on(1, 1)));
}

TEST_CASE("Degrees that its heads do not allow are refused") {
  ModelShape m = hybrid_model();
  const auto refusal = [&](const Layout& layout) {
    try {
      check_layout(m, layout, "study.json");
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal(on(8, 4)) == "");
  CHECK(refusal(on(8, 8)) ==
        "study.json: parallel.context: expected a divisor of the 4 heads of a TP rank's linear recurrences, "
        "found 8");
  CHECK(heads_suit(m, on(8, 1), 4));
  CHECK(!heads_suit(m, on(8, 1), 8));
  CHECK(heads_suit(builtin_model("llama3.1-8b"), on(8, 1), 8));
  m.recurrence->key_heads = 12;
  m.recurrence->heads = 48;
  CHECK(refusal(on(4, 3)) == "");
  CHECK(refusal(on(4, 6)) == "");  // two replicas of each key head
  CHECK(refusal(on(4, 4)) ==
        "study.json: parallel.context: expected a divisor or multiple of the 3 key heads of a TP rank's "
        "linear recurrences, found 4");
}

TEST_CASE("What a recurrence keeps, counted by hand") {
  const ModelShape m = hybrid_model(), mamba = hybrid_model(Recurrence::mamba2);
  const FrameworkOptions framework;
  const auto kept = [&](const ModelShape& model, LayerKind kind) {
    return kept_bytes(model, Layout{}, framework, kind);
  };
  // Attention's Q, K, V and output, with statistics of heads.
  const double attention = 2.0 * (4096 + 2 * 1024) + 2.0 * 4096 + 4.0 * 32;
  // q, k: 2048 each; v, gate: 4096 each; 32 decays and betas. Convolved q, k, v. A chunk's inverse. The
  // result, and the output projection's input.
  const double delta =
      2.0 * (2 * 2048 + 2 * 4096 + 2 * 32) + 2.0 * (2 * 2048 + 4096) + 2.0 * 32 * 64 + 2.0 * (4096 + 4096);
  const double state_space = 2.0 * (2 * 2048 + 2 * 4096 + 32) + 2.0 * (4096 + 4096);
  CHECK(kept(m, LayerKind::recurrent_dense) - kept(m, LayerKind::dense) == delta - attention);
  CHECK(kept(mamba, LayerKind::recurrent_dense) - kept(mamba, LayerKind::dense) == state_space - attention);
  // Decays and gate, and what their thin products have between them; two matrices of each chunk.
  const ModelShape kimi = hybrid_model(Recurrence::kimi_delta);
  const double channels = 2.0 * (2 * 2048 + 4096 + 32 + 2048 + 4096 + 2 * 128) + 2.0 * (2 * 2048 + 4096) +
                          2.0 * 2 * 32 * 64 + 2.0 * (4096 + 4096);
  CHECK(kept(kimi, LayerKind::recurrent_dense) - kept(kimi, LayerKind::dense) == channels - attention);
  // No FFN: a norm's input and output less, and gate, up and their product.
  CHECK(kept(m, LayerKind::recurrent_dense) - kept(m, LayerKind::recurrent_alone) ==
        doctest::Approx(2.0 * 2 * 4096 + norm_of(m.norm).kept_row_bytes + 2.0 * 3 * 14336));
}

TEST_CASE("A layer's ops: projection, convolution, gated norm, output") {
  const Models models(hybrid_model(), Layout{});
  OpList before, after;
  RangeUse use;
  models.costs.layers.forward(LayerKind::recurrent_dense, 4096, before, after, use);
  CHECK(bytes_in(before.ops(), OpName::convolution) == 4096.0 * 2 * 2 * (2 * 2048 + 4096));
  CHECK(bytes_in(before.ops(), OpName::rope) == 0);
  CHECK(after.ops()[0].name == OpName::rms_norm);
  CHECK(after.ops()[0].bytes == 4096.0 * 2 * 3 * 4096);
  CHECK(after.ops()[1].flops == 2.0 * 4096 * 4096 * 4096);
  models.costs.layers.forward(LayerKind::recurrent_alone, 4096, before, after, use);
  CHECK(after.ops().back().name == OpName::residual);
  CHECK(bytes_in(after.ops(), OpName::activation) == 0);
}

TEST_CASE("A short convolution costs the rows that it moves: two products and the convolution between them") {
  const ModelShape m = hybrid_model(Recurrence::convolution);
  const Models models(m, Layout{});
  OpList before, after;
  RangeUse use;
  models.costs.layers.forward(LayerKind::recurrent_dense, 4096, before, after, use);
  // 32 x 128 channels. k times v: reads both, writes one; the result times q: the same.
  CHECK(bytes_in(before.ops(), OpName::activation) == 4096.0 * 2 * 3 * 4096);
  CHECK(bytes_in(before.ops(), OpName::convolution) == 4096.0 * 2 * 2 * 4096);
  CHECK(after.ops()[0].name == OpName::activation);
  CHECK(after.ops()[0].bytes == 4096.0 * 2 * 3 * 4096);
  models.costs.layers.backward(LayerKind::recurrent_dense, 4096, before, after, use);
  CHECK(bytes_in(after.ops(), OpName::activation) == 4096.0 * 2 * 5 * 4096);
  CHECK(bytes_in(after.ops(), OpName::convolution) == 4096.0 * 2 * 3 * 4096);
  CHECK(models.costs.recurrence.times(4096).forward == 0);
  // Kept: q, k and v; their product, which the convolution reads; its result, and that times q.
  const auto kept = [&](LayerKind kind) { return kept_bytes(m, Layout{}, FrameworkOptions{}, kind); };
  const double attention = 2.0 * (4096 + 2 * 1024) + 2.0 * 4096 + 4.0 * 32;
  CHECK(kept(LayerKind::recurrent_dense) - kept(LayerKind::dense) ==
        2.0 * (2 * 2048 + 4096) + 2.0 * 4096 + 2.0 * (4096 + 4096) - attention);
}

TEST_CASE("Next to attention, a recurrence runs behind it and exchanges behind it") {
  ModelShape m = hybrid_model(Recurrence::mamba2);
  m.recurrence->layers.assign(at(m.layers), true);
  ModelShape both = m;
  both.recurrence->next_to_attention = true;
  constexpr auto kParallel = static_cast<std::size_t>(LayerKind::parallel_dense);
  const MicroBatch micro_batch = documents({10000, 300, 5000, 1084});
  for (const int context : {1, 4}) {
    const Layout layout = on(1, context);
    const Models models(both, layout), recurrent(m, layout), attending(builtin_model("llama3.1-8b"), layout);
    const MicroBatchCost cost = cost_of(models, micro_batch), other = cost_of(recurrent, micro_batch),
                         attention = cost_of(attending, micro_batch);
    CHECK(cost.attention_forward[at(Mixer::parallel)] == attention.attention_forward[0]);
    CHECK(cost.attention_backward[2] == other.attention_backward[2]);
    CHECK(cost.forward[kParallel].syncs() ==
          attention.forward[0].syncs() + other.forward[kRecurrent].syncs());
    CHECK(cost.kv_sent_tokens == attention.kv_sent_tokens);
    // One FFN and norm, but both mixers' projections.
    CHECK(cost.compute_forward[kParallel][0] > attention.compute_forward[0][0]);
    CHECK(cost.compute_forward[kParallel][0] <
          attention.compute_forward[0][0] + other.compute_forward[kRecurrent][0]);
  }
  const auto kept = [&](const ModelShape& model, LayerKind kind) {
    return kept_bytes(model, Layout{}, FrameworkOptions{}, kind);
  };
  const double attention = 2.0 * (4096 + 2 * 1024) + 2.0 * 4096 + 4.0 * 32;
  CHECK(kept(both, LayerKind::parallel_dense) == kept(m, LayerKind::recurrent_dense) + attention);
}

TEST_CASE("FSDP copies the weights of the layer's own kind") {
  ModelShape m = hybrid_model();
  m.gated_attention = true;
  Layout layout;
  layout.zero = 3;
  FrameworkOptions framework;
  framework.linear_layers = LinearLayers::torch;
  const Models models(m, layout, framework);
  OpList before, after;
  RangeUse use;
  const double ffn = 3 * 4096.0 * 14336;
  models.costs.layers.forward(LayerKind::recurrent_dense, 4096, before, after, use);
  CHECK(bytes_in(before.ops(), OpName::permute) ==
        4 * (4096.0 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4096.0 * 4096 + ffn));
  models.costs.layers.forward(LayerKind::dense, 4096, before, after, use);
  CHECK(bytes_in(before.ops(), OpName::permute) ==
        4 * (4096.0 * (2 * 4096 + 2 * 1024) + 4096.0 * 4096 + ffn));
}

TEST_CASE("A recomputation that stops early ends before the output projection if no FFN follows") {
  FrameworkOptions framework;
  framework.early_stop = true;
  const Models models(hybrid_model(), Layout{}, framework);
  OpList before, after;
  RangeUse use;
  models.costs.layers.forward(LayerKind::recurrent_alone, 4096, before, after, use);
  std::string once;
  for (const Op& op : after.ops())
    if (op.once) once.append(name_of(op.name)).append(" ");
  CHECK(once == "out_gemm residual ");
}

TEST_CASE("While its all-to-alls run, a rank holds what they send and receive") {
  const auto gathered = [](const ModelShape& m, int context) {
    const Models models(m, on(1, context, ContextComm::ulysses));
    const MicroBatch micro_batches[] = {documents({4096})};
    const std::int64_t tokens[] = {4096 / context},
                       keys[] = {models.memory.gathered_tokens(context, tokens[0], 4096)};
    return models.memory.footprint(0, {micro_batches, tokens, keys, context}, 0).gathered_kv;
  };
  // Twice a rank's projected inputs in bf16, and as much for gradients.
  CHECK(gathered(hybrid_model(), 4) == 2 * 2 * 1024 * 2.0 * (2 * 2048 + 2 * 4096 + 2 * 32));
  CHECK(gathered(builtin_model("llama3.1-8b"), 4) < gathered(hybrid_model(), 4));
  CHECK(gathered(hybrid_model(), 1) == 0);
}

TEST_CASE("Nothing is planned for a recurrence where attention is group-cast") {
  const Models models(hybrid_model(), on(1, 4, ContextComm::group_cast));
  const MicroBatch micro_batch = documents({10000, 300, 5000, 1084});
  const MicroBatchCost cost = cost_of(models, micro_batch);
  const auto tokens = [&](Mixer mixer) {
    return exchanged_tokens(micro_batch, cost.sharding, mixer, models.costs, nullptr);
  };
  CHECK(tokens(Mixer::attention).cast.held > 0);
  CHECK(tokens(Mixer::recurrence).cast.held == 0);
  CHECK(tokens(Mixer::recurrence).fullest == tokens(Mixer::attention).fullest);
  CHECK(tokens(Mixer::recurrence).distributed == tokens(Mixer::attention).distributed);
}

TEST_CASE("Packers see a workload that grows less with a document's length") {
  const Models attends(builtin_model("llama3.1-8b"), Layout{}), recurs(hybrid_model(), Layout{});
  const auto growth = [](const Models& models) {
    const ProfiledWorkload workload(models.costs, 65536);
    const std::int64_t lengths[] = {4096, 65536};
    double seconds[2];
    workload.of(lengths, seconds);
    return seconds[1] / seconds[0] / 16;
  };
  CHECK(growth(recurs) > 1);
  CHECK(growth(recurs) - 1 < 0.5 * (growth(attends) - 1));
}

TEST_CASE("Packers and choosers of degrees see the all-to-alls of recurrences") {
  ModelShape m = hybrid_model();
  m.recurrence->layers.assign(at(m.layers), true);  // nothing else is exchanged
  Layout groups;                                    // four ranks that may form a group
  groups.data = 4;
  const Models models(m, on(1, 4, ContextComm::ring)), alone(m, groups);
  const std::int64_t lengths[] = {8192};
  const auto exchanges = [&](const Models& of, int degree) {
    RangeUse use;
    const ExchangedTokens tokens{.distributed = 8192, .fullest = 8192 / degree};
    return m.layers * to_seconds(exchange_time(kRecurrenceForm, of.costs, tokens, degree, use));
  };
  double of_one = 0, of_four = 0;
  const ProfiledWorkload workload(alone.costs, 8192);
  workload.on_group(lengths, 1, std::span(&of_one, 1));
  workload.on_group(lengths, 4, std::span(&of_four, 1));
  CHECK(exchanges(alone, 4) > 0);
  CHECK(of_four == doctest::Approx(of_one / 4 + exchanges(alone, 4)));
  // A packer's window of 8,192 tokens on four ranks, each of which has 2,048.
  double packed = 0, local = 0;
  const ProfiledWorkload of_window(models.costs, 8192);
  of_window.of(lengths, std::span(&packed, 1));
  of_window.on_group(lengths, 1, std::span(&local, 1));
  CHECK(packed == doctest::Approx(local / 4 + exchanges(models, 4)));
}
