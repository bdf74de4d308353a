// Measured kernel and collective times as the fits read them, wherever they come from: public CSV tables
// (sample_tables.h), lists that `profile` wrote (sample_lists.h), or files of other tools (nccl_tests.h,
// torch_trace.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"

namespace equipoise {

// The highest number of ranks, rows, heads or tokens in a sample. It fits an int; a larger one is a typing
// error.
inline constexpr double kMostCount = 2147483647;

// Text columns by name (gpu, kernel, dtype, op, pass, ...). A recipe selects a table's samples by them.
using Labels = std::map<std::string, std::string>;
inline std::string label(const Labels& labels, const std::string& name) {
  return labels.contains(name) ? labels.at(name) : std::string();
}

struct AttentionSample {
  Labels labels;
  std::string pass;  // forward, backward, both
  AttentionHeads heads;
  AttentionMask mask;
  // The call's documents: one list, or several draws where a row names only their distribution.
  std::vector<std::vector<QueryKeys>> packings;
  BlockedAttentionWork blocked;  // the same call counted for a CPU core; only in samples of `profile`
  std::vector<double> seconds;   // seconds of each packing
  double uncertainty = 0;        // relative, for a rate read off a chart
  std::int64_t least_queries = 0;
  std::int64_t most_keys = 0;
  std::vector<double> shape;
  // A time of both passes is counted with the tiles of the forward pass.
  [[nodiscard]] AttentionPass counted() const {
    return pass == "backward" ? AttentionPass::backward : AttentionPass::forward;
  }
};

// Operations of a call's matrix products over its unmasked pairs: 2 products forward, 5 backward.
double attention_flops(const AttentionSample& sample, const std::vector<QueryKeys>& packing);

struct GemmSample {
  Labels labels;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 1;  // products of this shape in one launch
  // A call may have more: a second product [m, next_n, next_k] in each group (the down projection), and the
  // bytes that are moved around the products.
  std::int64_t next_n = 0, next_k = 0;
  double moved_bytes = 0;
  std::vector<double> shape;  // samples of equal shape are held out together; n and k if empty
  double seconds = 0;         // 0: not measured
};

// The profile's table that predicts such products: "bf16" or "fp8" for the library's, "bf16-torch-grouped"
// for those of a kernel that the samples name.
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
  [[nodiscard]] bool between_nodes() const { return group.ranks > group.ranks_per_node; }
};

// An exchange of tokens between experts, or a stream of the messages that such an exchange is made of.
struct ExchangeSample {
  Labels labels;
  bool streams = false;  // messages follow one another without a pause, and `seconds` is the time of one
  ExchangeLoad load;
  GroupShape group;
  double seconds = 0;
  std::vector<double> shape;  // samples of equal shape are held out together
};

struct SampleSet {
  std::vector<AttentionSample> attention;
  std::vector<GemmSample> gemm;
  std::vector<ElementwiseSample> elementwise;
  std::vector<CollectiveSample> collective;
  std::vector<ExchangeSample> exchange;  // public tables list them among collectives
};

}  // namespace equipoise
