// The cost interface: all that a policy may know about the price of a document.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace equipoise {

struct Slice;

// W(d) = W_a(d) + W_l(d): attention + everything else. Units are the implementation's own (seconds for a
// profiled cost); policies only compare and add. Called once per batch of lengths, outside hot loops.
class Workload {
 public:
  Workload() = default;
  Workload(const Workload&) = default;
  Workload& operator=(const Workload&) = default;
  virtual ~Workload() = default;
  // out[i] = W of a document of tokens[i] tokens; the spans have equal size.
  virtual void of(std::span<const std::int64_t> tokens, std::span<double> out) const = 0;
  // out[i] = time of a document of tokens[i] tokens alone on a CP group of `degree` ranks, in the units of W.
  // The default shares W evenly and moves keys for nothing; a profiled cost adds the communication.
  virtual void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const {
    of(tokens, out);
    for (double& time : out) time /= degree;
  }
};

// W of each slice as a document of its own.
std::vector<double> work_of(std::span<const Slice> slices, const Workload& workload);

// What `--cost` can be: seconds of a profile, d^2, or FLOPs of a model.
enum class CostKind { profiled, quadratic, flops };
inline constexpr std::string_view kCostKindNames[] = {"profiled", "quadratic", "flops"};

// `--cost quadratic`: W(d) = d^2, exact up to 2^53.
class QuadraticWorkload final : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override;
};

// `--cost flops`: forward FLOPs of one layer, Skrull Eq. 13 with b = 1:
// 20 h^2 s + 4 h h_kv s + 4 h s^2, where h_kv = kv_heads * head_dim.
class FlopsWorkload final : public Workload {
 public:
  FlopsWorkload(std::int64_t hidden, std::int64_t kv_hidden) : hidden_(hidden), kv_hidden_(kv_hidden) {}
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override;

 private:
  std::int64_t hidden_;
  std::int64_t kv_hidden_;
};

}  // namespace equipoise
