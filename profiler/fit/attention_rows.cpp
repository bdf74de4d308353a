// Attention rows of public tables: which documents, heads and mask a row means.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/random.h"
#include "profiler/fit/samples.h"

namespace equipoise {
namespace {

constexpr double kChartTflops = 3;          // a rate measured in pixels on a bar chart is good to +-3 TFLOP/s
constexpr double kMostDocuments = 1 << 20;  // of one call: more is a typing error, and would fill the memory
constexpr std::uint64_t kDraws = 32;  // of the documents of one row, where only their distribution is known

// Charts that print neither batch nor heads follow the FlashAttention papers' protocol (arXiv 2307.08691
// section 4.1, 2407.08608 section 4.1): 16K tokens in all, hidden size 2,048.
constexpr std::int64_t kChartTokens = 16384;
constexpr std::int64_t kChartHidden = 2048;

// The whole number after `name=` in a row's notes; 0 where there is none that could be meant.
std::int64_t noted(std::string_view notes, std::string_view name) {
  const std::size_t at = notes.find(std::string(name) + "=");
  if (at == std::string_view::npos) return 0;
  const std::int64_t number =
      std::strtoll(std::string(notes.substr(at + name.size() + 1)).c_str(), nullptr, 10);
  return number > 0 && static_cast<double>(number) <= kMostCount ? number : 0;
}

// Query-key pairs that the mask leaves, the field's count of attention work.
double pairs_of(AttentionMask mask, std::int64_t queries, std::int64_t keys) {
  const auto q = static_cast<double>(queries);
  const auto k = static_cast<double>(keys);
  if (!mask.causal) return q * k;
  if (mask.window > 0 && keys > mask.window) {
    const auto w = static_cast<double>(mask.window);
    return w * (w + 1) / 2 + (q - w) * w;
  }
  return q * (k - q) + q * (q + 1) / 2;
}

std::string pass_name(std::string_view column) {
  if (column == "fwd") return "forward";
  if (column == "bwd") return "backward";
  if (column == "fwd+bwd") return "both";
  return "";
}

// Matrix products over the pairs: 2 forward, 5 backward.
double flops_per_pair(const std::string& pass, double head_dim) {
  return head_dim * (pass == "forward" ? 4.0 : pass == "backward" ? 10.0 : 14.0);
}

AttentionHeads heads_of(const CsvTable& table, std::size_t row, std::string_view notes) {
  AttentionHeads heads;
  heads.head_dim = static_cast<int>(count_cell(table, row, "head_dim", 0));
  // Different dims of keys and values: their mean has the same number of operations.
  const std::int64_t keys = noted(notes, "head_dim_qk");
  const std::int64_t values = noted(notes, "head_dim_vo");
  if (keys > 0 && values > 0) heads.head_dim = static_cast<int>((keys + values) / 2);
  const double by_protocol = heads.head_dim > 0 ? static_cast<double>(kChartHidden / heads.head_dim) : 0;
  heads.query_heads = static_cast<int>(count_cell(table, row, "n_q_heads", by_protocol));
  heads.kv_heads = static_cast<int>(count_cell(table, row, "n_kv_heads", heads.query_heads));
  return heads;
}

}  // namespace

DocumentHistogram read_document_histogram(const std::string& path) {
  std::istringstream in(read_text_file(path));
  DocumentHistogram histogram;
  std::string text;
  for (std::size_t line = 1; std::getline(in, text); ++line) {
    if (text.empty() || text[0] == '#' || text.rfind("length_min", 0) == 0) continue;
    LengthBucket bucket;
    long long low = 0;
    long long high = 0;
    if (std::sscanf(text.c_str(), "%lld,%lld,%lf", &low, &high, &bucket.documents) != 3 || low > high ||
        high < 1 || static_cast<double>(high) > kMostCount ||
        !(bucket.documents >= 0 && std::isfinite(bucket.documents)))
      throw UserError(path + ":" + std::to_string(line) +
                      ": expected length_min,length_max,n_docs (lengths from 1 to 2^31 - 1, the first not "
                      "above the second, a count >= 0), found '" +
                      text + "'");
    bucket.shortest = std::max<long long>(low, 1);
    bucket.longest = high;
    histogram.push_back(bucket);
  }
  return histogram;
}

std::vector<std::int64_t> draw_documents(const DocumentHistogram& histogram, std::int64_t total_tokens,
                                         std::uint64_t seed) {
  const std::int64_t cap = std::max<std::int64_t>(total_tokens / 4, 1);
  double all = 0;
  for (const LengthBucket& bucket : histogram) all += bucket.documents;
  std::vector<std::int64_t> documents;
  if (all <= 0) return documents;
  SplitMix64 random(seed);
  const auto uniform = [&random] { return static_cast<double>(random.next() >> 11) * 0x1.0p-53; };
  for (std::int64_t left = total_tokens; left > 0;) {
    double mark = uniform() * all;
    const LengthBucket* drawn = nullptr;
    for (const LengthBucket& bucket : histogram) {
      drawn = &bucket;
      if (mark < bucket.documents) break;
      mark -= bucket.documents;
    }
    const auto width = static_cast<double>(drawn->longest - drawn->shortest + 1);
    const std::int64_t length = drawn->shortest + static_cast<std::int64_t>(uniform() * width);
    documents.push_back(std::min({length, cap, left}));
    left -= documents.back();
  }
  return documents;
}

std::optional<AttentionSample> attention_row(const CsvTable& table, std::size_t row,
                                             const DocumentHistogram& histogram, std::string& reason) {
  AttentionSample sample;
  const std::string_view notes = table.text(row, "notes");
  const std::string_view layout = table.text(row, "layout");
  sample.pass = pass_name(table.text(row, "pass"));
  sample.heads = heads_of(table, row, notes);
  const auto queries = static_cast<std::int64_t>(count_cell(table, row, "seq_q", 0));
  const auto keys = static_cast<std::int64_t>(count_cell(table, row, "seq_kv", static_cast<double>(queries)));
  if (sample.pass.empty() || queries < 1 || keys < 1 || sample.heads.head_dim < 1) {
    reason = sample.pass.empty() ? "direction not stated" : "no shape";
    return std::nullopt;
  }
  const std::string_view mask_name = table.text(row, "mask");
  sample.mask = {mask_name.find("causal") != std::string_view::npos, noted(notes, "sliding_window")};
  const auto documents = static_cast<std::int64_t>(count_cell(
      table, row, "batch", static_cast<double>(std::max<std::int64_t>(1, kChartTokens / queries))));
  const bool drawn = layout.find("packed documents") != std::string_view::npos;
  const std::string where = table.path() + ":" + std::to_string(table.line(row));
  if (static_cast<double>(documents) * static_cast<double>(std::max(queries, keys)) > kMostCount)
    throw UserError(where + ": batch: expected fewer than 2^31 tokens in all, found " +
                    std::to_string(documents) + " documents of " + std::to_string(std::max(queries, keys)));
  if (static_cast<double>(documents) > kMostDocuments)
    throw UserError(where + ": batch: expected at most 2^20 documents, found " + std::to_string(documents));
  if (drawn && static_cast<double>(queries) > kMostDocuments)
    throw UserError(where + ": seq_q: expected at most 2^20 tokens of packed documents, found " +
                    std::to_string(queries));
  if (drawn && histogram.empty()) {
    reason = "its documents are only named by a distribution; give it with --document-histogram";
    return std::nullopt;
  }
  for (std::size_t i = 0; i < table.header().size(); ++i)
    sample.labels[table.header()[i]] = table.row(row)[i];
  const double ms = table.number(row, "time_ms").value_or(0);
  const double tflops = table.number(row, "tflops").value_or(0);
  for (std::uint64_t draw = 0; draw < (drawn ? kDraws : 1); ++draw) {
    std::vector<QueryKeys> packed;
    if (drawn) {
      for (const std::int64_t length : draw_documents(histogram, queries, draw))
        packed.push_back({length, length});
    } else {
      packed.assign(static_cast<std::size_t>(documents), {queries, keys});
    }
    double pairs = 0;
    for (const QueryKeys& one : packed) pairs += pairs_of(sample.mask, one.queries, one.keys);
    const double flops =
        pairs * sample.heads.query_heads * flops_per_pair(sample.pass, sample.heads.head_dim);
    sample.packings.push_back(std::move(packed));
    sample.seconds.push_back(ms > 0 ? ms * 1e-3 : tflops > 0 ? flops * 1e-12 / tflops : 0);
  }
  if (tflops > 0 && table.text(row, "method").find("digitised") != std::string_view::npos)
    sample.uncertainty = kChartTflops / tflops;
  sample.least_queries = drawn ? 1 : queries;
  sample.most_keys = drawn ? keys / 4 : keys;
  sample.shape = {static_cast<double>(queries),
                  static_cast<double>(keys),
                  static_cast<double>(sample.heads.head_dim),
                  static_cast<double>(sample.heads.query_heads),
                  sample.mask.causal ? 1.0 : 0.0,
                  static_cast<double>(sample.mask.window),
                  drawn ? -1.0 : static_cast<double>(documents)};
  return sample;
}

}  // namespace equipoise
