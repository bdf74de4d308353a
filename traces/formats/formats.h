// There is one reader per format. Each takes the decompressed bytes and the file's name (for errors), returns
// lengths in file order, and throws UserError for anything that it does not understand. No reader allocates
// by a number that it has not compared with the size of the file.
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

// Throws UserError unless `value` is a length in [1, kLongestDocument]. `where` is "file:line" or "file:
// document 3". Inline since readers call it for every document.
[[noreturn]] void refuse_length(const std::string& where, std::string_view found);
inline bool is_length(std::int64_t value) {
  return value >= 1 && value <= kLongestDocument;
}

// The value of a number without sign or fraction; -1 for any other text. A number above kLongestDocument
// gives a value that is_length refuses.
std::int64_t parse_length(std::string_view text);

std::string_view trimmed(std::string_view text);  // removes spaces, tabs and carriage returns at both ends
std::string shown(std::string_view found);        // quoted and shortened, for an error

}  // namespace formats

// Reads whole files as bytes, unpacked by the format that their first bytes show, and writes them. Length
// files are small (a million lengths are about 5 MB as text), so one buffer is the fastest and simplest form.
// --max-input-MB (policies/base/files.h) limits its size.

namespace formats {

enum class Compression { none, gzip, zstd };

Compression compression_of(std::string_view bytes);        // by the magic number
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

}  // namespace formats

}  // namespace equipoise
