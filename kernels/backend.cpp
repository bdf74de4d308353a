#include "kernels/backend.h"

#include <cassert>
#include <cmath>
#include <utility>

namespace equipoise::kernels {

void fill_rope_table(std::span<float> table, int head_dim, double base) {
  assert(head_dim > 0 && table.size() % static_cast<std::size_t>(head_dim) == 0);
  const std::size_t positions = table.size() / static_cast<std::size_t>(head_dim);
  for (std::size_t position = 0; position < positions; ++position) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = static_cast<double>(position) * std::pow(base, -2.0 * i / head_dim);
      const std::size_t at = position * static_cast<std::size_t>(head_dim) + 2 * static_cast<std::size_t>(i);
      table[at] = static_cast<float>(std::cos(angle));
      table[at + 1] = static_cast<float>(std::sin(angle));
    }
  }
}

Buffer::Buffer(Backend& backend, std::size_t bytes)
    : backend_(&backend), data_(backend.allocate(bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  if (backend_ != nullptr) backend_->release(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace equipoise::kernels
