// Decides what a file is and hands it to its reader.
#include "traces/trace.h"

#include <algorithm>
#include <array>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/names.h"
#include "policies/base/npy.h"
#include "policies/base/utf8.h"
#include "traces/formats/formats.h"

namespace equipoise {
namespace {

using formats::Lengths;

constexpr std::array<std::string_view, 8> kFormatNames = {
    "automatic", "text", "csv", "jsonl", "npy", "megatron-idx", "datatrove-index", "megatron-mock"};

void refuse_unsupported(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("PAR1") || bytes.starts_with("ARROW1") || name.ends_with(".parquet") ||
      name.ends_with(".arrow"))
    throw UserError(name + ": Parquet and Arrow files are read by the recorder: equipoise trace record " +
                    name + " --out lengths.txt.zst");
}

TraceFormat detect(std::string_view bytes, std::string_view path) {
  if (bytes.starts_with("\x93NUMPY") || path.ends_with(".npy")) return TraceFormat::npy;
  if (bytes.starts_with("MMIDIDX") || path.ends_with(".idx")) return TraceFormat::megatron_idx;
  if (path.ends_with(".ds.index")) return TraceFormat::datatrove_index;
  if (path.ends_with(".csv") || path.ends_with(".tsv")) return TraceFormat::csv;
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) return TraceFormat::jsonl;
  if (path.ends_with(".json")) return TraceFormat::megatron_mock;
  return TraceFormat::text;
}

Lengths read_as(TraceFormat format, std::string_view bytes, const std::string& name,
                const TraceReadOptions& options) {
  const char separator = formats::without_compression_suffix(name).ends_with(".tsv") ? '\t' : ',';
  switch (format) {
    case TraceFormat::csv:
      return formats::read_csv(bytes, name, options.column, separator);
    case TraceFormat::jsonl:
      return formats::read_jsonl(bytes, name, options.column);
    case TraceFormat::npy:
      return formats::read_npy(bytes, name);
    case TraceFormat::megatron_idx:
      return formats::read_megatron_idx(bytes, name);
    case TraceFormat::datatrove_index:
      return formats::read_datatrove_index(bytes, name);
    case TraceFormat::megatron_mock:
      return formats::read_megatron_mock(bytes, name, options);
    case TraceFormat::automatic:
    case TraceFormat::text:
      break;
  }
  return formats::read_text(bytes, name);
}

}  // namespace

std::span<const std::string_view> trace_format_names() {
  return kFormatNames;
}

TraceFormat trace_format(std::string_view name) {
  const auto it = std::find(kFormatNames.begin(), kFormatNames.end(), name);
  if (it != kFormatNames.end()) return static_cast<TraceFormat>(it - kFormatNames.begin());
  refuse_name("--input-format", name, kFormatNames);
}

namespace {

Trace trace_of(const formats::Unpacked& file, const std::string& name, const TraceReadOptions& options) {
  const std::string_view bytes = file.bytes;
  if (file.how == formats::Compression::none &&
      formats::compression_of_suffix(name) != formats::Compression::none)
    throw UserError(name + ": byte 0: the suffix promises a compressed file; found " +
                    formats::shown(bytes.substr(0, 4)));
  refuse_unsupported(bytes, name);
  const TraceFormat format = options.format == TraceFormat::automatic
                                 ? detect(bytes, formats::without_compression_suffix(name))
                                 : options.format;
  Trace trace;
  trace.lengths = read_as(format, bytes, name, options);
  trace.origin = printable(name);
  if (trace.lengths.empty())
    throw UserError(name + ": the trace is empty; expected at least one document length");
  return trace;
}

}  // namespace

Trace read_trace_bytes(std::string_view bytes, const std::string& name, const TraceReadOptions& options) {
  return trace_of(formats::unpacked(bytes, name), name, options);
}

Trace read_trace(const std::string& path, const TraceReadOptions& options) {
  return trace_of(formats::read_file(path), path, options);
}

void write_trace(const Trace& trace, const std::string& path) {
  const std::string_view inner = formats::without_compression_suffix(path);
  for (const std::string_view other :
       {".idx", ".ds.index", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})
    if (inner.ends_with(other))
      throw UserError(
          path + ": cannot write " + std::string(other) +
          " files; expected a name that ends with .txt or .npy, and .gz or .zst after it to compress");
  const std::array shape{static_cast<std::int64_t>(trace.lengths.size())};
  const std::string body =
      inner.ends_with(".npy") ? npy_bytes(shape, trace.lengths) : formats::text_bytes(trace.lengths);
  write_file_atomically(path, formats::compress(body, formats::compression_of_suffix(path)));
}

}  // namespace equipoise
