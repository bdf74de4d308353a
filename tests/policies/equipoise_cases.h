// What equipoise's tests share: a workload whose exchanges cost, and random jobs.
#pragma once

#include <cstdint>
#include <span>

#include "policies/base/random.h"
#include "policies/packing/packing.h"
#include "policies/policy.h"
#include "policies/workload.h"

namespace equipoise {

// Spreading a document costs a quarter of its tokens more than its share of the work.
class ExchangedWorkload : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto n = static_cast<double>(tokens[i]);
      out[i] = n * (40 + n);
    }
  }
  void spread(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override {
    of(tokens, out);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      out[i] = out[i] / degree + (degree > 1 ? 10 * static_cast<double>(tokens[i]) : 0);
  }
};

inline PackOptions random_job(SplitMix64& random) {
  PackOptions options;
  options.context_window = 256;
  options.lanes = 1 + static_cast<int>(random.next() % 3);
  options.context = 1 + static_cast<int>(random.next() % 2);
  options.stages = 1 << (random.next() % 3);
  options.chunks = options.stages > 1 ? 1 + static_cast<int>(random.next() % 2) : 1;
  options.lane_round = options.chunks > 1 ? options.stages : 1;
  options.sequences_per_step = options.lanes * 4;
  options.waiting_lanes = random.next() % 2 == 0 ? options.lanes : 1;
  options.verify = true;
  options.of<EquipoiseOptions>().moves = 400;
  return options;
}

}  // namespace equipoise
