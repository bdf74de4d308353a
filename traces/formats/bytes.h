// Reads whole files as bytes, unpacked by the format that their first bytes show, and writes them. Length
// files are small (a million lengths are about 5 MB as text), so one buffer is the fastest and simplest form.
// --max-input-MB (policies/base/files.h) limits its size.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace equipoise::formats {

enum class Compression { none, gzip, zstd };

Compression compression_of(std::string_view bytes);        // recognised by the magic number
Compression compression_of_suffix(std::string_view path);  // .gz, .zst
std::string_view without_compression_suffix(std::string_view path);

inline constexpr std::string_view kDocumentLengths = "document lengths";
// The file's unpacked bytes, and how it was packed. `holds`: the expected contents, for errors. Throws
// UserError, also for a small file that unpacks to a huge one.
struct Unpacked {
  std::string bytes;
  Compression how = Compression::none;
};
Unpacked read_file(const std::string& path, std::string_view holds = kDocumentLengths);
Unpacked unpacked(std::string_view bytes, const std::string& name);
std::string compress(std::string_view bytes, Compression how);

// Loads a little-endian value from unaligned bytes. The host is little-endian, which bytes.cpp checks.
template <class T>
T load(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace equipoise::formats
