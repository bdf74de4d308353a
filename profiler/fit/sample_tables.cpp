#include "profiler/fit/sample_tables.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>
#include <string_view>

#include "kernels/row_ops.h"
#include "policies/base/error.h"

namespace equipoise {
namespace {

Labels labels_of(const CsvTable& table, std::size_t row) {
  Labels labels;
  for (std::size_t i = 0; i < table.header().size(); ++i) labels[table.header()[i]] = table.row(row)[i];
  return labels;
}

// The count in a cell, a whole number from `least` to kMostCount; `otherwise` if the cell is empty. Throws
// UserError.
double count_cell(const CsvTable& table, std::size_t row, std::string_view column, double otherwise,
                  int least = 1) {
  const std::optional<double> value = table.number(row, column);
  if (!value) return otherwise;
  if (*value < least || *value > kMostCount || *value != std::floor(*value))
    throw UserError(table.path(), ":", table.line(row), ": ", column, ": expected a whole number from ",
                    least, " to 2^31 - 1, found ", table.text(row, column));
  return *value;
}

// A column that not every row uses: 0 if the cell is empty or says so.
double optional_count(const CsvTable& table, std::size_t row, std::string_view column) {
  return count_cell(table, row, column, 0, 0);
}

std::int64_t count_of(const CsvTable& table, std::size_t row, std::string_view column) {
  return static_cast<std::int64_t>(count_cell(table, row, column, 0));
}

double measured_seconds(const CsvTable& table, std::size_t row) {
  const double ms = table.number(row, "time_ms").value_or(0);
  return ms > 0 ? ms * 1e-3 : 0;
}

constexpr PublishedOp kPublishedOps[] = {{"residual add", Elementwise::residual_add, true},
                                         {"RMSNorm", Elementwise::rms_norm, true},
                                         {"rms_norm", Elementwise::rms_norm},
                                         {"silu(x)*y", Elementwise::swiglu, true},
                                         {"rotary", Elementwise::rope}};

// Elements that the forward pass moves per element of the shape.
int forward_elements(Elementwise kind) {
  for (const kernels::RowOp& op : kernels::kRowOps)
    if (op.kind == kind && op.pass == kernels::Pass::forward) return op.elements;
  return 0;
}

}  // namespace

const PublishedOp* published_op(std::string_view name) {
  for (const PublishedOp& op : kPublishedOps)
    if (op.name == name) return &op;
  return nullptr;
}

SampleTable table_kind(const CsvTable& table) {
  if (table.has("seq_q") && table.has("head_dim")) return SampleTable::attention;
  if (table.has("M") && table.has("N") && table.has("K")) return SampleTable::gemm;
  if (table.has("size_bytes") && table.has("n_gpus")) return SampleTable::collective;
  if (table.has("rows") && table.has("cols")) return SampleTable::elementwise;
  throw UserError(table.path(),
                  ":1: these columns are no table of attention (seq_q, head_dim), gemm (M, N, K), "
                  "collectives (size_bytes, n_gpus) or elementwise kernels (rows, cols)");
}

std::optional<GemmSample> gemm_row(const CsvTable& table, std::size_t row, std::string& reason) {
  GemmSample sample;
  sample.labels = labels_of(table, row);
  sample.m = count_of(table, row, "M");
  sample.n = count_of(table, row, "N");
  sample.k = count_of(table, row, "K");
  if (sample.m == 0 || sample.n == 0 || sample.k == 0) {
    reason = "no shape";
    return std::nullopt;
  }
  sample.groups = std::max<std::int64_t>(1, std::llround(optional_count(table, row, "groups")));
  sample.next_n = std::llround(optional_count(table, row, "next_N"));
  sample.next_k = std::llround(optional_count(table, row, "next_K"));
  if ((sample.next_n > 0) != (sample.next_k > 0)) {
    reason = "of a second product only one of next_N and next_K";
    return std::nullopt;
  }
  sample.moved_bytes = table.number(row, "moved_bytes").value_or(0);
  if (sample.next_n > 0)  // one shape per model, whose other widths differ only in tensor parallelism
    sample.shape = {optional_count(table, row, "hidden"), optional_count(table, row, "inter"),
                    optional_count(table, row, "experts")};
  sample.seconds = measured_seconds(table, row);
  const double tflops = table.number(row, "tflops").value_or(0);
  if (sample.seconds == 0 && tflops > 0)
    sample.seconds = 2e-12 * static_cast<double>(sample.m) * static_cast<double>(sample.n) *
                     static_cast<double>(sample.k) / tflops;
  return sample;
}

std::optional<ElementwiseSample> elementwise_row(const CsvTable& table, std::size_t row,
                                                 std::string& reason) {
  ElementwiseSample sample;
  sample.labels = labels_of(table, row);
  sample.rows = count_cell(table, row, "rows", 0);
  sample.columns = count_cell(table, row, "cols", 0);
  sample.seconds = measured_seconds(table, row);
  // The published rate tells which bytes its authors counted.
  const double rate = table.number(row, "gbytes_per_s").value_or(0);
  const PublishedOp* op = published_op(sample.labels["op"]);
  constexpr double kBytes = 2;  // fp16, bf16
  sample.bytes = op != nullptr && op->bytes_by_shape
                     ? forward_elements(op->kind) * kBytes * (sample.rows * sample.columns)
                     : rate * 1e9 * sample.seconds;
  if (sample.bytes <= 0) {
    reason = "no size";
    return std::nullopt;
  }
  return sample;
}

// The ranks of a row and those of each of its nodes, which must be equal in number. If the row states no such
// group, `reason` says why.
static std::optional<GroupShape> group_of_row(const CsvTable& table, std::size_t row, std::string& reason) {
  const auto ranks = std::llround(optional_count(table, row, "n_gpus")),
             nodes = std::llround(optional_count(table, row, "n_nodes"));
  auto each = std::llround(optional_count(table, row, "gpus_per_node"));
  if (each == 0 && ranks % std::max(nodes, 1LL) == 0) each = ranks / std::max(nodes, 1LL);
  if (ranks < 2 || (each == 0 && nodes == 0)) {
    reason = "no size or no group";
    return std::nullopt;
  }
  const bool even = each > 0 && (nodes > 0 ? ranks == nodes * each : ranks <= each || ranks % each == 0);
  if (!even) {
    reason = "nodes of unequally many GPUs: " + std::to_string(ranks) + " on " +
             (nodes > 0 ? std::to_string(nodes) + (each > 0 ? " of " + std::to_string(each) : "")
                        : "nodes of " + std::to_string(each));
    return std::nullopt;
  }
  return GroupShape{static_cast<int>(ranks), static_cast<int>(each)};
}

std::optional<CollectiveSample> collective_row(const CsvTable& table, std::size_t row, std::string& reason) {
  CollectiveSample sample;
  sample.labels = labels_of(table, row);
  std::string op(table.text(row, "op"));
  if (op == "alltoall") op = "all_to_all";
  if (op == "sendrecv") op = "send_recv";
  const auto name = std::find(kCollectiveNames.begin(), kCollectiveNames.end(), op);
  if (name == kCollectiveNames.end()) {
    reason = "not a collective we model: " + op;
    return std::nullopt;
  }
  sample.kind = static_cast<Collective>(name - kCollectiveNames.begin());
  sample.bytes = table.number(row, "size_bytes").value_or(0);
  if (!(sample.bytes > 0)) {
    reason = "no size or no group";
    return std::nullopt;
  }
  const std::optional<GroupShape> group = group_of_row(table, row, reason);
  if (!group) return std::nullopt;
  sample.group = *group;
  sample.seconds = table.number(row, "time_us").value_or(0) * 1e-6;
  const double bus = table.number(row, "busbw_GBps").value_or(0);
  if (sample.seconds == 0 && bus > 0)
    sample.seconds = sample.bytes * bus_factor(sample.kind, sample.group.ranks) * 1e-9 / bus;
  return sample;
}

std::size_t add_rows(const CsvTable& table, const DocumentHistogram& histogram, SampleSet& set) {
  std::size_t skipped = 0;
  std::string reason;
  const SampleTable kind = table_kind(table);
  const auto keep = [&skipped](const auto& sample, auto& list, double seconds) {
    if (seconds > 0)
      list.push_back(*sample);
    else
      ++skipped;
  };
  for (std::size_t row = 0; row < table.rows(); ++row) {
    if (kind == SampleTable::attention) {
      const auto sample = attention_row(table, row, histogram, reason);
      keep(sample, set.attention, sample ? sample->seconds[0] : 0);
    } else if (kind == SampleTable::gemm) {
      const auto sample = gemm_row(table, row, reason);
      keep(sample, set.gemm, sample ? sample->seconds : 0);
    } else if (kind == SampleTable::elementwise) {
      const auto sample = elementwise_row(table, row, reason);
      keep(sample, set.elementwise, sample ? sample->seconds : 0);
    } else if (const auto exchange = exchange_row(table, row, reason)) {
      keep(exchange, set.exchange, exchange->seconds);
    } else {
      const auto sample = collective_row(table, row, reason);
      keep(sample, set.collective, sample ? sample->seconds : 0);
    }
  }
  return skipped;
}

// --- Attention: the documents, heads and mask of a row.

namespace {

constexpr double kChartTflops = 3;  // uncertainty of a rate read off a bar chart in pixels
constexpr double kMostDocuments =
    1 << 20;                          // limit for one call; more is a typing error and would exhaust memory
constexpr std::uint64_t kDraws = 32;  // packings of a row that states only the distribution of its documents

// Charts that print neither batch nor heads follow the FlashAttention papers' protocol (arXiv 2307.08691
// section 4.1, 2407.08608 section 4.1): 16K tokens in all, hidden size 2,048.
constexpr std::int64_t kChartTokens = 16384;
constexpr std::int64_t kChartHidden = 2048;

// The whole number after `name=` in a row's notes; 0 if there is no usable one.
std::int64_t noted(std::string_view notes, std::string_view name) {
  const std::size_t at = notes.find(std::string(name) + "=");
  if (at == std::string_view::npos) return 0;
  const std::int64_t number =
      std::strtoll(std::string(notes.substr(at + name.size() + 1)).c_str(), nullptr, 10);
  return number > 0 && static_cast<double>(number) <= kMostCount ? number : 0;
}

// How the documents of a call lie, as public tables say it.
constexpr std::string_view kDrawnDocuments = "packed documents", kListedDocuments = "documents of ";
constexpr std::string_view kLayouts[] = {"batched", "varlen", kListedDocuments, kDrawnDocuments};

// Reads the lengths of a packed call from "documents of 300;20;4000". Throws UserError if one is no length.
std::vector<std::int64_t> listed_documents(std::string_view layout) {
  std::vector<std::int64_t> lengths;
  if (!layout.starts_with(kListedDocuments)) return lengths;
  std::istringstream in{std::string(layout.substr(kListedDocuments.size()))};
  for (std::string one; std::getline(in, one, ';');) {
    lengths.push_back(std::strtoll(one.c_str(), nullptr, 10));
    if (lengths.back() < 1 || static_cast<double>(lengths.back()) > kMostCount)
      throw UserError("layout: expected documents of lengths from 1 to 2^31 - 1, found '", one, "'");
  }
  return lengths;
}

// Why the layout is none of these; empty if it is one, or not stated.
std::string unknown_layout(std::string_view layout) {
  const auto begins = [&](std::string_view known) { return layout.starts_with(known); };
  if (layout.empty() || std::ranges::any_of(kLayouts, begins)) return "";
  return concatenated("layout: expected one that begins with \"", all_joined(kLayouts, "\", \""),
                      "\", found \"", layout, '"');
}

// Reads a mask of public tables in any case of letters. Nothing if the cell names another mask, or none.
std::optional<bool> is_causal(std::string_view mask) {
  std::string lower(mask);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view name : {"causal", "causal (bottom-right)", "causal (assumed)", "varlen causal"})
    if (lower == name) return true;
  return lower == "full" ? std::optional(false) : std::nullopt;
}

std::string pass_name(std::string_view column) {
  if (column == "fwd") return "forward";
  if (column == "bwd") return "backward";
  if (column == "fwd+bwd") return "both";
  return "";
}

AttentionHeads heads_of(const CsvTable& table, std::size_t row, std::string_view notes) {
  AttentionHeads heads;
  heads.head_dim = static_cast<int>(count_cell(table, row, "head_dim", 0));
  // Where the dims of keys and values differ, their mean gives the same number of operations.
  const std::int64_t keys = noted(notes, "head_dim_qk");
  const std::int64_t values = noted(notes, "head_dim_vo");
  if (keys > 0 && values > 0) heads.head_dim = static_cast<int>((keys + values) / 2);
  const double by_protocol = heads.head_dim > 0 ? static_cast<double>(kChartHidden / heads.head_dim) : 0;
  heads.query_heads = static_cast<int>(count_cell(table, row, "n_q_heads", by_protocol));
  heads.kv_heads = static_cast<int>(count_cell(table, row, "n_kv_heads", heads.query_heads));
  return heads;
}

// The documents of a row's call: equal ones, a stated list, or draws from a distribution.
struct RowDocuments {
  std::int64_t queries = 0, keys = 0;  // of one document, or of all if they are drawn
  std::int64_t count = 0;              // number of equal documents
  std::vector<std::int64_t> listed;
  bool drawn = false;

  [[nodiscard]] std::vector<QueryKeys> packing(const DocumentHistogram& histogram, std::uint64_t draw) const {
    if (!drawn && listed.empty())
      return std::vector<QueryKeys>(static_cast<std::size_t>(count), {queries, keys});
    std::vector<QueryKeys> packed;
    for (const std::int64_t length : drawn ? draw_documents(histogram, queries, draw) : listed)
      packed.push_back({length, length});
    return packed;
  }
  [[nodiscard]] std::int64_t least_queries() const {
    return drawn ? 1 : listed.empty() ? queries : *std::min_element(listed.begin(), listed.end());
  }
  [[nodiscard]] std::int64_t most_keys() const {
    return drawn ? keys / 4 : listed.empty() ? keys : *std::max_element(listed.begin(), listed.end());
  }
};

// Throws UserError for a call that would not fit the memory, since its numbers are typing errors.
RowDocuments documents_of(const CsvTable& table, std::size_t row, std::int64_t queries, std::int64_t keys) {
  const std::string_view layout = table.text(row, "layout");
  RowDocuments documents;
  documents.queries = queries;
  documents.keys = keys;
  documents.count = static_cast<std::int64_t>(count_cell(
      table, row, "batch", static_cast<double>(std::max<std::int64_t>(1, kChartTokens / queries))));
  documents.drawn = layout.starts_with(kDrawnDocuments);
  documents.listed = listed_documents(layout);
  const std::string where = table.path() + ":" + std::to_string(table.line(row));
  if (static_cast<double>(documents.count) * static_cast<double>(std::max(queries, keys)) > kMostCount)
    throw UserError(where, ": batch: expected fewer than 2^31 tokens in all, found ", documents.count,
                    " documents of ", std::max(queries, keys));
  if (static_cast<double>(documents.count) > kMostDocuments)
    throw UserError(where, ": batch: expected at most 2^20 documents, found ", documents.count);
  if (documents.drawn && static_cast<double>(queries) > kMostDocuments)
    throw UserError(where, ": seq_q: expected at most 2^20 tokens of packed documents, found ", queries);
  return documents;
}

}  // namespace

std::optional<AttentionSample> attention_row(const CsvTable& table, std::size_t row,
                                             const DocumentHistogram& histogram, std::string& reason) {
  AttentionSample sample;
  const std::string_view notes = table.text(row, "notes");
  sample.pass = pass_name(table.text(row, "pass"));
  sample.heads = heads_of(table, row, notes);
  const auto queries = static_cast<std::int64_t>(count_cell(table, row, "seq_q", 0));
  const auto keys = static_cast<std::int64_t>(count_cell(table, row, "seq_kv", static_cast<double>(queries)));
  const AttentionHeads& heads = sample.heads;
  if (sample.pass.empty() || queries < 1 || keys < 1 ||
      std::min({heads.head_dim, heads.query_heads, heads.kv_heads}) < 1) {
    reason = sample.pass.empty() ? "direction not stated" : "no shape";
    return std::nullopt;
  }
  if (heads.query_heads % heads.kv_heads != 0) {
    reason = concatenated("n_kv_heads ", heads.kv_heads, " does not divide n_q_heads ", heads.query_heads);
    return std::nullopt;
  }
  reason = unknown_layout(table.text(row, "layout"));
  if (!reason.empty()) return std::nullopt;
  const std::optional<bool> causal = is_causal(table.text(row, "mask"));
  if (!causal) {
    const std::string mask(table.text(row, "mask"));
    reason = mask.empty() ? "mask not stated" : "mask neither causal nor full: " + mask;
    return std::nullopt;
  }
  if (*causal && keys < queries) {
    reason = "a causal mask with fewer keys than queries, some of which see none";
    return std::nullopt;
  }
  sample.mask = {*causal, noted(notes, "sliding_window")};
  const RowDocuments documents = documents_of(table, row, queries, keys);
  if (documents.drawn && histogram.empty()) {
    reason = "its documents are only named by a distribution; give it with --document-histogram";
    return std::nullopt;
  }
  sample.labels = labels_of(table, row);
  const double ms = table.number(row, "time_ms").value_or(0);
  const double tflops = table.number(row, "tflops").value_or(0);
  for (std::uint64_t draw = 0; draw < (documents.drawn ? kDraws : 1); ++draw) {
    sample.packings.push_back(documents.packing(histogram, draw));
    const double flops = attention_flops(sample, sample.packings.back());
    sample.seconds.push_back(ms > 0 ? ms * 1e-3 : tflops > 0 ? flops * 1e-12 / tflops : 0);
  }
  if (tflops > 0 && table.text(row, "method").find("digitised") != std::string_view::npos)
    sample.uncertainty = kChartTflops / tflops;
  sample.least_queries = documents.least_queries();
  sample.most_keys = documents.most_keys();
  sample.shape = {static_cast<double>(queries),
                  static_cast<double>(keys),
                  static_cast<double>(sample.heads.head_dim),
                  static_cast<double>(sample.heads.query_heads),
                  sample.mask.causal ? 1.0 : 0.0,
                  static_cast<double>(sample.mask.window),
                  documents.drawn ? -1.0 : static_cast<double>(documents.count)};
  for (const std::int64_t length : documents.listed) sample.shape.push_back(static_cast<double>(length));
  return sample;
}

// --- Exchanges of tokens between experts.

namespace {

// The setting of DeepEP's benchmark (sample_tables.h).
constexpr double kHidden = 7168;
constexpr double kDispatchBytes = 1 + 4.0 / 128;  // bytes of an element in FP8, with its share of a scale
constexpr double kCombineBytes = 2;
constexpr double kNormalTokens = 4096;
constexpr double kLowLatencyTokens = 128;
constexpr int kExperts = 256;
constexpr int kActive = 8;
constexpr int kNodesOfToken = 4;

bool has_words(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ExchangeSample message_stream(double bytes, double GBps) {
  ExchangeSample sample;
  sample.load = {0, bytes, 1};
  sample.shape = {bytes};
  sample.seconds = GBps > 0 ? bytes * 1e-9 / GBps : 0;
  return sample;
}

ExchangeSample deepep_normal(GroupShape group, double element_bytes, double GBps) {
  const double bytes = kNormalTokens * kHidden * element_bytes;
  const RoutedToken token =
      routed_token({kExperts, kActive, group, static_cast<int>(nodes_of(group)), kNodesOfToken});
  ExchangeSample sample;
  sample.load = forwarded_load(token, group, bytes);
  const double counted = bytes * (group.ranks > group.ranks_per_node ? token.nodes : token.ranks);
  sample.seconds = GBps > 0 ? counted * 1e-9 / GBps : 0;
  return sample;
}

// A measured dispatch or combine with stated settings, whose router does not limit the nodes of a token.
ExchangeSample deepep_measured(const CsvTable& table, std::size_t row, GroupShape group,
                               double element_bytes) {
  const double tokens = count_cell(table, row, "tokens", 0);
  const double hidden = count_cell(table, row, "hidden", 0);
  const RoutedToken token = routed_token({static_cast<int>(count_cell(table, row, "experts", 0)),
                                          static_cast<int>(count_cell(table, row, "topk", 0)), group});
  ExchangeSample sample;
  sample.load = forwarded_load(token, group, tokens * hidden * element_bytes);
  sample.seconds = 1e-6 * table.number(row, "time_us").value_or(0);
  sample.shape = {static_cast<double>(group.ranks), hidden, count_cell(table, row, "experts", 0),
                  count_cell(table, row, "topk", 0)};
  return sample;
}

ExchangeSample deepep_low_latency(GroupShape group, double element_bytes, double seconds) {
  ExchangeSample sample;
  sample.load = direct_load(routed_token({kExperts, kActive, group}), group,
                            kLowLatencyTokens * kHidden * element_bytes);
  sample.seconds = seconds;
  return sample;
}

}  // namespace

std::optional<ExchangeSample> exchange_row(const CsvTable& table, std::size_t row, std::string& reason) {
  const std::string_view op = table.text(row, "op");
  const bool messages = has_words(op, "point-to-point RDMA");
  const bool low_latency = has_words(op, "low latency");
  if (!has_words(op, "alltoall") || !(messages || low_latency || has_words(op, "EP "))) return std::nullopt;
  const bool dispatch = has_words(op, "dispatch");
  if (!messages && !dispatch && !has_words(op, "combine")) {
    reason = "neither dispatch nor combine: " + std::string(op);
    return std::nullopt;
  }
  const std::optional<GroupShape> stated = group_of_row(table, row, reason);
  if (!stated) return std::nullopt;
  const GroupShape group = *stated;
  const double bytes = table.number(row, "size_bytes").value_or(0);
  if (messages && !(bytes > 0)) {
    reason = "no size or no group";
    return std::nullopt;
  }
  const double rate = table.number(row, "algbw_GBps").value_or(0);
  const double element_bytes = dispatch ? kDispatchBytes : kCombineBytes;
  ExchangeSample sample = messages                      ? message_stream(bytes, rate)
                          : low_latency                 ? deepep_low_latency(group, element_bytes,
                                                                             1e-6 * table.number(row, "time_us").value_or(0))
                          : table.number(row, "tokens") ? deepep_measured(table, row, group, element_bytes)
                                                        : deepep_normal(group, element_bytes, rate);
  sample.group = group;
  sample.streams = messages;
  if (!messages && sample.shape.empty()) sample.shape = {static_cast<double>(group.ranks)};
  sample.labels = labels_of(table, row);
  return sample;
}

}  // namespace equipoise
