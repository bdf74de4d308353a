// One reader a format. Each takes the decompressed bytes and the file's name (for errors), gives lengths in
// file order, and throws UserError for anything it does not understand. None of them allocates by a number it
// has not checked against the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "traces/trace.h"

namespace equipoise {

namespace formats {

using Lengths = std::vector<std::int64_t>;

Lengths read_text(std::string_view bytes, const std::string& name);
Lengths read_csv(std::string_view bytes, const std::string& name, const std::string& column, char separator);
Lengths read_jsonl(std::string_view bytes, const std::string& name, const std::string& field);
Lengths read_npy(std::string_view bytes, const std::string& name);
Lengths read_megatron_idx(std::string_view bytes, const std::string& name);
Lengths read_datatrove_index(std::string_view bytes, const std::string& name);
Lengths read_megatron_mock(std::string_view bytes, const std::string& name, const TraceReadOptions& options);

std::string text_bytes(const Lengths& lengths);

// `value` is a length: in [1, kLongestDocument]. `where` is "file:line" or "file: document 3". Inline: hot.
[[noreturn]] void refuse_length(const std::string& where, std::string_view found);
inline bool is_length(std::int64_t value) {
  return value >= 1 && value <= kLongestDocument;
}

// A number as it stands in text, without sign or fraction; -1 if `text` is anything else. A number above
// kLongestDocument gives one that is_length refuses.
std::int64_t parse_length(std::string_view text);

std::string_view trimmed(std::string_view text);  // spaces, tabs and carriage returns removed at both ends
std::string shown(std::string_view found);        // quoted and shortened, for an error

}  // namespace formats

// Whole files as bytes, unpacked block by block by what their first bytes say, and the inverse. Length files
// are small (a million lengths are about 5 MB as text), so one buffer is the fastest and simplest form; how
// large it may get is --max-input-MB (policies/base/files.h).

namespace formats {

enum class Compression { none, gzip, zstd };

Compression compression_of(std::string_view bytes);        // by the magic number
Compression compression_of_suffix(std::string_view path);  // .gz, .zst
std::string_view without_compression_suffix(std::string_view path);

inline constexpr std::string_view kDocumentLengths = "document lengths";
// What the file holds, and how it was packed. `holds`: what the error says that it was to hold. Throws
// UserError, for a small file that unpacks to a huge one (a bomb), too.
struct Unpacked {
  std::string bytes;
  Compression how = Compression::none;
};
Unpacked read_file(const std::string& path, std::string_view holds = kDocumentLengths);
Unpacked unpacked(std::string_view bytes, const std::string& name);
std::string compress(std::string_view bytes, Compression how);

// Little-endian load from unaligned bytes; the host is little-endian (checked in bytes.cpp).
template <class T>
T load(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace formats

}  // namespace equipoise
