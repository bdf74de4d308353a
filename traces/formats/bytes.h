// Whole files as bytes, decompressed by what their first bytes say, and the inverse. Length files are small
// (a million lengths are about 5 MB as text), so one buffer is the fastest and simplest form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace equipoise::formats {

enum class Compression { none, gzip, zstd };

Compression compression_of(std::string_view bytes);        // by the magic number
Compression compression_of_suffix(std::string_view path);  // .gz, .zst
std::string_view without_compression_suffix(std::string_view path);

inline constexpr std::string_view kDocumentLengths = "document lengths";
// `holds`: what the error says that the file was to hold. Throws UserError.
std::string read_file(const std::string& path, std::string_view holds = kDocumentLengths);
std::string decompress(std::string_view bytes, Compression how, const std::string& name);
std::string compress(std::string_view bytes, Compression how);

// Little-endian load from unaligned bytes; the host is little-endian (checked in bytes.cpp).
template <class T>
T load(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace equipoise::formats
