// Latency models of kernels and collectives, built from a profile once per run. The simulator calls them in
// its hot loops, so a call allocates nothing, looks up no name and is not virtual.
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

struct AttentionCall;  // profiler/profile/attention.h: a call's pieces, counted
struct ExchangeLoad;   // profiler/profile/collective.h: what a GPU's links carry
class Profile;         // profiler/profile/profile.h: the parsed file

// Counts predictions and their seconds, and those that lay outside the fitted samples but inside the validity
// range that the profile declares. A call outside the validity range throws UserError. All calls to a derived
// table count as outside, since no sample of that kernel on that device exists.
struct RangeUse {
  std::int64_t calls = 0;
  std::int64_t beyond_samples = 0;
  std::int64_t derived = 0;  // the part of them that used derived tables
  double seconds = 0;        // of all calls
  double beyond_seconds = 0;
  // Returns the seconds of the call.
  double note(bool beyond, bool is_derived, double call_seconds) {
    calls += 1;
    beyond_samples += beyond ? 1 : 0;
    derived += is_derived ? 1 : 0;
    seconds += call_seconds;
    beyond_seconds += beyond ? call_seconds : 0;
    return call_seconds;
  }
  // The calls of `other` were predicted once and run so many times.
  void add(const RangeUse& other, double times) {
    calls += other.calls;
    beyond_samples += other.beyond_samples;
    derived += other.derived;
    seconds += times * other.seconds;
    beyond_seconds += times * other.beyond_seconds;
  }
  void operator+=(const RangeUse& other) { add(other, 1); }
  friend bool operator==(const RangeUse&, const RangeUse&) = default;
};

// One piece of a packed variable-length attention call with a bottom-right causal mask; keys >= queries.
struct QueryKeys {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  bool row = false;  // a row of a padded batch: it shares its sequence with no other piece
};

// The heads that one GPU computes, after TP and Ulysses have divided them.
struct AttentionHeads {
  int head_dim = 128;
  int query_heads = 32;
  int kv_heads = 32;
};

class AttentionModel {
 public:
  // `kernel`: one of the profile's attention kernels; empty: its default. Throws UserError.
  AttentionModel(const Profile& profile, AttentionHeads heads, std::string_view kernel = {});

  // Seconds of one packed kernel call over all pieces, launch included; 0 for no pieces. `window`:
  // a query sees at most so many keys up to its own, and the kernel skips the blocks before (0: no window).
  [[nodiscard]] double forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                       std::int64_t window = 0) const;
  [[nodiscard]] double backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                        std::int64_t window = 0) const;
  // Whether the counts of a call determine its time, as they do unless documents are masked or a CPU core
  // runs it.
  [[nodiscard]] bool prices_counts() const;
  // The time of a call that is already counted. Requires prices_counts().
  [[nodiscard]] double forward_seconds(const AttentionCall& call, RangeUse& use) const;
  [[nodiscard]] double backward_seconds(const AttentionCall& call, RangeUse& use) const;

  // A lower bound on the time of calls, however queries are cut into pieces and distributed over calls:
  // seconds per query and per visible pair of a query and a key. Zero where the form gives no bound.
  struct Least {
    double per_query = 0, per_pair = 0;
  };
  [[nodiscard]] Least least_forward() const;
  [[nodiscard]] Least least_backward() const;

 private:
  struct Fit;
  std::shared_ptr<const Fit> fit_;  // one for all of a profile
};

// What a GEMM of a linear layer with weights [out, in] and tokens as rows computes: the output, the gradient
// of the input, or the gradient of the weights. Their operands have different layouts, which changes the
// speed of a CPU's library.
enum class GemmRole { forward, input_gradient, weight_gradient };
inline constexpr std::array<std::string_view, 3> kGemmRoleNames{"forward", "input_gradient",
                                                                "weight_gradient"};

// What runs before a product: the same product, as the profile was measured, or a training step that keeps
// the GPU at its power limit. In a step, small products also run at the lower clock that only large products
// cause when they run alone.
enum class Load { as_measured, full };

class GemmModel {
 public:
  // `kernel`: one of the profile's grouped kernels ("cutlass-grouped"); empty: the library's single GEMM.
  GemmModel(const Profile& profile, Precision precision, std::string_view kernel = {},
            Load load = Load::as_measured);

  // Seconds of C[m, n] = A[m, k] * B[k, n], launch included; 0 if any size is 0. `groups`: so many such
  // products in one launch, with matrices of their own. `output_bytes`: bytes
  // moved per element of C, 2 for a bf16 result; the forms of CPUs ignore it.
  [[nodiscard]] double seconds(std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use,
                               GemmRole role = GemmRole::forward, std::int64_t groups = 1,
                               double output_bytes = 2) const;

 private:
  struct Fit;
  std::shared_ptr<const Fit> fit_;  // one for all of a profile
};

using kernels::Elementwise;
// The passes do different arithmetic per byte, so a profile may have a table for each.
using ElementwisePass = kernels::Pass;

class ElementwiseModel {
 public:
  // `from_memory`: operands are never found in a cache, as in a training step, whose other ops have replaced
  // them.
  explicit ElementwiseModel(const Profile& profile, bool from_memory = false);

  // Seconds of an op that moves `bytes` (each input read once, each output written once), launch included.
  [[nodiscard]] double seconds(Elementwise op, double bytes, RangeUse& use,
                               ElementwisePass pass = ElementwisePass::forward) const;
  // Whether the profile has times of an op. Some ops are optional.
  [[nodiscard]] bool has(Elementwise op) const;

 private:
  struct Fit;
  std::shared_ptr<const Fit> fit_;  // one for all of a profile
};

// The cluster's network as the study file states it; the profile has defaults.
struct NetworkRates {
  double nic_GBps = 0;    // one direction, one GPU's NIC; 0: the profile's default
  std::string name = {};  // one of the profile's fitted networks; empty: its default
};

class CollectiveModel {
 public:
  CollectiveModel(const Profile& profile, const NetworkRates& network);

  // Seconds of one collective. `bytes` by nccl-tests' convention: the total over ranks for all_gather,
  // reduce_scatter and all_to_all (one rank's whole send buffer), the buffer for all_reduce and send_recv.
  // One rank or no bytes take 0 seconds, so that one GPU needs no table of collectives.
  [[nodiscard]] double seconds(Collective kind, double bytes, GroupShape group, RangeUse& use) const;
  // A lower bound on the seconds per byte: the links' rate without latency and ramp. 0 where the form gives
  // none.
  [[nodiscard]] double least_seconds_per_byte(Collective kind, GroupShape group) const;

  // Seconds of an exchange of tokens by DeepEP's normal kernels. One rank or no bytes take 0
  // seconds. Throws UserError where the profile has no times of them.
  [[nodiscard]] double forwarded_seconds(const ExchangeLoad& load, GroupShape group, RangeUse& use) const;

 private:
  struct Fit;
  std::shared_ptr<const Fit> fit_;  // one for all of a profile
};

}  // namespace equipoise
