// What every op of a rank works with: its device memory, its parameters, the model's sizes on it, its groups.
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

// Ranks that communicate: elements of the backend's type, and f32 (statistics).
struct Group {
  kernels::Communicator* elements = nullptr;
  kernels::Communicator* floats = nullptr;

  [[nodiscard]] int size() const { return elements == nullptr ? 1 : elements->size(); }
  [[nodiscard]] int rank() const { return elements == nullptr ? 0 : elements->rank(); }
};

struct RankContext {
  const ModelShape& model;
  Layout layout;  // the study's; how CP ranks exchange, that of the step that runs
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
  bool repeats_attention = false;   // of the step that runs: selective recompute
  bool evens_out_stages = false;    // of that step
  const StageTick* tick = nullptr;  // of the op that runs, with a schedule of ticks

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
  // Sequence parallelism: rows of this TP rank of `rows` of its CP rank, rounded up.
  [[nodiscard]] std::int64_t sequence_rows(std::int64_t rows) const {
    return (rows + layout.tensor - 1) / layout.tensor;
  }
};

}  // namespace equipoise::execution
