#include "sim/cost/kept_bytes.h"

#include <algorithm>

#include "policies/base/index.h"
#include "sim/cost/cost_basis.h"

namespace equipoise {
namespace {

// Bytes per element of each tensor that a layer's backward needs.
struct KeptBytes {
  double input = kBf16Bytes;       // input of a linear layer
  double attention = kBf16Bytes;   // attention's output, which is also the next linear layer's input
  double activation = kBf16Bytes;  // input of an FFN's activation
  double activated = 0;            // output of that activation, if it is kept separately from the product
  double routed = 1;  // token copies that experts hold over those sent, as all are padded to the capacity

  KeptBytes(const Layout& layout, const FrameworkOptions& framework) {
    if (!framework.fused_activation || framework.linear_layers == LinearLayers::torch_eager)
      activated = kBf16Bytes;
    if (framework.expert_capacity_factor > 0) routed = framework.expert_capacity_factor;
    if (layout.precision != Precision::fp8) return;
    input = framework.fp8_input_bytes;
    attention = framework.fp8_attention_bytes;
    activation = framework.fp8_activation_bytes;
  }
};

// What adapters keep between their two products, on every TP rank.
double adapter_bytes(const ModelShape& m, LayerKind kind) {
  double products = 0;
  if (m.training.adapted == 0) return 0;
  for (const LinearLayer& l : m.linear_layers(m.first_of(kind)))
    if (m.training.adapts(l.weights)) products += l.routed ? m.moe->active : as_double(l.count);
  return kBf16Bytes * as_double(m.training.lora_dim) * products;
}

// What a recurrence keeps on a TP rank besides its result. mamba_ssm's fused kernel
// (MambaSplitConv1dScanCombinedFn) repeats the convolution in the backward; FLA's delta rules keep its output
// and each chunk's inverse, a row of it for each token and head. Kimi delta attention also keeps as many
// products of q and k with decays (Aqk next to Akk), and what its two pairs of thin products have between
// them. A convolution without a state keeps its input, the product of k and v.
double recurrence_bytes(const RecurrentShape& r) {
  const bool by_channel = r.facts().decays_by_channel;
  const double rows = as_double(r.heads) * as_double(kRecurrenceChunk);
  const double made = r.facts().delta ? as_double(r.mixed_width()) + (by_channel ? 2 : 1) * rows : 0;
  const double thin = by_channel ? 2.0 * r.value_dim : 0;
  const double smoothed = r.facts().state ? 0 : as_double(r.smoothed_width());
  return kBf16Bytes * (as_double(r.projected_width()) + made + thin + smoothed);
}

// What attention to chosen keys keeps of a token on a TP rank in addition to its output: queries before and
// after they enter the latent space, its result there and the keys that heads share, in bf16, and the number
// of each chosen key. An indexer that learns keeps its queries and weights, and a gradient in fp32 of each
// chosen key's score.
double sparse_bytes(const ModelShape& m, double tensor, bool learns) {
  const IndexerShape& indexer = *m.indexer;
  const double latent = as_double(2 * m.mla->kv_lora + m.mla->rope_dim + m.mla->nope_dim) * m.heads / tensor;
  const double own = learns ? indexer.heads * (indexer.dim + 1.0) : 0;
  return kBf16Bytes * (latent + as_double(m.kv_width()) + own) +
         kFp32Bytes * (learns ? 2 : 1) * as_double(indexer.top_keys);
}

}  // namespace

double kept_bytes(const ModelShape& m, const Layout& layout, const FrameworkOptions& framework,
                  LayerKind kind) {
  const KeptBytes kept(layout, framework);
  const bool sparse = is_moe(kind);
  const Mixer mixer = mixer_of(kind);
  const int tensor = layout.tensor;
  const double t = tensor;
  const double h = as_double(m.hidden);
  // Eager PyTorch keeps K and V as attention read them: repeated for all query heads.
  const bool repeated = framework.linear_layers == LinearLayers::torch_eager && !m.mla;
  double queries_and_keys = as_double(m.query_width()) / t * (repeated ? 3 : 1) +
                            (repeated ? 0 : as_double(m.kv_width_of_rank(tensor)));
  if (layout.repeats(RecomputeModule::mla_up_proj))
    queries_and_keys =
        as_double((m.mla->q_lora > 0 ? m.mla->q_lora : m.hidden) + m.mla->kv_lora + m.mla->rope_dim) / t;
  const bool learns = m.indexer_learns() && mixer == Mixer::attention;
  const double attended =
      m.indexer ? sparse_bytes(m, t, learns) : kBf16Bytes * queries_and_keys;  // what attention reads
  const double out_local = as_double(m.heads) * m.value_dim() / t;
  // Inputs and statistics. Norms of an attention and an FFN side by side have one input.
  const int norm_inputs = m.parallel_ffn ? 1 : m.layer_norms(kind);
  double norms = (norm_inputs * h * kBf16Bytes + m.layer_norms(kind) * norm_of(m.norm).kept_row_bytes) / t;
  const Training& training = m.training;
  // By operator: keeps the layer's input and, with TP, the result of its first reduce-scatter; also Q, V,
  // attention and gate.
  if (layout.repeats(RecomputeModule::per_op))
    return kBf16Bytes * ((tensor > 1 ? 2 : 1) * h / t + as_double(m.query_width()) / t +
                         as_double(m.kv_width_of_rank(tensor)) / 2 + out_local + as_double(m.ffn) / t) +
           kFp32Bytes * m.heads / t;
  const bool repeats_norms = layout.repeats(RecomputeModule::layernorm);
  // Bytes that the column-parallel layer after a norm, or its adapter, keeps per element of the norm's
  // output. The adapter keeps what was gathered over TP, which a repeated norm does not restore.
  const auto normed = [&](WeightKind weights, double bytes) {
    const bool gathered = framework.linear_layers != LinearLayers::fused;  // kept as the product read it
    if (training.trains(weights)) return repeats_norms ? 0 : bytes * (gathered ? t : 1);
    return training.adapts(weights) && (tensor > 1 || !repeats_norms) ? kBf16Bytes * t : 0;
  };
  // A router reads the second norm's output in bf16. Shared experts also read that tensor, or its FP8 copy.
  const bool has_own_copy = sparse && kept.input != kBf16Bytes && m.moe->shared_width() > 0;
  const bool routes = training.trains(WeightKind::router) || training.needs_input(WeightKind::fc1);
  const double routed = routes && !repeats_norms ? kBf16Bytes : 0;
  const double of_mixer = normed(WeightKind::qkv, kept.input);
  const double of_ffn = (sparse          ? routed
                         : has_ffn(kind) ? normed(WeightKind::fc1, kept.input)
                                         : 0) +
                        (has_own_copy ? normed(WeightKind::fc1, kept.input) : 0);
  norms += h / t * (m.one_norm ? std::max(of_mixer, of_ffn) : of_mixer + of_ffn);
  const auto ffn_of = [&](double width, bool keeps_output) {
    return width / t *
           ((m.gated_ffn ? 2 * kept.activation + kept.activated : kept.activation) +
            (keeps_output && training.needs_input(WeightKind::fc2) ? kept.input : 0));
  };
  double ffn = 0;
  if (sparse && !layout.repeats(RecomputeModule::moe)) {
    // The active experts' own tensors, and the copies of the inputs sent to them, gathered where they arrive.
    ffn = kept.routed *
          (ffn_of(as_double(m.moe->expert_ffn * m.moe->active), !layout.repeats(RecomputeModule::moe_act)) +
           (training.needs_input(WeightKind::fc1) ? kept.input : 0) * h * m.moe->active *
               layout.expert_tensor_size() / t);
    if (!layout.repeats(RecomputeModule::shared_experts))
      ffn += ffn_of(as_double(m.moe->shared_width()), true);
  } else if (!sparse && has_ffn(kind) && !layout.repeats(RecomputeModule::mlp)) {
    ffn = ffn_of(as_double(m.ffn), true);
  }
  const double attention =
      training.needs_input(WeightKind::proj) ? kept.attention : kBf16Bytes;  // needed by its own backward
  double kept_in_all = norms + ffn + adapter_bytes(m, kind);
  if (recurs(mixer)) {
    const RecurrentShape of_rank = m.recurrence->of_rank(tensor);
    kept_in_all += recurrence_bytes(of_rank.shared_out(layout.context)) +
                   (kBf16Bytes + attention) * as_double(of_rank.value_width());
  }
  if (!attends(mixer)) return kept_in_all;
  // A gate keeps its input and the product, which the output projection reads.
  const double gate = m.gated_attention ? 2 * kBf16Bytes * out_local : 0;
  return kept_in_all + attended + attention * out_local + gate + kFp32Bytes * m.heads / t;
}

}  // namespace equipoise
