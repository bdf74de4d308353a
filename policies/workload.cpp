#include "policies/workload.h"

#include <cassert>
#include <cstddef>

#include "policies/plan.h"

namespace equipoise {

void QuadraticWorkload::of(std::span<const std::int64_t> tokens, std::span<double> out) const {
  assert(tokens.size() == out.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto s = static_cast<double>(tokens[i]);
    out[i] = s * s;
  }
}

void FlopsWorkload::of(std::span<const std::int64_t> tokens, std::span<double> out) const {
  assert(tokens.size() == out.size());
  const auto h = static_cast<double>(hidden_);
  const auto h_kv = static_cast<double>(kv_hidden_);
  const double per_token = 20 * h * h + 4 * h * h_kv;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto s = static_cast<double>(tokens[i]);
    out[i] = per_token * s + 4 * h * s * s;
  }
}

std::vector<double> work_of(std::span<const Slice> slices, const Workload& workload) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(slices.size());
  for (const Slice& slice : slices) tokens.push_back(slice.tokens());
  std::vector<double> work(tokens.size());
  workload.of(tokens, work);
  return work;
}

}  // namespace equipoise
