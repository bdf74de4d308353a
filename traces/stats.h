// What a trace looks like: how long its documents are, where its tokens sit, and how windows cut it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace equipoise {

struct LengthQuantile {
  double share = 0;
  std::int64_t tokens = 0;
};

// Documents with begin <= length < end.
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
  std::vector<LengthQuantile> quantiles;  // of documents: the sorted value at round(share * (documents - 1))
  std::vector<LengthBucket>
      buckets;  // powers of two from 1K up to the longest document; the first starts at 1
  std::int64_t context_window = 0;
  // Concatenate the trace and cut it into windows: mean over the tokens in each part of the window of the
  // length of the slice that holds the token (WLB-LLM Fig. 3). Borders cut slices, so the middle sees longer
  // ones. Empty if the trace does not fill one window.
  std::vector<double> mean_length_by_position;
};

// O(n log n) for the quantiles, and linear in windows for the positions.
TraceStats trace_stats(const Trace& trace, std::int64_t context_window = 131072, int position_bins = 16);

void print_stats_table(const TraceStats& stats, std::ostream& out);
void print_stats_json(const TraceStats& stats, std::ostream& out);
void print_stats_csv(const TraceStats& stats, std::ostream& out);  // one row a bucket

// 1024 -> "1K", 131072 -> "128K", 1536 -> "1.5K", 100 -> "100".
std::string short_tokens(std::int64_t tokens);

}  // namespace equipoise
