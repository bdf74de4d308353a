// Measured kernel and collective times, as the fits take them: from CSV in the columns of public tables, or
// from the sample lists that `profile` writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/csv.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/profile.h"

namespace equipoise {

// Of ranks, rows, heads, tokens in a sample: more is a typing error, and fits an int.
inline constexpr double kMostCount = 2147483647;

// The count in a cell: whole, from 1 to kMostCount; `otherwise` where the cell is empty. Throws UserError.
double count_cell(const CsvTable& table, std::size_t row, std::string_view column, double otherwise);

// Text columns by name (gpu, kernel, dtype, op, pass, …): what selects a group.
using Labels = std::map<std::string, std::string>;
inline std::string label(const Labels& labels, const std::string& name) {
  return labels.contains(name) ? labels.at(name) : std::string();
}

struct AttentionSample {
  Labels labels;
  std::string pass;  // forward, backward, both
  AttentionHeads heads;
  AttentionMask mask;
  // The call's documents: one list, or several draws where a row names their distribution only.
  std::vector<std::vector<QueryKeys>> packings;
  BlockedAttentionWork blocked;  // the same call for a CPU core; only of our own samples
  std::vector<double> seconds;   // of each packing
  double uncertainty = 0;        // relative, of a rate read off a chart
  std::int64_t least_queries = 0;
  std::int64_t most_keys = 0;
  std::vector<double> shape;
  // How its tiles are counted; forward's where both passes are one time.
  [[nodiscard]] AttentionPass counted() const {
    return pass == "backward" ? AttentionPass::backward : AttentionPass::forward;
  }
};

// Operations of a call's matrix products over the pairs that its mask leaves: 2 products forward, 5 backward.
double attention_flops(const AttentionSample& sample, const std::vector<QueryKeys>& packing);

struct GemmSample {
  Labels labels;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 1;  // such products in one launch
  // Of a call that holds more: a second product [m, next_n, next_k] of each group (the down projection), and
  // the bytes that are moved around them.
  std::int64_t next_n = 0, next_k = 0;
  double moved_bytes = 0;
  std::vector<double> shape;  // what a fit leaves out together; empty: n and k
  double seconds = 0;         // 0: not measured
};

// The profile's table that answers for such products: "bf16" or "fp8" of the library, "bf16-torch-grouped" of
// a kernel that the samples name.
std::string gemm_table_of(const Labels& labels);

struct ElementwiseSample {
  Labels labels;
  double rows = 0;
  double columns = 0;
  double bytes = 0;
  double seconds = 0;
};

struct CollectiveSample {
  Labels labels;
  Collective kind = Collective::all_gather;
  double bytes = 0;
  GroupShape group;
  double seconds = 0;
};

// An exchange of tokens between experts, or messages as one is made of.
struct ExchangeSample {
  Labels labels;
  bool streams = false;  // messages one after the other, no beginning and no end: the time of one
  ExchangeLoad load;
  GroupShape group;
  double seconds = 0;
  std::vector<double> shape;  // what a fit leaves out together
};

struct SampleSet {
  std::vector<AttentionSample> attention;
  std::vector<GemmSample> gemm;
  std::vector<ElementwiseSample> elementwise;
  std::vector<CollectiveSample> collective;
  std::vector<ExchangeSample> exchange;  // rows of collectives, too
};

// Numbers of documents by length: what a row's packed documents were drawn from.
struct DrawnLengths {
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  double documents = 0;
};
using DocumentHistogram = std::vector<DrawnLengths>;
DocumentHistogram read_document_histogram(
    const std::string& path);  // length_min,length_max,n_docs; # comments
// Documents until the total is full, each cut to a quarter of it, the last to what is left. Same seed, same
// documents.
std::vector<std::int64_t> draw_documents(const DocumentHistogram& histogram, std::int64_t total_tokens,
                                         std::uint64_t seed);

// An elementwise kernel as public tables name it.
struct PublishedOp {
  std::string_view name;
  Elementwise kind;
  bool bytes_by_shape = false;  // else by the row's published rate
};
const PublishedOp* published_op(std::string_view name);  // null: none that we model

enum class SampleTable { attention, gemm, elementwise, collective };  // in the order of kTableNames
SampleTable table_kind(const CsvTable& table);  // by its columns; throws UserError where none fits

// A row as a sample, or why it cannot be one (no shape, no such op): `reason` is set then. A row without a
// time gives a sample with seconds 0.
std::optional<AttentionSample> attention_row(const CsvTable& table, std::size_t row,
                                             const DocumentHistogram& histogram, std::string& reason);
std::optional<GemmSample> gemm_row(const CsvTable& table, std::size_t row, std::string& reason);
std::optional<ElementwiseSample> elementwise_row(const CsvTable& table, std::size_t row, std::string& reason);
std::optional<CollectiveSample> collective_row(const CsvTable& table, std::size_t row, std::string& reason);

// Adds every measured row of the table; returns how many were left out.
std::size_t add_rows(const CsvTable& table, const DocumentHistogram& histogram, SampleSet& set);

// Adds the lists of a samples file (profiler/README.md).
void add_json(const nlohmann::json& file, const std::string& path, SampleSet& set);

// Rows of public tables about exchanges of tokens: what each of them moved, and in what time.

// The sample of a row, nothing where the row is about something else; `reason` says what a row lacks that is
// about an exchange. A row without a time gives a sample with seconds 0.
//
// "alltoall point-to-point RDMA (…)": NICs that stream messages of size_bytes at algbw_GBps: the time of one.
// "alltoall (EP dispatch)", "(EP combine)", by DeepEP's normal kernels: a bandwidth and no size. The
// benchmark (github.com/deepseek-ai/DeepEP, docs/legacy.md and tests/test_internode.py, test_intranode.py)
// says both: 4,096 tokens a rank, 7,168 wide, 8 of 256 experts on at most 4 nodes, FP8 with a scale of 4
// bytes for each 128 elements there, bf16 back. Its bandwidth is logical: between nodes it counts every node
// that a token goes to, inside a node every rank, the own ones included. A row that states its setting
// (`tokens`, `hidden`, `topk`, `experts`) has a time instead. "alltoall low latency (…)": 128
// tokens a rank, and the time; every copy sent.
std::optional<ExchangeSample> exchange_row(const CsvTable& table, std::size_t row, std::string& reason);

// --- What a profile says of rows of a public table (profiler/fit/samples.h has their columns): each by the
// table that was fitted to such rows, else by the one that the simulator would use.

struct PredictChoices {
  std::string kernel;           // attention table; empty: the one fitted to such rows, else the default
  std::string network;          // of rows between nodes; empty: the one whose name the row holds
  double nic_GBps = 0;          // of rows between nodes; 0: the rate the network was fitted at
  DocumentHistogram histogram;  // of rows whose documents are named by their distribution only
};

struct RowPrediction {
  double seconds = 0;
  double measured = 0;  // 0: the row has no time
  std::string group;    // of the summary
  std::string unable;   // why there is no prediction; empty: there is one
  [[nodiscard]] double error() const { return seconds / measured - 1; }
};

struct Predictions {
  std::vector<RowPrediction> rows;                         // of the table, in its order
  std::map<std::string, std::vector<double>> errors;       // by group, of rows with a measured time
  std::map<std::string, std::vector<std::size_t>> unable;  // lines of the file, by reason
};

// Throws UserError with file and line for a row that the profile refuses, and where none of the rows can be
// predicted.
Predictions predict_rows(const Profile& profile, const CsvTable& table, const PredictChoices& choices);

}  // namespace equipoise
