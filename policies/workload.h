// The cost interface. It is all that a policy knows about the price of a document.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/plan.h"

namespace equipoise {

// The time of a micro-batch on its lane, over all layers.
struct PassTimes {
  double forward = 0;
  double backward = 0;
  [[nodiscard]] double total() const { return forward + backward; }
  friend constexpr PassTimes operator-(const PassTimes& a, const PassTimes& b) {
    return {a.forward - b.forward, a.backward - b.backward};
  }
};

// W(d) = W_a(d) + W_l(d), attention plus everything else. The implementation chooses the unit (seconds for a
// profiled cost), since policies only compare and add. It is called once per batch of lengths, outside hot
// loops.
class Workload {
 public:
  Workload() = default;
  Workload(const Workload&) = default;
  Workload& operator=(const Workload&) = default;
  virtual ~Workload() = default;
  // out[i] = W of a document of tokens[i] tokens; the spans have equal size.
  virtual void of(std::span<const std::int64_t> tokens, std::span<double> out) const = 0;
  // out[i] = time of a document of tokens[i] tokens alone on a CP group of `degree` ranks, in the units of W.
  // The default divides W by the degree and ignores communication; a profiled cost includes it.
  virtual void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const {
    of(tokens, out);
    for (double& time : out) time /= degree;
  }
  // out[i] = the time that a document adds to each rank of its lane's CP group of `degree` ranks when it is
  // distributed among other documents. A document that one rank holds whole adds on_group of degree 1 there.
  virtual void spread(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const {
    of(tokens, out);
    for (double& time : out) time /= degree;
  }
  // The time of a micro-batch on `degree` ranks. The default sums the work of its slowest rank and counts a
  // third of it as forward. A profiled cost prices kernels and exchanges.
  [[nodiscard]] virtual PassTimes of_micro_batch(const MicroBatch& micro_batch, int degree) const {
    const std::vector<std::int64_t> tokens = lengths_of(micro_batch.slices);
    std::vector<double> everywhere(tokens.size()), alone(tokens.size());
    spread(tokens, degree, everywhere);
    on_group(tokens, 1, alone);
    std::vector<double> rank(static_cast<std::size_t>(degree), 0);
    double time = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const int where = micro_batch.placement.empty() ? kDistributed : micro_batch.placement[i];
      (where == kDistributed ? time : rank[static_cast<std::size_t>(where)]) +=
          where == kDistributed ? everywhere[i] : alone[i];
    }
    time += *std::max_element(rank.begin(), rank.end());
    return {time / 3, time * 2 / 3};
  }
  // The part of that time that each token adds on any lane. Lanes that exchange tokens with their experts
  // share this part evenly and wait for each other with the rest. The default is 0.
  [[nodiscard]] virtual PassTimes shared_per_token(int /*degree*/) const { return {}; }
};

// W of each slice as a document of its own.
inline std::vector<double> work_of(std::span<const Slice> slices, const Workload& workload) {
  const std::vector<std::int64_t> tokens = lengths_of(slices);
  std::vector<double> work(tokens.size());
  workload.of(tokens, work);
  return work;
}

// The values of `--cost`: seconds of a profile, d^2, or FLOPs of a model.
enum class CostKind { profiled, quadratic, flops };
inline constexpr std::string_view kCostKindNames[] = {"profiled", "quadratic", "flops"};

// `--cost quadratic` is W(d) = d^2, exact up to 2^53.
class QuadraticWorkload final : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    assert(tokens.size() == out.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto s = static_cast<double>(tokens[i]);
      out[i] = s * s;
    }
  }
};

// `--cost flops` is the forward FLOPs of one layer, Skrull Eq. 13 with b = 1: 20 h^2 s + 4 h h_kv s + 4 h
// s^2, where h_kv = kv_heads * head_dim.
class FlopsWorkload final : public Workload {
 public:
  FlopsWorkload(std::int64_t hidden, std::int64_t kv_hidden) : hidden_(hidden), kv_hidden_(kv_hidden) {}
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    assert(tokens.size() == out.size());
    const auto h = static_cast<double>(hidden_);
    const auto h_kv = static_cast<double>(kv_hidden_);
    const double per_token = 20 * h * h + 4 * h * h_kv;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto s = static_cast<double>(tokens[i]);
      out[i] = per_token * s + 4 * h * s * s;
    }
  }

 private:
  std::int64_t hidden_;
  std::int64_t kv_hidden_;
};

}  // namespace equipoise
