// Decides what a file is and hands it to its reader.
#include <algorithm>
#include <array>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/base/utf8.h"
#include "traces/formats/bytes.h"
#include "traces/formats/formats.h"
#include "traces/trace.h"

namespace equipoise {
namespace {

using formats::Lengths;

constexpr std::array<std::string_view, 8> kFormatNames = {
    "automatic", "text", "csv", "jsonl", "npy", "megatron-idx", "datatrove-index", "megatron-mock"};

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

void refuse_unsupported(std::string_view bytes, const std::string& name) {
  if (bytes.substr(0, 4) == "PAR1" || bytes.substr(0, 6) == "ARROW1" || ends_with(name, ".parquet") ||
      ends_with(name, ".arrow"))
    throw UserError(name + ": Parquet and Arrow files are read by the recorder: equipoise trace record " +
                    name + " --out lengths.txt.zst");
}

TraceFormat detect(std::string_view bytes, std::string_view path) {
  if (bytes.substr(0, 6) == "\x93NUMPY" || ends_with(path, ".npy")) return TraceFormat::npy;
  if (bytes.substr(0, 7) == "MMIDIDX" || ends_with(path, ".idx")) return TraceFormat::megatron_idx;
  if (ends_with(path, ".ds.index")) return TraceFormat::datatrove_index;
  if (ends_with(path, ".csv") || ends_with(path, ".tsv")) return TraceFormat::csv;
  if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson")) return TraceFormat::jsonl;
  if (ends_with(path, ".json")) return TraceFormat::megatron_mock;
  return TraceFormat::text;
}

Lengths read_as(TraceFormat format, std::string_view bytes, const std::string& name,
                const TraceReadOptions& options) {
  const char separator = ends_with(formats::without_compression_suffix(name), ".tsv") ? '\t' : ',';
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

Trace read_trace_bytes(std::string_view bytes, const std::string& name, const TraceReadOptions& options) {
  const formats::Compression compression = formats::compression_of(bytes);
  std::string inflated;
  if (compression != formats::Compression::none) {
    inflated = formats::decompress(bytes, compression, name);
    bytes = inflated;
  } else if (formats::compression_of_suffix(name) != formats::Compression::none) {
    throw UserError(name + ": byte 0: the suffix promises a compressed file; found " +
                    formats::shown(bytes.substr(0, 4)));
  }
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

Trace read_trace(const std::string& path, const TraceReadOptions& options) {
  return read_trace_bytes(formats::read_file(path), path, options);
}

}  // namespace equipoise
