#include "policies/base/npy.h"

#include <bit>
#include <cassert>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string_view>

#include "policies/base/files.h"

namespace equipoise {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) text += std::to_string(size) + ",";  // (n,) is Python's tuple of one
  return text + ")";
}

// Magic, version, length of the text, and the text: a Python dict, filled up with spaces so that the values
// begin at a multiple of 64 bytes.
std::string npy_header(std::string_view type, std::span<const std::int64_t> shape) {
  std::string text =
      "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  constexpr std::size_t kBefore = 10;
  constexpr std::size_t kAlignment = 64;
  text.append((kAlignment - (kBefore + text.size() + 1) % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(text.size() & 0xffU);
  bytes += static_cast<char>(text.size() >> 8U);
  return bytes + text;
}

template <class Value>
std::string typed_npy(std::string_view type, std::span<const std::int64_t> shape,
                      std::span<const Value> values) {
  assert(static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                                                  std::multiplies<>())) == values.size());
  std::string bytes = npy_header(type, shape);
  return bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values) {
  return typed_npy("<i8", shape, values);
}

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values) {
  return typed_npy("<f4", shape, values);
}

void write_npy(const std::string& path, std::span<const std::int64_t> shape, std::span<const float> values) {
  write_file_atomically(path, npy_bytes(shape, values));
}

void write_npy(const std::string& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values) {
  write_file_atomically(path, npy_bytes(shape, values));
}

}  // namespace equipoise
