// What every op of a rank works with: its device memory, its parameters, the model's sizes on it, its groups.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/executable_step.h"
#include "sim/execution/parameters.h"
#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"
#include "sim/workload/stage_layers.h"

namespace equipoise::execution {

// --- Device memory of a rank's activations. What is given back is kept for the next request of the same size
// class, since a step asks for the same sizes again and again and fresh memory costs page faults.

// A piece of device memory, shared by all who hold it: activations are kept by the backward that needs them.
class Memory {
 public:
  Memory() = default;
  explicit operator bool() const { return block_ != nullptr; }
  [[nodiscard]] void* data() const { return block_ ? block_->data : nullptr; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(data()); }
  [[nodiscard]] std::int32_t* integers() const { return static_cast<std::int32_t*>(data()); }
  void reset() { block_.reset(); }

 private:
  friend class MemoryPool;
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
    class MemoryPool* pool = nullptr;
    Block(void* d, std::size_t b, MemoryPool* p) : data(d), bytes(b), pool(p) {}
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();
  };
  std::shared_ptr<Block> block_;
};

// One per rank, used by one thread. Outlives every Memory that it gave.
class MemoryPool {
 public:
  explicit MemoryPool(kernels::Backend& backend) : backend_(backend) {}
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  ~MemoryPool() {
    for (auto& [bytes, blocks] : free_)
      for (void* block : blocks) backend_.release(block);
  }

  // Uninitialised. Throws std::bad_alloc.
  [[nodiscard]] Memory take(std::size_t bytes) {
    const std::size_t size = size_class(bytes);
    std::vector<void*>& blocks = free_[size];
    void* data = nullptr;
    if (blocks.empty()) {
      data = backend_.allocate(size);
      held_bytes_ += size;
    } else {
      data = blocks.back();
      blocks.pop_back();
    }
    Memory memory;
    memory.block_ = std::make_shared<Memory::Block>(data, size, this);
    return memory;
  }
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }

 private:
  friend struct Memory::Block;
  // Four classes an octave: at most a quarter is left over.
  static std::size_t size_class(std::size_t bytes) {
    const std::size_t least = bytes < 256 ? 256 : bytes;
    const std::size_t step = std::bit_floor(least) / 4;
    return (least + step - 1) / step * step;
  }
  void give_back(void* data, std::size_t bytes) { free_[bytes].push_back(data); }

  kernels::Backend& backend_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;
  std::size_t held_bytes_ = 0;
};

inline Memory::Block::~Block() {
  pool->give_back(data, bytes);
}

// --- Host floats into and out of device memory of the backend's element type.

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
inline float from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline void write_elements(kernels::Backend& backend, void* device, std::span<const float> values) {
  if (backend.element_type() == kernels::ElementType::f32) {
    backend.to_device(device, values.data(), values.size_bytes());
    return;
  }
  std::vector<std::uint16_t> rounded(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = to_bf16(values[i]);
  backend.to_device(device, rounded.data(), rounded.size() * sizeof(std::uint16_t));
}

inline void read_elements(kernels::Backend& backend, const void* device, std::span<float> values) {
  if (backend.element_type() == kernels::ElementType::f32) {
    backend.to_host(values.data(), device, values.size_bytes());
    return;
  }
  std::vector<std::uint16_t> rounded(values.size());
  backend.to_host(rounded.data(), device, rounded.size() * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = from_bf16(rounded[i]);
}

// --- The parameters that one rank holds: its TP shard of every part of its virtual stages, with gradients
// and optimizer states.
//
// A part's tensors lie one after the other, padded so that the replicas can share the part out evenly: its
// gradients are reduced by one collective, its states sharded by one range (ZeRO-1).

// The rank's piece of a tensor of the model: some rows, or some columns of all rows.
struct TensorShard {
  std::size_t tensor = 0;  // in the inventory
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 0;
  std::int64_t offset = 0;  // elements from the part's begin
  bool everywhere = false;  // TP ranks that hold the same piece add up what each of them found for it

  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

struct Part {
  ModelPart kind{};
  int layer = -1;  // of the model
  std::vector<TensorShard> tensors;
  std::int64_t elements = 0;                // a multiple of the replicas
  Memory weights, gradients;                // of the backend's type
  Memory master, mean, square;              // f32, `owned` elements
  std::int64_t first_owned = 0, owned = 0;  // whose states this replica holds
  // Norms lie last. Their gradients are f32: beside the others where the backend's type is another.
  std::int64_t first_norm = 0, norm_elements = 0;
  Memory norm_gradients;
  std::vector<char> touched;  // by tensor: this step has set its gradient
  Memory reduced;             // gradients of the owned elements over all replicas, where there are several
};

struct PartsOptions {
  int replicas = 1;  // data x context
  int replica = 0;
  int tensor_rank = 0;
  std::uint64_t seed = 0;
};

// Heads of one rank, and which.
struct LocalHeads {
  int query = 0, kv = 0;
  int first_query = 0, first_kv = 0;
};
LocalHeads local_heads(const ModelShape& model, int tensor, int tensor_rank);
// Rows [first, first + count) of the vocabulary that a TP rank holds: ceil(vocab / t), the last ones fewer.
struct LocalVocabulary {
  std::int64_t first = 0, count = 0;
};
LocalVocabulary local_vocabulary(const ModelShape& model, int tensor, int tensor_rank);

// Places of a layer's tensors in its part. Gate and up lie together: one product makes both.
struct LayerShards {
  enum : std::size_t { q, k, v, o, gate, up, down, input_norm, post_norm };
};
// Of the head's part, the last tensor is the norm; the first is the head's weights unless it shares them.

// The parts of a virtual stage in backward order (the order of its gradient buckets), with initial weights
// and gradients of zero.
std::vector<Part> make_parts(const ModelShape& model, const Layout& layout, int virtual_stage,
                             const PartsOptions& options, kernels::Backend& backend, MemoryPool& pool);

// Initial weights, gradients and states of zero.
void initialise_parts(const ModelShape& model, std::uint64_t seed, kernels::Backend& backend,
                      std::vector<Part>& parts);
// The same without memory.
std::vector<Part> part_shapes(const ModelShape& model, const Layout& layout, int virtual_stage,
                              const PartsOptions& options);

// Puts a part's values into their place in a whole tensor.
void put_shard(const Tensor& whole, const TensorShard& shard, std::span<const float> part,
               std::span<float> out);

// Where the head's weights are the embedding's, on one rank.
[[nodiscard]] bool shares_embedding(const ModelShape& model, const Layout& layout);

// --- The rank itself

// Ranks that communicate: elements of the backend's type, and f32 (statistics).
struct Group {
  kernels::Communicator* elements = nullptr;
  kernels::Communicator* floats = nullptr;

  [[nodiscard]] int size() const { return elements == nullptr ? 1 : elements->size(); }
  [[nodiscard]] int rank() const { return elements == nullptr ? 0 : elements->rank(); }
};

struct RankContext {
  const ModelShape& model;
  Layout layout;  // the study's; how CP ranks exchange, that of the step that runs
  kernels::Backend& backend;
  MemoryPool& pool;
  RankPlace place;
  LocalHeads heads;
  LocalVocabulary vocabulary;
  std::int64_t ffn = 0;  // of this TP rank
  Group tensor, replicas, stages;
  std::uint64_t seed = 0;
  const RankGrid* grid = nullptr;
  int replica_count = 1;           // data x context
  bool repeats_attention = false;  // of the step that runs: selective recompute
  bool evens_out_stages = false;   // of that step
  const StageTick* tick = nullptr;  // then, of the op that runs

  [[nodiscard]] std::size_t element_bytes() const { return kernels::bytes_of(backend.element_type()); }
  [[nodiscard]] Memory elements(std::int64_t count) const {
    return pool.take(static_cast<std::size_t>(count) * element_bytes());
  }
  [[nodiscard]] Memory floats(std::int64_t count) const {
    return pool.take(static_cast<std::size_t>(count) * sizeof(float));
  }
  // Element `offset` of a buffer of the backend's type.
  [[nodiscard]] void* at(void* data, std::int64_t offset) const {
    return static_cast<char*>(data) + static_cast<std::size_t>(offset) * element_bytes();
  }
  [[nodiscard]] void* at(const Memory& memory, std::int64_t offset) const {
    return at(memory.data(), offset);
  }
  void copy(void* target, const void* source, std::int64_t count) const {
    if (count > 0) backend.copy(target, source, static_cast<std::size_t>(count) * element_bytes());
  }
  void zero(void* target, std::int64_t count) const {
    if (count > 0) backend.clear(target, static_cast<std::size_t>(count) * element_bytes());
  }
  // target += source
  void add(void* target, const void* source, std::int64_t count) const {
    if (count > 0) backend.run(kernels::ResidualAdd{count, target, source, target});
  }
  // Sequence parallelism: rows of this TP rank of `rows` of its CP rank, rounded up.
  [[nodiscard]] std::int64_t sequence_rows(std::int64_t rows) const {
    return (rows + layout.tensor - 1) / layout.tensor;
  }
};

}  // namespace equipoise::execution
