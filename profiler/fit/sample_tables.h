// Reads samples from CSV in the columns of public tables (docs/reference/formats.md).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "policies/base/csv.h"
#include "profiler/fit/document_histogram.h"
#include "profiler/fit/samples.h"

namespace equipoise {

// An elementwise kernel that public tables name.
struct PublishedOp {
  std::string_view name;
  Elementwise kind;
  bool bytes_by_shape = false;  // if false, bytes follow from the row's published rate
};
const PublishedOp* published_op(std::string_view name);  // null for an op that is not modelled

enum class SampleTable { attention, gemm, elementwise, collective };  // in the order of kTableNames
SampleTable table_kind(const CsvTable& table);  // decided by its columns; throws UserError if none fits

// Each returns a row as a sample. A row without a shape, or with an op that is not modelled, gives nothing
// and sets `reason`. A row without a time gives a sample with seconds 0.
std::optional<AttentionSample> attention_row(const CsvTable& table, std::size_t row,
                                             const DocumentHistogram& histogram, std::string& reason);
std::optional<GemmSample> gemm_row(const CsvTable& table, std::size_t row, std::string& reason);
std::optional<ElementwiseSample> elementwise_row(const CsvTable& table, std::size_t row, std::string& reason);
std::optional<CollectiveSample> collective_row(const CsvTable& table, std::size_t row, std::string& reason);

// A row about tokens that experts exchange. A row about something else gives nothing and leaves `reason`
// empty.
//
// "alltoall point-to-point RDMA (...)" are NICs that stream messages of size_bytes at algbw_GBps; the sample
// is the time of one message. "alltoall (EP dispatch)" and "(EP combine)" are DeepEP's normal kernels. Such a
// row states a bandwidth and no size. DeepEP's benchmark (github.com/deepseek-ai/DeepEP, docs/legacy.md and
// tests/test_internode.py, test_intranode.py) defines both: 4,096 tokens per rank, 7,168 wide, 8 of 256
// experts on at most 4 nodes, dispatched in FP8 with a scale of 4 bytes for each 128 elements, combined in
// bf16. Its bandwidth is logical: between nodes it counts every node that receives a token, inside a node
// every rank, the sender included. A row that states its setting (`tokens`, `hidden`, `topk`, `experts`) has
// a time instead. "alltoall low latency (...)" has a time for 128 tokens per rank, each copy of which is
// sent.
std::optional<ExchangeSample> exchange_row(const CsvTable& table, std::size_t row, std::string& reason);

// Adds every measured row of the table and returns how many it skipped.
std::size_t add_rows(const CsvTable& table, const DocumentHistogram& histogram, SampleSet& set);

}  // namespace equipoise
