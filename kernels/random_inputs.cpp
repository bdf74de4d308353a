#include "kernels/random_inputs.h"

#include <bit>
#include <cmath>
#include <limits>

namespace equipoise::kernels {

static std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

static float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

std::vector<float> random_values(std::int64_t count, float scale, SplitMix64& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const std::uint64_t bits = random.next();
    const float unit = static_cast<float>(bits >> 40U) * 0x1p-24F;  // [0, 1)
    const float magnitude = scale * (0.05F + 0.95F * unit);
    value = (bits & 1U) != 0 ? magnitude : -magnitude;
  }
  return values;
}

std::vector<float> rounded_to(ElementType type, std::vector<float> values) {
  if (type == ElementType::bf16)
    for (float& value : values) value = from_bf16(to_bf16(value));
  return values;
}

Buffer upload_f32(Backend& backend, std::span<const float> values) {
  Buffer buffer(backend, values.size() * sizeof(float));
  backend.to_device(buffer.data(), values.data(), buffer.bytes());
  return buffer;
}

Buffer upload(Backend& backend, std::span<const float> values) {
  if (backend.element_type() == ElementType::f32) return upload_f32(backend, values);
  std::vector<std::uint16_t> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) halves[i] = to_bf16(values[i]);
  Buffer buffer(backend, halves.size() * sizeof(std::uint16_t));
  backend.to_device(buffer.data(), halves.data(), buffer.bytes());
  return buffer;
}

Buffer upload_integers(Backend& backend, std::span<const std::int32_t> values) {
  Buffer buffer(backend, values.size() * sizeof(std::int32_t));
  backend.to_device(buffer.data(), values.data(), buffer.bytes());
  return buffer;
}

Buffer poisoned(Backend& backend, std::int64_t count) {
  return upload(backend,
                std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN()));
}

Buffer poisoned_f32(Backend& backend, std::int64_t count) {
  return upload_f32(
      backend, std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN()));
}

std::vector<float> download_f32(Backend& backend, const Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  backend.synchronize();
  backend.to_host(values.data(), buffer.data(), buffer.bytes());
  return values;
}

std::vector<float> download(Backend& backend, const Buffer& buffer) {
  if (backend.element_type() == ElementType::f32) return download_f32(backend, buffer);
  std::vector<std::uint16_t> halves(buffer.bytes() / sizeof(std::uint16_t));
  backend.synchronize();
  backend.to_host(halves.data(), buffer.data(), buffer.bytes());
  std::vector<float> values(halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) values[i] = from_bf16(halves[i]);
  return values;
}

}  // namespace equipoise::kernels
