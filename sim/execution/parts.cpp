#include "sim/execution/parts.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

// Lists what a TP rank holds of a part's tensors.
class ShardList {
 public:
  ShardList(const ModelShape& model, int tensor, int rank)
      : model_(model), inventory_(inventory(model)), tensor_(tensor), rank_(rank) {}

  std::vector<TensorShard> of(ModelPart kind, int layer, bool tied_here) {
    shards_.clear();
    end_ = 0;
    if (kind == ModelPart::embedding) {
      vocabulary(kEmbeddingIndex);
    } else if (kind == ModelPart::head) {
      if (!tied_here) vocabulary(head_index(model_));
      whole(final_norm_index(model_));
    } else {
      of_layer(layer);
    }
    return shards_;
  }

 private:
  void of_layer(int layer) {
    const LocalHeads heads = local_heads(model_, tensor_, rank_);
    const std::int64_t d = model_.head_dim;
    const std::int64_t ffn = model_.ffn / tensor_;
    const bool kv_everywhere = model_.kv_heads < tensor_;
    const auto at = [&](LayerTensor t) { return layer_index(layer, t); };
    rows(at(LayerTensor::q), heads.first_query * d, heads.query * d, false);
    rows(at(LayerTensor::k), heads.first_kv * d, heads.kv * d, kv_everywhere);
    rows(at(LayerTensor::v), heads.first_kv * d, heads.kv * d, kv_everywhere);
    columns(at(LayerTensor::o), heads.first_query * d, heads.query * d);
    rows(at(LayerTensor::gate), rank_ * ffn, ffn, false);
    rows(at(LayerTensor::up), rank_ * ffn, ffn, false);
    columns(at(LayerTensor::down), rank_ * ffn, ffn);
    whole(at(LayerTensor::input_norm));
    whole(at(LayerTensor::post_norm));
  }
  void push(TensorShard shard) {
    shard.offset = end_;
    end_ += shard.elements();
    shards_.push_back(shard);
  }
  void rows(std::size_t tensor, std::int64_t first, std::int64_t count, bool everywhere) {
    push({tensor, first, count, 0, inventory_[tensor].columns, 0, everywhere});
  }
  void columns(std::size_t tensor, std::int64_t first, std::int64_t count) {
    push({tensor, 0, inventory_[tensor].rows, first, count, 0, false});
  }
  // For norms, whose gradient every TP rank finds from other rows under sequence parallelism.
  void whole(std::size_t tensor) { rows(tensor, 0, inventory_[tensor].rows, tensor_ > 1); }
  void vocabulary(std::size_t tensor) {
    const LocalVocabulary part = local_vocabulary(model_, tensor_, rank_);
    rows(tensor, part.first, part.count, false);
  }

  const ModelShape& model_;
  std::vector<Tensor> inventory_;
  int tensor_, rank_;
  std::vector<TensorShard> shards_;
  std::int64_t end_ = 0;
};

void fill_weights(const std::vector<Tensor>& tensors, std::uint64_t seed, const TensorShard& shard,
                  std::span<float> part) {
  const Tensor& whole = tensors[shard.tensor];
  const auto out =
      part.subspan(static_cast<std::size_t>(shard.offset), static_cast<std::size_t>(shard.elements()));
  if (shard.columns == whole.columns) {
    fill_initial(seed, whole, shard.first_row * whole.columns, out);
    return;
  }
  for (std::int64_t row = 0; row < shard.rows; ++row)
    fill_initial(
        seed, whole, (shard.first_row + row) * whole.columns + shard.first_column,
        out.subspan(static_cast<std::size_t>(row * shard.columns), static_cast<std::size_t>(shard.columns)));
}

void allocate(Part& part, kernels::Backend& backend, MemoryPool& pool) {
  const std::size_t element = kernels::bytes_of(backend.element_type());
  const auto elements = static_cast<std::size_t>(part.elements);
  part.weights = pool.take(elements * element);
  part.gradients = pool.take(elements * element);
  const std::size_t state = static_cast<std::size_t>(part.owned) * sizeof(float);
  for (Memory* memory : {&part.master, &part.mean, &part.square}) *memory = pool.take(state);
  if (part.norm_elements > 0)
    part.norm_gradients = pool.take(static_cast<std::size_t>(part.norm_elements) * sizeof(float));
}

void initialise(Part& part, const std::vector<Tensor>& tensors, std::uint64_t seed,
                kernels::Backend& backend) {
  std::vector<float> values(static_cast<std::size_t>(part.elements), 0.0F);
  for (const TensorShard& shard : part.tensors) fill_weights(tensors, seed, shard, values);
  if (backend.element_type() == kernels::ElementType::bf16)
    for (float& value : values) value = rounded_to_bf16(value);
  write_elements(backend, part.weights.data(), values);
  const auto owned = std::span(values).subspan(static_cast<std::size_t>(part.first_owned),
                                               static_cast<std::size_t>(part.owned));
  backend.to_device(part.master.data(), owned.data(), owned.size_bytes());
  backend.clear(part.gradients.data(), values.size() * kernels::bytes_of(backend.element_type()));
  backend.clear(part.mean.data(), owned.size_bytes());
  backend.clear(part.square.data(), owned.size_bytes());
}

}  // namespace

LocalHeads local_heads(const ModelShape& model, int tensor, int rank) {
  LocalHeads heads;
  heads.query = model.heads / tensor;
  heads.first_query = rank * heads.query;
  heads.kv = std::max(1, model.kv_heads / tensor);
  heads.first_kv = model.kv_heads >= tensor ? rank * heads.kv : rank * model.kv_heads / tensor;
  return heads;
}

LocalVocabulary local_vocabulary(const ModelShape& model, int tensor, int rank) {
  const std::int64_t each = (model.vocab + tensor - 1) / tensor;
  const std::int64_t first = std::min(model.vocab, each * rank);
  return {first, std::min(each, model.vocab - first)};
}

bool shares_embedding(const ModelShape& model, const Layout& layout) {
  return model.tied_embeddings && layout.pipeline == 1;
}

void put_shard(const Tensor& whole, const TensorShard& shard, std::span<const float> part,
               std::span<float> out) {
  for (std::int64_t row = 0; row < shard.rows; ++row)
    std::copy_n(part.begin() + shard.offset + row * shard.columns, shard.columns,
                out.begin() + (shard.first_row + row) * whole.columns + shard.first_column);
}

std::vector<Part> part_shapes(const ModelShape& model, const Layout& layout, int virtual_stage,
                              const PartsOptions& options) {
  const std::vector<int> layers = layers_of_stages(model, layout);
  int layer = 0;
  for (int v = 0; v <= virtual_stage; ++v) layer += layers[at(v)];  // one past the last layer
  const std::vector<Tensor> tensors = inventory(model);
  ShardList shards(model, layout.tensor, options.tensor_rank);
  std::vector<Part> parts;
  const std::vector<std::vector<ModelPart>> kinds = backward_parts(model, layout);
  for (const ModelPart kind : kinds[at(virtual_stage)]) {
    Part& part = parts.emplace_back();
    part.kind = kind;
    if (is_layer(kind)) part.layer = --layer;
    part.tensors = shards.of(kind, part.layer, shares_embedding(model, layout));
    const TensorShard& last = part.tensors.back();
    const std::int64_t used = last.offset + last.elements();
    part.elements = (used + options.replicas - 1) / options.replicas * options.replicas;
    part.touched.assign(part.tensors.size(), 0);
    for (const TensorShard& shard : part.tensors)
      if (tensors[shard.tensor].norm) part.norm_elements += shard.elements();
    part.first_norm = used - part.norm_elements;
    part.owned = layout.zero >= 1 ? part.elements / options.replicas : part.elements;
    part.first_owned = layout.zero >= 1 ? options.replica * part.owned : 0;
  }
  return parts;
}

std::vector<Part> make_parts(const ModelShape& model, const Layout& layout, int virtual_stage,
                             const PartsOptions& options, kernels::Backend& backend, MemoryPool& pool) {
  std::vector<Part> parts = part_shapes(model, layout, virtual_stage, options);
  for (Part& part : parts) allocate(part, backend, pool);
  initialise_parts(model, options.seed, backend, parts);
  return parts;
}

void initialise_parts(const ModelShape& model, std::uint64_t seed, kernels::Backend& backend,
                      std::vector<Part>& parts) {
  const std::vector<Tensor> tensors = inventory(model);
  for (Part& part : parts) initialise(part, tensors, seed, backend);
}

}  // namespace equipoise::execution
