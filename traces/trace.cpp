// Recognises the format of a file and calls its reader.
#include "traces/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "traces/formats/arrays.h"
#include "traces/formats/bytes.h"
#include "traces/formats/lines.h"

namespace equipoise {
namespace {

using formats::Lengths;

constexpr std::array<std::string_view, 8> kFormatNames = {
    "automatic", "text", "csv", "jsonl", "npy", "megatron-idx", "datatrove-index", "megatron-mock"};

void refuse_unsupported(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("PAR1") || bytes.starts_with("ARROW1") || name.ends_with(".parquet") ||
      name.ends_with(".arrow"))
    throw UserError(name, ": Parquet and Arrow files are read by the recorder: equipoise trace record ", name,
                    " --out lengths.txt.zst (--field input_ids where it has token ids)");
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

TraceFormat trace_format(std::string_view name) {
  const auto it = std::find(kFormatNames.begin(), kFormatNames.end(), name);
  if (it != kFormatNames.end()) return static_cast<TraceFormat>(it - kFormatNames.begin());
  refuse_name("--input-format", name, kFormatNames);
}

static Trace trace_of(const formats::Unpacked& file, const std::string& name,
                      const TraceReadOptions& options) {
  const std::string_view bytes = file.bytes;
  if (file.how == formats::Compression::none &&
      formats::compression_of_suffix(name) != formats::Compression::none)
    throw UserError(name, ": byte 0: the suffix promises a compressed file; found ",
                    formats::shown(bytes.substr(0, 4)));
  refuse_unsupported(bytes, name);
  const TraceFormat format = options.format == TraceFormat::automatic
                                 ? detect(bytes, formats::without_compression_suffix(name))
                                 : options.format;
  Trace trace;
  trace.lengths = read_as(format, bytes, name, options);
  trace.origin = printable(name);
  if (trace.lengths.empty())
    throw UserError(name, ": the trace is empty; expected at least one document length");
  return trace;
}

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
          path, ": cannot write ", other,
          " files; expected a name that ends with .txt or .npy, and .gz or .zst after it to compress");
  const std::array shape{static_cast<std::int64_t>(trace.lengths.size())};
  const std::string body =
      inner.ends_with(".npy") ? npy_bytes(shape, trace.lengths) : formats::text_bytes(trace.lengths);
  write_file_atomically(path, formats::compress(body, formats::compression_of_suffix(path)));
}

namespace {

constexpr std::array<double, 9> kShares = {0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999};

std::vector<LengthQuantile> quantiles_of(std::vector<std::int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  std::vector<LengthQuantile> quantiles;
  for (const double share : kShares) {
    const double index = std::round(share * static_cast<double>(lengths.size() - 1));
    quantiles.push_back({share, lengths[static_cast<std::size_t>(index)]});
  }
  return quantiles;
}

std::vector<LengthBucket> buckets_of(const std::vector<std::int64_t>& lengths, std::int64_t longest) {
  std::vector<LengthBucket> buckets = {{1, 1024, 0, 0}};
  while (buckets.back().end <= longest) buckets.push_back({buckets.back().end, buckets.back().end * 2, 0, 0});
  for (const std::int64_t length : lengths) {
    std::size_t i = 0;
    for (std::int64_t rest = length >> 10; rest > 0; rest >>= 1) ++i;
    ++buckets[i].documents;
    buckets[i].tokens += length;
  }
  return buckets;
}

// Walks the concatenated trace slice by slice; bins have equal size but for rounding.
class PositionProfile {
 public:
  PositionProfile(std::int64_t window, int bins)
      : window_(window), sum_(static_cast<std::size_t>(bins)), tokens_(static_cast<std::size_t>(bins)) {}

  void add_window(const std::vector<std::int64_t>& slices) {
    std::int64_t begin = 0;
    for (const std::int64_t length : slices) {
      add_slice(begin, begin + length);
      begin += length;
    }
  }
  [[nodiscard]] std::vector<double> means() const {
    std::vector<double> means;
    if (tokens_[0] == 0) return means;
    for (std::size_t i = 0; i < sum_.size(); ++i) means.push_back(sum_[i] / static_cast<double>(tokens_[i]));
    return means;
  }

 private:
  void add_slice(std::int64_t begin, std::int64_t end) {
    const auto bins = static_cast<std::int64_t>(sum_.size());
    const auto length = static_cast<double>(end - begin);
    for (std::int64_t bin = begin * bins / window_; bin < bins && begin < end; ++bin) {
      const std::int64_t stop = std::min(end, ((bin + 1) * window_ + bins - 1) / bins);
      if (stop <= begin) continue;
      const auto i = static_cast<std::size_t>(bin);
      sum_[i] += static_cast<double>(stop - begin) * length;
      tokens_[i] += stop - begin;
      begin = stop;
    }
  }

  std::int64_t window_;
  std::vector<double> sum_;
  std::vector<std::int64_t> tokens_;
};

std::vector<double> profile_of(const std::vector<std::int64_t>& lengths, std::int64_t window, int bins) {
  PositionProfile profile(window, bins);
  std::vector<std::int64_t> slices;
  std::int64_t room = window;
  for (std::int64_t length : lengths) {
    while (length > 0) {
      const std::int64_t slice = std::min(length, room);
      slices.push_back(slice);
      length -= slice;
      room -= slice;
      if (room > 0) continue;
      profile.add_window(slices);  // a window that the trace does not fill is skipped
      slices.clear();
      room = window;
    }
  }
  return profile.means();
}

}  // namespace

TraceStats trace_stats(const Trace& trace, std::int64_t context_window, int position_bins) {
  if (trace.lengths.empty())
    throw UserError(trace.origin, ": the trace is empty; expected at least one length");
  if (context_window < 1 || context_window > kLongestDocument)
    throw UserError("--context-window: found ", context_window, "; expected 1 to ", kLongestDocument);
  if (position_bins < 1 || position_bins > context_window)
    throw UserError("--bins: found ", position_bins, "; expected 1 to the context window");
  TraceStats stats;
  stats.origin = trace.origin;
  stats.documents = static_cast<std::int64_t>(trace.lengths.size());
  for (const std::int64_t length : trace.lengths) stats.tokens += length;
  const auto [shortest, longest] = std::minmax_element(trace.lengths.begin(), trace.lengths.end());
  stats.shortest = *shortest;
  stats.longest = *longest;
  stats.mean = static_cast<double>(stats.tokens) / static_cast<double>(stats.documents);
  stats.quantiles = quantiles_of(trace.lengths);
  stats.buckets = buckets_of(trace.lengths, stats.longest);
  stats.context_window = context_window;
  stats.mean_length_by_position = profile_of(trace.lengths, context_window, position_bins);
  return stats;
}

// Prints a trace's statistics as a table with bars, as JSON and as CSV.

namespace {

constexpr int kBarWidth = 32;

double share_of(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::string bar(double share, double largest) {
  const auto marks = static_cast<std::size_t>(largest > 0 ? share / largest * kBarWidth + 0.5 : 0);
  return std::string(std::max<std::size_t>(marks, share > 0 ? 1 : 0), '#');
}

std::string bucket_label(const LengthBucket& bucket) {
  std::string label = bucket.begin == 1 ? "<" : short_tokens(bucket.begin) + " -";
  return label += ' ' + short_tokens(bucket.end);
}

void print_histogram(const TraceStats& stats, std::ostream& out) {
  double largest = 0;
  for (const LengthBucket& bucket : stats.buckets)
    largest = std::max(
        {largest, share_of(bucket.documents, stats.documents), share_of(bucket.tokens, stats.tokens)});
  out << formatted("%-15s %11s %9s %9s  %s\n", "length", "documents", "share", "tokens",
                   "documents (#) and tokens (=)");
  for (const LengthBucket& bucket : stats.buckets) {
    const double documents = share_of(bucket.documents, stats.documents);
    const double tokens = share_of(bucket.tokens, stats.tokens);
    out << formatted("%-15s %11s %8.3f%% %8.3f%%  %s\n", bucket_label(bucket).c_str(),
                     grouped(bucket.documents).c_str(), 100 * documents, 100 * tokens,
                     bar(documents, largest).c_str());
    std::string token_bar = bar(tokens, largest);
    std::replace(token_bar.begin(), token_bar.end(), '#', '=');
    if (!token_bar.empty()) out << std::string(48, ' ') << token_bar << '\n';
  }
}

void print_positions(const TraceStats& stats, std::ostream& out) {
  const std::vector<double>& means = stats.mean_length_by_position;
  if (means.empty()) {
    out << "\nfewer tokens than one window of " << short_tokens(stats.context_window)
        << ": no profile by position\n";
    return;
  }
  const double largest = *std::max_element(means.begin(), means.end());
  const double least = *std::min_element(means.begin(), means.end());
  out << "\nmean length of the slice that holds a token, by position in a window of "
      << short_tokens(stats.context_window) << formatted(" (varies %.2fx)\n", largest / least);
  for (std::size_t i = 0; i < means.size(); ++i) {
    const double begin = static_cast<double>(i) / static_cast<double>(means.size());
    out << formatted("%5.1f%% %12.0f  %s\n", 100 * begin, means[i], bar(means[i], largest).c_str());
  }
}

}  // namespace

std::string short_tokens(std::int64_t tokens) {
  for (const auto& [unit, name] : {std::pair<std::int64_t, const char*>{1 << 20, "M"}, {1 << 10, "K"}}) {
    if (tokens < unit) continue;
    if (tokens % unit == 0) return std::to_string(tokens / unit) + name;
    return formatted("%.1f%s", static_cast<double>(tokens) / static_cast<double>(unit), name);
  }
  return std::to_string(tokens);
}

void print_stats_table(const TraceStats& stats, std::ostream& out) {
  out << stats.origin << '\n';
  out << "documents " << grouped(stats.documents) << "   tokens " << grouped(stats.tokens)
      << formatted("   mean %.0f", stats.mean) << "   shortest " << grouped(stats.shortest) << "   longest "
      << grouped(stats.longest) << '\n';
  for (const LengthQuantile& quantile : stats.quantiles)
    out << (&quantile == stats.quantiles.data() ? "" : "   ") << formatted("p%g ", 100 * quantile.share)
        << quantile.tokens;
  out << "\n\n";
  print_histogram(stats, out);
  print_positions(stats, out);
}

void print_stats_json(const TraceStats& stats, std::ostream& out) {
  nlohmann::ordered_json json;
  json["schema"] = "equipoise.trace_info/1";
  json["origin"] = stats.origin;
  json["documents"] = stats.documents;
  json["tokens"] = stats.tokens;
  json["mean"] = stats.mean;
  json["shortest"] = stats.shortest;
  json["longest"] = stats.longest;
  json["quantiles"] = nlohmann::ordered_json::object();
  for (const LengthQuantile& quantile : stats.quantiles)
    json["quantiles"][formatted("%g", quantile.share)] = quantile.tokens;
  json["buckets"] = nlohmann::ordered_json::array();
  for (const LengthBucket& bucket : stats.buckets)
    json["buckets"].push_back({{"begin", bucket.begin},
                               {"end", bucket.end},
                               {"documents", bucket.documents},
                               {"tokens", bucket.tokens},
                               {"document_share", share_of(bucket.documents, stats.documents)},
                               {"token_share", share_of(bucket.tokens, stats.tokens)}});
  json["context_window"] = stats.context_window;
  json["mean_length_by_position"] = stats.mean_length_by_position;
  out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

void print_stats_csv(const TraceStats& stats, std::ostream& out) {
  out << "begin,end,documents,tokens,document_share,token_share\n";
  for (const LengthBucket& bucket : stats.buckets)
    out << bucket.begin << ',' << bucket.end << ',' << bucket.documents << ',' << bucket.tokens << ','
        << formatted("%.9f,%.9f\n", share_of(bucket.documents, stats.documents),
                     share_of(bucket.tokens, stats.tokens));
}

}  // namespace equipoise
