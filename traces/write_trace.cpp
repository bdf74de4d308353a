#include <array>

#include "policies/base/atomic_file.h"
#include "policies/base/npy.h"
#include "traces/formats/bytes.h"
#include "traces/formats/formats.h"
#include "traces/trace.h"

namespace equipoise {

void write_trace(const Trace& trace, const std::string& path) {
  const std::string_view inner = formats::without_compression_suffix(path);
  const auto has = [&](std::string_view suffix) {
    return inner.size() >= suffix.size() && inner.substr(inner.size() - suffix.size()) == suffix;
  };
  for (const std::string_view other :
       {".idx", ".ds.index", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})
    if (has(other))
      throw UserError(
          path + ": cannot write " + std::string(other) +
          " files; expected a name that ends with .txt or .npy, and .gz or .zst after it to compress");
  const std::array shape{static_cast<std::int64_t>(trace.lengths.size())};
  const std::string body = has(".npy") ? npy_bytes(shape, trace.lengths) : formats::text_bytes(trace.lengths);
  write_file_atomically(path, formats::compress(body, formats::compression_of_suffix(path)));
}

}  // namespace equipoise
