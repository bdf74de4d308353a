// A trace is the recorded lengths of a stream of documents, in arrival order. This header reads and writes
// it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// The longest document. Products of two lengths, which cost models form, stay exact up to it.
inline constexpr std::int64_t kLongestDocument = std::int64_t{1} << 31;

struct Trace {
  std::vector<std::int64_t> lengths;  // tokens of each document, each in [1, kLongestDocument]
  std::string origin;                 // source, for reports: a path, or a distribution and its seed
};

enum class TraceFormat { automatic, text, csv, jsonl, npy, megatron_idx, datatrove_index, megatron_mock };

struct TraceReadOptions {
  TraceFormat format = TraceFormat::automatic;
  std::string column;  // csv: header name or 0-based index; jsonl: field, dots descend ("meta.tokens")
  std::int64_t documents = 1 << 20;  // megatron_mock: how many lengths are drawn (Megatron draws a million)
  std::uint64_t seed = 0;            // megatron_mock
};

// Reads lengths from a file in any supported format. `automatic` looks at the first bytes, then at the name's
// suffix; .gz and .zst files are decompressed first, whatever they hold. Throws UserError that names the file
// and the line (or byte offset), what was found and what is allowed. O(bytes).
Trace read_trace(const std::string& path, const TraceReadOptions& options = {});

// Reads bytes that are already in memory. `name` gives the path for errors and the suffix.
Trace read_trace_bytes(std::string_view bytes, const std::string& name, const TraceReadOptions& options = {});

// Writes the lengths completely or not at all. The suffix chooses the format: .npy (int64), otherwise one
// integer per line, which .gz and .zst compress.
void write_trace(const Trace& trace, const std::string& path);

// The format of a name as typed after --input-format. Throws UserError with the nearest known name.
TraceFormat trace_format(std::string_view name);

// A source of a mixture and the share of tokens (relative to the other weights) that it should contribute.
struct WeightedTrace {
  const Trace* trace = nullptr;
  double weight = 1;
};

// Interleaves sources. Each document comes from source i with probability proportional to weight_i / mean
// length_i, so that the expected shares of tokens, not of documents, follow the weights. Every source is read
// in its own order. Stops after `documents` (0: no limit) or when the source to read from is exhausted, so
// that the shares hold to the end.
Trace mix_traces(std::span<const WeightedTrace> sources, std::int64_t documents, std::uint64_t seed);

// Statistics of a trace: lengths of its documents, positions of its tokens, and cuts by windows.

struct LengthQuantile {
  double share = 0;
  std::int64_t tokens = 0;
};

// The number of documents with begin <= length < end.
struct LengthBucket {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct TraceStats {
  std::string origin;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  double mean = 0;
  std::vector<LengthQuantile> quantiles;  // the sorted length at round(share * (documents - 1))
  std::vector<LengthBucket>
      buckets;  // powers of two from 1K up to the longest document; the first starts at 1
  std::int64_t context_window = 0;
  // The trace is concatenated and cut into windows. For each part of a window, this is the mean over its
  // tokens of the length of the slice that holds the token (WLB-LLM Fig. 3). Borders cut slices, so slices in
  // the middle are longer. Empty if the trace does not fill one window.
  std::vector<double> mean_length_by_position;
};

// Takes O(n log n) for the quantiles and linear time in windows for the positions.
TraceStats trace_stats(const Trace& trace, std::int64_t context_window = 131072, int position_bins = 16);

void print_stats_table(const TraceStats& stats, std::ostream& out);
void print_stats_json(const TraceStats& stats, std::ostream& out);
void print_stats_csv(const TraceStats& stats, std::ostream& out);  // one row per bucket

// Shortens a number of tokens: 1024 -> "1K", 1536 -> "1.5K", 100 -> "100".
std::string short_tokens(std::int64_t tokens);

}  // namespace equipoise
