// Device memory for a rank's activations. Released memory is kept for the next request of the same size
// class, since a step requests the same sizes again and again and fresh memory costs page faults.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace equipoise::execution {

// A piece of device memory with shared ownership, because a backward needs activations that others also hold.
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

// Each rank has one, used by one thread. It must outlive every Memory that it gave.
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
  // Four classes per octave, so that at most a quarter is wasted.
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

// --- Copies of host floats to and from device memory of the backend's element type.

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

}  // namespace equipoise::execution
