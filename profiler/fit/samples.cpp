#include "profiler/fit/samples.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/row_ops.h"
#include "policies/base/error.h"
#include "profiler/fit/exchange_rows.h"
#include "profiler/profile/collective.h"

namespace equipoise {
namespace {

Labels labels_of(const CsvTable& table, std::size_t row) {
  Labels labels;
  for (std::size_t i = 0; i < table.header().size(); ++i) labels[table.header()[i]] = table.row(row)[i];
  return labels;
}

std::int64_t count(const CsvTable& table, std::size_t row, std::string_view column) {
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

// Moved by the forward pass for each number of the shape.
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

double count_cell(const CsvTable& table, std::size_t row, std::string_view column, double otherwise) {
  const std::optional<double> value = table.number(row, column);
  if (!value) return otherwise;
  if (*value < 1 || *value > kMostCount || *value != std::floor(*value))
    throw UserError(table.path() + ":" + std::to_string(table.line(row)) + ": " + std::string(column) +
                    ": expected a whole number from 1 to 2^31 - 1, found " +
                    std::string(table.text(row, column)));
  return *value;
}

SampleTable table_kind(const CsvTable& table) {
  if (table.has("seq_q") && table.has("head_dim")) return SampleTable::attention;
  if (table.has("M") && table.has("N") && table.has("K")) return SampleTable::gemm;
  if (table.has("size_bytes") && table.has("n_gpus")) return SampleTable::collective;
  if (table.has("rows") && table.has("cols")) return SampleTable::elementwise;
  throw UserError(table.path() +
                  ":1: these columns are no table of attention (seq_q, head_dim), gemm (M, N, K), "
                  "collectives (size_bytes, n_gpus) or elementwise kernels (rows, cols)");
}

std::optional<GemmSample> gemm_row(const CsvTable& table, std::size_t row, std::string& reason) {
  GemmSample sample;
  sample.labels = labels_of(table, row);
  sample.m = count(table, row, "M");
  sample.n = count(table, row, "N");
  sample.k = count(table, row, "K");
  if (sample.m == 0 || sample.n == 0 || sample.k == 0) {
    reason = "no shape";
    return std::nullopt;
  }
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
  // The published rate tells which bytes were counted better than any rule of ours.
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
  sample.group.ranks = static_cast<int>(count(table, row, "n_gpus"));
  const int nodes = static_cast<int>(std::max<std::int64_t>(1, count(table, row, "n_nodes")));
  sample.group.ranks_per_node = static_cast<int>(
      count_cell(table, row, "gpus_per_node", static_cast<double>(sample.group.ranks) / nodes));
  if (!(sample.bytes > 0) || sample.group.ranks < 2 || sample.group.ranks_per_node < 1) {
    reason = "no size or no group";
    return std::nullopt;
  }
  sample.seconds = table.number(row, "time_us").value_or(0) * 1e-6;
  const double bus = table.number(row, "busbw_GBps").value_or(0);
  if (sample.seconds == 0 && bus > 0)
    sample.seconds = sample.bytes * bus_factor(sample.kind, sample.group.ranks) * 1e-9 / bus;
  return sample;
}

std::size_t add_rows(const CsvTable& table, const DocumentHistogram& histogram, SampleSet& set) {
  std::size_t left_out = 0;
  std::string reason;
  const SampleTable kind = table_kind(table);
  for (std::size_t row = 0; row < table.rows(); ++row) {
    bool used = false;
    if (kind == SampleTable::attention) {
      const auto sample = attention_row(table, row, histogram, reason);
      used = sample && sample->seconds[0] > 0;
      if (used) set.attention.push_back(*sample);
    } else if (kind == SampleTable::gemm) {
      const auto sample = gemm_row(table, row, reason);
      used = sample && sample->seconds > 0;
      if (used) set.gemm.push_back(*sample);
    } else if (kind == SampleTable::elementwise) {
      const auto sample = elementwise_row(table, row, reason);
      used = sample && sample->seconds > 0;
      if (used) set.elementwise.push_back(*sample);
    } else if (const auto exchange = exchange_row(table, row, reason)) {
      used = exchange->seconds > 0;
      if (used) set.exchange.push_back(*exchange);
    } else {
      const auto sample = collective_row(table, row, reason);
      used = sample && sample->seconds > 0;
      if (used) set.collective.push_back(*sample);
    }
    left_out += used ? 0 : 1;
  }
  return left_out;
}

}  // namespace equipoise
