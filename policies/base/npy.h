// NumPy's .npy files (format 1.0, little-endian, row-major), written whole or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace equipoise {

// A file's bytes. `shape` multiplies to the number of values; {n} is a vector.
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values);
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values);

void write_npy(const std::string& path, std::span<const std::int64_t> shape, std::span<const float> values);
void write_npy(const std::string& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values);

}  // namespace equipoise
