// Host floats into and out of device memory of the backend's element type.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace equipoise::execution {

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
