#include "sim/workload/model.h"

#include <sstream>

#include "policies/base/error.h"
#include "policies/base/text.h"

namespace equipoise {

std::int64_t ModelShape::kv_width() const {
  if (indexer) return mla->kv_lora + mla->rope_dim + indexer->dim;  // the latent key and the indexer's
  if (mla) return std::int64_t{heads} * (mla->nope_dim + mla->rope_dim + mla->v_dim);
  return 2 * std::int64_t{kv_heads} * head_dim;
}

std::int64_t ModelShape::kv_width_of_rank(int tensor) const {
  if (indexer) return kv_width();  // which all heads share
  return mla ? kv_width() / tensor : 2 * std::int64_t{std::max(1, kv_heads / tensor)} * head_dim;
}

namespace {

// Sums the weights of a layer's linear layers, each as often as `times` says.
template <class Times>
std::int64_t sum_of_weights(const ModelShape& model, int layer, const Times& times) {
  std::int64_t sum = 0;
  for (const LinearLayer& l : model.linear_layers(layer)) sum += times(l) * l.in * l.out;
  return sum;
}

bool in_mixer(const LinearLayer& l) {
  return l.weights == WeightKind::qkv || l.weights == WeightKind::proj;
}

// Attention's parameters besides its linear layers: biases, and the norms of compressed vectors.
std::int64_t attention_biases(const ModelShape& m) {
  return m.qkv_bias && !m.mla ? (m.heads + 2 * std::int64_t{m.kv_heads}) * m.head_dim : 0;
}
std::int64_t latent_norms(const ModelShape& m) {
  return m.mla ? norm_of(m.norm).parameters * (m.mla->q_lora + m.mla->kv_lora) : 0;
}
// What a layer's mixer learns besides linear layers, by what trains with it.
std::int64_t trained_with_qkv(const ModelShape& m, int layer) {
  const Mixer mixer = mixer_of(m.kind(layer));
  return (recurs(mixer) ? m.recurrence->other_parameters() : 0) + (attends(mixer) ? attention_biases(m) : 0);
}
std::int64_t trained_with_norms(const ModelShape& m, int layer) {
  const std::int64_t of_index_keys = m.has_indexer(layer) ? 2 * std::int64_t{m.indexer->dim} : 0;
  return attends(mixer_of(m.kind(layer))) ? latent_norms(m) + of_index_keys : 0;
}

}  // namespace

std::int64_t ModelShape::mixer_parameters(int layer) const {
  return sum_of_weights(*this, layer, [](const LinearLayer& l) { return in_mixer(l) ? l.count : 0; }) +
         trained_with_qkv(*this, layer) + trained_with_norms(*this, layer);
}

std::int64_t ModelShape::ffn_parameters(int layer) const {
  return sum_of_weights(*this, layer, [](const LinearLayer& l) { return in_mixer(l) ? 0 : l.count; });
}

std::int64_t ModelShape::routed_parameters(int layer) const {
  return sum_of_weights(*this, layer, [](const LinearLayer& l) { return l.routed ? l.count : 0; });
}

std::int64_t ModelShape::layer_parameters(int layer) const {
  return mixer_parameters(layer) + ffn_parameters(layer) + layer_norm_parameters(layer);
}

std::vector<LinearLayer> ModelShape::linear_layers(int layer) const {
  std::vector<LinearLayer> all;
  const auto add = [&](WeightKind weights, std::int64_t in, std::int64_t out, std::int64_t count = 1,
                       bool routed = false) {
    all.push_back({weights, in, out, count, routed});
  };
  const Mixer mixer = mixer_of(kind(layer));
  if (recurs(mixer)) {
    const RecurrentShape& r = *recurrence;
    add(WeightKind::qkv, hidden, r.input_width());
    // Thin products, of the rank of a head's width: for the decays of channels, and for the output's gate.
    for (const std::int64_t width : {r.key_width(), r.value_width()})
      if (r.facts().decays_by_channel) {
        add(WeightKind::qkv, hidden, r.value_dim);
        add(WeightKind::qkv, r.value_dim, width);
      }
    add(WeightKind::proj, r.value_width(), hidden);
  }
  if (attends(mixer) && mla) {
    const std::int64_t q_width = std::int64_t{heads} * (mla->nope_dim + mla->rope_dim);
    if (mla->q_lora > 0) add(WeightKind::qkv, hidden, mla->q_lora);
    add(WeightKind::qkv, mla->q_lora > 0 ? mla->q_lora : hidden, q_width);
    add(WeightKind::qkv, hidden, mla->kv_lora + mla->rope_dim);
    add(WeightKind::qkv, mla->kv_lora, std::int64_t{heads} * (mla->nope_dim + mla->v_dim));
    add(WeightKind::proj, std::int64_t{heads} * value_dim(), hidden);
    if (has_indexer(layer)) {
      add(WeightKind::qkv, mla->q_lora, std::int64_t{indexer->heads} * indexer->dim);
      add(WeightKind::qkv, hidden, indexer->dim);
      add(WeightKind::qkv, hidden, indexer->heads);
    }
  } else if (attends(mixer)) {
    add(WeightKind::qkv, hidden, ((gated_attention ? 2 : 1) * heads + 2 * std::int64_t{kv_heads}) * head_dim);
    add(WeightKind::proj, query_width(), hidden);
  }
  if (!has_ffn(layer)) return all;
  const auto add_ffn = [&](std::int64_t width, std::int64_t count, bool routed) {
    add(WeightKind::fc1, hidden, (gated_ffn ? 2 : 1) * width, count, routed);
    add(WeightKind::fc2, width, hidden, count, routed);
  };
  if (!is_moe_layer(layer)) {
    add_ffn(ffn, 1, false);
    return all;
  }
  add_ffn(moe->expert_ffn, moe->experts, true);
  if (moe->shared_width() > 0) add_ffn(moe->shared_width(), 1, false);
  add(WeightKind::router, hidden, moe->experts);
  return all;
}

std::int64_t ModelShape::adapter_parameters(int layer, bool routed) const {
  if (training.adapted == 0) return 0;
  std::int64_t sum = 0;
  for (const LinearLayer& l : linear_layers(layer))
    if (l.routed == routed && training.adapts(l.weights)) sum += l.count * training.lora_dim * (l.in + l.out);
  return sum;
}

std::int64_t ModelShape::trained_parameters(int layer, bool routed) const {
  if (layer < training.frozen_layers) return 0;
  std::int64_t sum =
      adapter_parameters(layer, routed) + sum_of_weights(*this, layer, [&](const LinearLayer& l) {
        return l.routed == routed && training.trains(l.weights) ? l.count : 0;
      });
  if (routed) return sum;
  if (training.trains(WeightKind::norms))
    sum += layer_norm_parameters(layer) + trained_with_norms(*this, layer);
  if (training.trains(WeightKind::qkv)) sum += trained_with_qkv(*this, layer);
  return sum;
}

std::int64_t ModelShape::trained_parameters() const {
  std::int64_t sum = training.trains(WeightKind::norms) ? head().norms : 0;
  if (training.trains(WeightKind::embedding)) sum += embedding_parameters();
  if (training.trains(WeightKind::head))
    sum += (tied_embeddings ? 0 : embedding_parameters()) + head().projections;
  for (int layer = 0; layer < all_layers(); ++layer)
    sum += trained_parameters(layer, false) + trained_parameters(layer, true);
  return sum;
}

std::int64_t ModelShape::parameters() const {
  std::int64_t sum = embedding_parameters() * (tied_embeddings ? 1 : 2) + head().norms + head().projections;
  for (int layer = 0; layer < all_layers(); ++layer) sum += layer_parameters(layer);
  return sum;
}

// The weights of the head by which a token's logits are computed.
static std::int64_t active_head(const ModelShape& m) {
  return m.head().passes() * m.embedding_parameters() + m.head().projections;
}

// How often a token visits a linear layer: it visits only the active experts.
static std::int64_t visited(const ModelShape& m, const LinearLayer& l) {
  return l.routed ? m.moe->active : l.count;
}

std::int64_t ModelShape::active_matmul_parameters() const {
  std::int64_t sum = active_head(*this);
  for (int layer = 0; layer < all_layers(); ++layer)
    sum += sum_of_weights(*this, layer, [&](const LinearLayer& l) { return visited(*this, l); }) +
           trained_with_qkv(*this, layer) + trained_with_norms(*this, layer);
  return sum;
}

ModelShape::FrozenAndAdapters ModelShape::active_frozen_parameters() const {
  FrozenAndAdapters sum;
  if (training.frozen == 0) return sum;  // the embedding is frozen if any layer is
  if (!training.trains(WeightKind::head)) sum.frozen += active_head(*this);
  for (int layer = 0; layer < all_layers(); ++layer)
    for (const LinearLayer& l : linear_layers(layer)) {
      const std::int64_t times = visited(*this, l);
      if (layer < training.frozen_layers)
        sum.frozen += 2 * times * l.in * l.out;
      else if (!training.trains(l.weights))
        sum.frozen += times * l.in * l.out;
      if (training.adapts(l.weights)) sum.adapters += times * training.lora_dim * (l.in + l.out);
    }
  return sum;
}

LayerCounts ModelShape::layer_counts(int begin, int end) const {
  LayerCounts counts{};
  for (int layer = begin; layer < end; ++layer) ++counts[at(kind(layer))];
  return counts;
}

int ModelShape::layers_of(Mixer mixer) const {
  const LayerCounts counts = layer_counts();
  int sum = 0;
  for (int k = 0; k < kLayerKinds; ++k)
    if (mixer_of(static_cast<LayerKind>(k)) == mixer) sum += counts[at(k)];
  return sum;
}

double ModelShape::training_flops(double tokens, double causal_pairs, double window_pairs) const {
  std::array<double, kMixers> passed{};  // layers, where a forward alone counts as a third
  int scoring = 0, learning = 0;         // layers with an indexer
  for (int layer = 0; layer < all_layers(); ++layer) {
    const bool frozen = layer < training.frozen_layers;
    passed[at(mixer_of(kind(layer)))] += frozen ? 1.0 / 3 : 1;
    scoring += has_indexer(layer) ? 1 : 0;
    learning += has_indexer(layer) && indexer_learns() && !frozen ? 1 : 0;
  }
  const double attention = 3.0 * 2.0 * (head_dim + value_dim()) * heads;
  const FrozenAndAdapters of_training = active_frozen_parameters();
  const double products = 6.0 * as_double(active_matmul_parameters() + of_training.adapters) -
                          2.0 * as_double(of_training.frozen);
  const double recurrent = recurrence ? 3.0 * recurrence->state_flops() : 0;
  const double parallel = passed[at(Mixer::parallel)];
  const double all = passed[at(Mixer::attention)];
  const double scores =
      indexer ? indexer->pair_flops() * (scoring * causal_pairs + 2 * learning * window_pairs) : 0;
  return products * tokens + scores + attention * (all + parallel) * (indexer ? window_pairs : causal_pairs) +
         attention * passed[at(Mixer::window)] * window_pairs +
         recurrent * (passed[at(Mixer::recurrence)] + parallel) * tokens;
}

namespace {

ModelShape dense(std::string name, int layers, std::int64_t hidden, int heads, int kv_heads, int head_dim,
                 std::int64_t ffn, std::int64_t vocab, bool tied = false, bool qkv_bias = false) {
  ModelShape m;
  m.name = std::move(name);
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.head_dim = head_dim;
  m.ffn = ffn;
  m.vocab = vocab;
  m.tied_embeddings = tied;
  m.qkv_bias = qkv_bias;
  return m;
}

// DeepSeek's latent attention. `groups` is the number of the router's eight groups that a token's experts
// come from; 0 if it has none.
ModelShape latent(ModelShape m, const MoeShape& moe, int groups_of_token) {
  m.moe = moe;
  m.moe->groups = groups_of_token > 0 ? 8 : 0;
  m.moe->groups_of_token = groups_of_token;
  m.mla = MlaShape{1536, 512, 128, 64, 128};
  return m;
}

// Attention to at most 2,048 keys that an indexer of so many heads chooses.
ModelShape indexed(ModelShape m, int heads) {
  m.indexer = IndexerShape{heads, 128, 2048};
  return m;
}

ModelShape glm5() {
  ModelShape m = latent(dense("glm-5", 78, 6144, 64, 64, 256, 12288, 154880), {256, 8, 1, 2048, 3}, 0);
  m.mla = MlaShape{2048, 512, 192, 64, 256};
  return indexed(std::move(m), 32);
}

// All layers have experts, and there is no other FFN.
ModelShape sparse(ModelShape m, int experts, int active) {
  m.moe = MoeShape{experts, active, 0, m.ffn, 0};
  return m;
}

ModelShape gpt_oss(std::string name, int layers, int experts) {
  ModelShape m =
      sparse(dense(std::move(name), layers, 2880, 64, 8, 64, 2880, 201088, false, true), experts, 4);
  m.moe->bias = true;
  m.sliding_window = 128;  // every other layer, beginning with the first
  for (int layer = 0; layer < layers; ++layer) m.sliding_layers.push_back(layer % 2 == 0);
  return m;
}

// Three of four layers attend in chunks, and the fourth, without positions, to everything. Every layer, or
// every other, has a shared expert in addition to the routed one.
ModelShape llama4(std::string name, int experts, int every) {
  ModelShape m = dense(std::move(name), 48, 5120, 40, 8, 128, 16384, 202048);
  m.moe = MoeShape{experts, 1, 1, 8192, 0};
  m.sliding_window = 8192;
  m.chunked = true;
  for (int layer = 0; layer < m.layers; ++layer) {
    m.moe->sparse.push_back((layer + 1) % every == 0);
    m.sliding_layers.push_back((layer + 1) % 4 != 0);
  }
  return m;
}

// One shared expert in addition to the routed ones, and dense layers first.
ModelShape glm(ModelShape m, const MoeShape& moe) {
  m.moe = moe;
  return m;
}

const std::vector<ModelShape>& shapes() {
  static const std::vector<ModelShape> all = {
      dense("llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
      dense("llama3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256),
      dense("llama3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
      dense("llama3.1-405b", 126, 16384, 128, 8, 128, 53248, 128256),
      dense("qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, true, true),
      dense("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, false, true),
      dense("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, false, true),
      dense("qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064, false, true),
      dense("qwen2.5-72b", 80, 8192, 64, 8, 128, 29568, 152064, false, true),
      dense("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, true),
      dense("qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, true),
      dense("qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, true),
      dense("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936),
      dense("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936),
      dense("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936),
      sparse(dense("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 151936), 128, 8),
      sparse(dense("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 151936), 128, 8),
      sparse(dense("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000), 8, 2),
      sparse(dense("mixtral-8x22b", 56, 6144, 48, 8, 128, 16384, 32768), 8, 2),
      gpt_oss("gpt-oss-20b", 24, 32),
      gpt_oss("gpt-oss-120b", 36, 128),
      glm(dense("glm-4.5", 92, 5120, 96, 8, 128, 12288, 151552, false, true), {160, 8, 1, 1536, 3}),
      glm(dense("glm-4.5-air", 46, 4096, 96, 8, 128, 10944, 151552, false, true), {128, 8, 1, 1408, 1}),
      llama4("llama4-scout", 16, 1),
      llama4("llama4-maverick", 128, 2),
      latent(dense("deepseek-v2", 60, 5120, 128, 128, 192, 12288, 102400), {160, 6, 2, 1536, 1}, 3),
      latent(dense("deepseek-v3", 61, 7168, 128, 128, 192, 18432, 129280), {256, 8, 1, 2048, 3}, 4),
      indexed(latent(dense("deepseek-v3.2", 61, 7168, 128, 128, 192, 18432, 129280), {256, 8, 1, 2048, 3}, 4),
              64),
      glm5(),
      latent(dense("kimi-k2", 61, 7168, 64, 64, 192, 18432, 163840), {384, 8, 1, 2048, 1}, 0),
      dense("wlb-550m", 16, 1536, 12, 12, 128, 4096, 32000),
      dense("wlb-30b", 48, 7168, 56, 56, 128, 19200, 32000),
      dense("wlb-70b", 80, 8192, 64, 64, 128, 24576, 32000),
  };
  return all;
}

}  // namespace

std::span<const ModelShape> builtin_models() {
  return shapes();
}

const ModelShape& builtin_model(std::string_view name) {
  return find_named(shapes(), name, "model");
}

void check_model_size(const ModelShape& model, const std::string& where) {
  constexpr double kMostParameters = 1e15;
  constexpr double kMostWidth = 1 << 30;  // for all heads together; for experts
  const auto of = [](std::int64_t value) { return as_double(value); };
  double head = of(model.head_dim), low_rank = 0;
  if (model.mla) {
    head += of(model.mla->nope_dim) + of(model.mla->rope_dim) + of(model.mla->v_dim);
    low_rank = of(model.mla->q_lora) + of(model.mla->kv_lora);
  }
  double width = head * of(std::max(model.heads, model.kv_heads));
  if (model.indexer) width += of(model.indexer->heads) * of(model.indexer->dim);
  if (model.recurrence) {
    const RecurrentShape& r = *model.recurrence;
    width = std::max(width, of(r.input_width()) + as_double(r.key_dim) * r.value_dim);
  }
  const double experts = model.moe ? of(model.moe->experts) + of(model.moe->shared) : 0;
  const double hidden = of(model.hidden);
  double layer = (4 * hidden + low_rank) * width + 2 * hidden * (1 + low_rank) + 3 * hidden * of(model.ffn);
  if (model.moe) layer += experts * hidden * (3 * of(model.moe->expert_ffn) + 1);
  const double parameters = layer * of(model.layers) + 2 * hidden * of(model.vocab);
  if (parameters <= kMostParameters && width <= kMostWidth && experts <= kMostWidth) return;
  std::ostringstream found;
  found << parameters << " parameters, heads of " << width << " in all, " << experts << " experts";
  throw UserError(where,
                  ": expected a model of at most 1e15 parameters, heads of at most 2^30 in all and 2^30 "
                  "experts, found ",
                  found.str());
}

}  // namespace equipoise
