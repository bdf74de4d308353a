// What every op of a rank uses: its device memory, its parameters, the model's sizes on it, its groups.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/device_memory.h"
#include "sim/execution/executable_step.h"
#include "sim/execution/parts.h"
#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise::execution {

// Ranks that communicate values of the backend's type, and f32 (statistics).
struct Group {
  kernels::Communicator* elements = nullptr;
  kernels::Communicator* floats = nullptr;

  [[nodiscard]] int size() const { return elements == nullptr ? 1 : elements->size(); }
  [[nodiscard]] int rank() const { return elements == nullptr ? 0 : elements->rank(); }
};

struct RankContext {
  const ModelShape& model;
  Layout layout;  // the study's, with the CP form of the running step
  kernels::Backend& backend;
  MemoryPool& pool;
  RankPlace place;
  LocalHeads heads;
  LocalVocabulary vocabulary;
  std::int64_t ffn = 0;  // of this TP rank
  Group tensor, replicas, stages;
  std::uint64_t seed = 0;
  const RankGrid* grid = nullptr;
  int replica_count = 1;            // data x context
  bool repeats_attention = false;   // selective recompute, for the running step
  bool evens_out_stages = false;    // for the running step
  const StageTick* tick = nullptr;  // of the running op, if the schedule has ticks

  [[nodiscard]] std::size_t element_bytes() const { return kernels::bytes_of(backend.element_type()); }
  [[nodiscard]] Memory elements(std::int64_t count) const {
    return pool.take(static_cast<std::size_t>(count) * element_bytes());
  }
  [[nodiscard]] Memory floats(std::int64_t count) const {
    return pool.take(static_cast<std::size_t>(count) * sizeof(float));
  }
  // Element `offset` of a buffer of the backend's type.
  [[nodiscard]] void* at(void* data, std::int64_t offset) const {
    return static_cast<char*>(data) + static_cast<std::size_t>(offset) * element_bytes();
  }
  [[nodiscard]] void* at(const Memory& memory, std::int64_t offset) const {
    return at(memory.data(), offset);
  }
  void copy(void* target, const void* source, std::int64_t count) const {
    if (count > 0) backend.copy(target, source, static_cast<std::size_t>(count) * element_bytes());
  }
  void zero(void* target, std::int64_t count) const {
    if (count > 0) backend.clear(target, static_cast<std::size_t>(count) * element_bytes());
  }
  // target += source
  void add(void* target, const void* source, std::int64_t count) const {
    if (count > 0) backend.run(kernels::ResidualAdd{count, target, source, target});
  }
  // Rows of this TP rank under sequence parallelism: its share of `rows` of the CP rank, rounded up.
  [[nodiscard]] std::int64_t sequence_rows(std::int64_t rows) const {
    return (rows + layout.tensor - 1) / layout.tensor;
  }
};

}  // namespace equipoise::execution
