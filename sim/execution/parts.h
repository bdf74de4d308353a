// The parameters that one rank holds: its TP shard of every part of its virtual stages, with gradients and
// optimizer states.
//
// A part's tensors are contiguous and padded so that the replicas can share the part evenly. One collective
// reduces its gradients, and one range shards its states (ZeRO-1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "sim/execution/device_memory.h"
#include "sim/execution/parameters.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"
#include "sim/workload/stage_layers.h"

namespace equipoise::execution {

// The rank's piece of a tensor of the model: some rows, or some columns of all rows.
struct TensorShard {
  std::size_t tensor = 0;  // its number in the inventory
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 0;
  std::int64_t offset = 0;  // elements from the part's beginning
  bool everywhere = false;  // TP ranks that hold the same piece add up their gradients for it

  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

struct Part {
  ModelPart kind{};
  int layer = -1;  // its number in the model
  std::vector<TensorShard> tensors;
  std::int64_t elements = 0;                // rounded up to a multiple of the replicas
  Memory weights, gradients;                // in the backend's type
  Memory master, mean, square;              // f32, `owned` elements
  std::int64_t first_owned = 0, owned = 0;  // range whose states this replica holds
  // Norms come last. Their gradients are f32, in separate memory if the backend's type differs.
  std::int64_t first_norm = 0, norm_elements = 0;
  Memory norm_gradients;
  std::vector<char> touched;  // by tensor: whether this step has set its gradient
  Memory reduced;             // gradients of the owned elements over all replicas, if there are several
};

struct PartsOptions {
  int replicas = 1;  // data x context
  int replica = 0;
  int tensor_rank = 0;
  std::uint64_t seed = 0;
};

// The heads of one rank: first and number.
struct LocalHeads {
  int query = 0, kv = 0;
  int first_query = 0, first_kv = 0;
};
LocalHeads local_heads(const ModelShape& model, int tensor, int tensor_rank);
// Rows [first, first + count) of the vocabulary on a TP rank: ceil(vocab / t), or fewer on the last ranks.
struct LocalVocabulary {
  std::int64_t first = 0, count = 0;
};
LocalVocabulary local_vocabulary(const ModelShape& model, int tensor, int tensor_rank);

// Places of a layer's tensors in its part. Gate and up are adjacent, because one product makes both.
struct LayerShards {
  enum : std::size_t { q, k, v, o, gate, up, down, input_norm, post_norm };
};
// The last tensor of the head's part is the norm. The first is the head's weights, unless they are tied.

// The parts of a virtual stage in backward order (the order of its gradient buckets), with initial weights
// and gradients of zero.
std::vector<Part> make_parts(const ModelShape& model, const Layout& layout, int virtual_stage,
                             const PartsOptions& options, kernels::Backend& backend, MemoryPool& pool);

// Initial weights, gradients and states of zero.
void initialise_parts(const ModelShape& model, std::uint64_t seed, kernels::Backend& backend,
                      std::vector<Part>& parts);
// The same parts without memory.
std::vector<Part> part_shapes(const ModelShape& model, const Layout& layout, int virtual_stage,
                              const PartsOptions& options);

void put_shard(const Tensor& whole, const TensorShard& shard, std::span<const float> part,
               std::span<float> out);

// Whether one rank holds both ends and the head's weights are the embedding's.
[[nodiscard]] bool shares_embedding(const ModelShape& model, const Layout& layout);

}  // namespace equipoise::execution
