// Kernel and collective latency models: what a profile file predicts. Built once a run from a profile, then
// called in the simulator's hot loops: no allocation, no lookup by name, no virtual call inside.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace equipoise {

struct AttentionCall;  // profiler/profile/attention.h: the pieces of a call, counted
struct ExchangeLoad;   // profiler/profile/collective.h: what a GPU's links carry
class Profile;         // profiler/profile/profile.h: the parsed file

// Counts of predictions, and of those that lay beyond the samples the fit was made from (but inside the
// validity range that the profile declares). A call outside the validity range throws UserError. Calls to a
// derived table are all beyond: no sample of that kernel on that device stands behind them.
struct RangeUse {
  std::int64_t calls = 0;
  std::int64_t beyond_samples = 0;
  std::int64_t derived = 0;  // of those, to derived tables
  void note(bool beyond, bool is_derived) {
    calls += 1;
    beyond_samples += beyond ? 1 : 0;
    derived += is_derived ? 1 : 0;
  }
  void operator+=(const RangeUse& other) {
    calls += other.calls;
    beyond_samples += other.beyond_samples;
    derived += other.derived;
  }
  friend bool operator==(const RangeUse&, const RangeUse&) = default;
};

// One piece of a packed variable-length causal attention call: bottom-right aligned, keys >= queries.
struct QueryKeys {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

// Heads are those on this GPU (after TP and Ulysses).
struct AttentionHeads {
  int head_dim = 128;
  int query_heads = 32;
  int kv_heads = 32;
};

class AttentionModel {
 public:
  // `kernel`: one of the profile's attention kernels; empty: its default. Throws UserError.
  AttentionModel(const Profile& profile, AttentionHeads heads, std::string_view kernel = {});

  // Seconds of one packed kernel call over all pieces, launch included; 0 for no pieces. `window`: a query
  // sees at most so many keys up to its own, and the kernel leaves out the blocks before (0: it sees all).
  [[nodiscard]] double forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                       std::int64_t window = 0) const;
  [[nodiscard]] double backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                        std::int64_t window = 0) const;
  // Whether a call's time follows from its counts alone: no mask over documents, no loops of a CPU core.
  [[nodiscard]] bool prices_counts() const;
  // The same of a call that is counted already; only where counts are priced.
  [[nodiscard]] double forward_seconds(const AttentionCall& call, RangeUse& use) const;
  [[nodiscard]] double backward_seconds(const AttentionCall& call, RangeUse& use) const;

  // What no call can beat, however its queries are cut into pieces and shared out over calls: seconds of each
  // query and of each visible pair of a query and a key. Zero where the form gives none.
  struct Least {
    double per_query = 0, per_pair = 0;
  };
  [[nodiscard]] Least least_forward() const;
  [[nodiscard]] Least least_backward() const;

 private:
  struct Fit;
  std::shared_ptr<Fit> fit_;  // one for all copies
};

// What a GEMM of a linear layer with weights [out, in] computes: with tokens as rows, the output, the
// gradient of the input, the gradient of the weights. The operands lie differently, which a CPU's library
// feels.
enum class GemmRole { forward, input_gradient, weight_gradient };
inline constexpr std::array<std::string_view, 3> kGemmRoleNames{"forward", "input_gradient",
                                                                "weight_gradient"};

// What runs before a product: calls of its kind alone, as the profile was measured, or a training step, which
// has the GPU at its power limit: there a small product finds the clock that only large ones bring about
// themselves.
enum class Load { as_measured, full };

class GemmModel {
 public:
  // `kernel`: a grouped one of the profile's ("cutlass-grouped"); empty: the library's single GEMM.
  GemmModel(const Profile& profile, Precision precision, std::string_view kernel = {},
            Load load = Load::as_measured);

  // Seconds of C[m, n] = A[m, k] * B[k, n], launch included; 0 if any size is 0. `groups`: so many such
  // products in one launch, with matrices of their own. `output_bytes`: moved of an element of C, where that
  // is not a bf16 result; the forms of CPUs do not ask.
  [[nodiscard]] double seconds(std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use,
                               GemmRole role = GemmRole::forward, std::int64_t groups = 1,
                               double output_bytes = 2) const;

 private:
  struct Fit;
  std::shared_ptr<Fit> fit_;  // one for all copies
};

using kernels::Elementwise;
// A pass does other arithmetic on a byte than the other does; a profile may have a table for each.
using ElementwisePass = kernels::Pass;

class ElementwiseModel {
 public:
  // `from_memory`: operands are never found in a cache, as in a training step, whose other ops have passed
  // through it since.
  explicit ElementwiseModel(const Profile& profile, bool from_memory = false);

  // Seconds of an op that moves `bytes` (each input read once, each output written once), launch included.
  [[nodiscard]] double seconds(Elementwise op, double bytes, RangeUse& use,
                               ElementwisePass pass = ElementwisePass::forward) const;
  // Whether the profile has times of an op that it may do without.
  [[nodiscard]] bool has(Elementwise op) const;

 private:
  struct Fit;
  std::shared_ptr<Fit> fit_;  // one for all copies
};

// The cluster's network, from the study file (the profile has defaults).
struct NetworkRates {
  double nic_GBps = 0;    // one direction, one GPU's NIC; 0: the profile's default
  std::string name = {};  // which of the profile's fitted networks (latency, efficiency); empty: its default
};

class CollectiveModel {
 public:
  CollectiveModel(const Profile& profile, const NetworkRates& network);

  // Seconds of one collective. `bytes` by nccl-tests' convention: the total over ranks for all_gather,
  // reduce_scatter and all_to_all (one rank's whole send buffer), the buffer for all_reduce and send_recv.
  // 0 for one rank or no bytes, so that one GPU needs no table of collectives.
  [[nodiscard]] double seconds(Collective kind, double bytes, GroupShape group, RangeUse& use) const;
  // Seconds of a byte that no size can beat (the links' rate, without latency and ramp); 0 where the form
  // gives none.
  [[nodiscard]] double least_seconds_per_byte(Collective kind, GroupShape group) const;

  // Seconds of an exchange of tokens by DeepEP's normal kernels. 0 for one rank or no bytes. Throws UserError
  // where the profile has no times of them.
  [[nodiscard]] double forwarded_seconds(const ExchangeLoad& load, GroupShape group, RangeUse& use) const;

 private:
  struct Fit;
  std::shared_ptr<Fit> fit_;  // one for all copies
};

}  // namespace equipoise
