// Running a study's rows on ranks that are threads, for the equivalence tests.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/execution/equivalence.h"
#include "tests/execution/nccl_order.h"

namespace equipoise::testing {

// What a mutation test changes before the step is run; the judge keeps the step as it was planned.
using ChangeStep = std::function<void(execution::ExecutableStep&)>;
// The backend of each rank, as it comes into being.
using WrapBackend =
    std::function<std::unique_ptr<kernels::Backend>(std::unique_ptr<kernels::Backend>, int rank)>;

struct EquivalenceOptions {
  std::size_t row = 0;
  std::size_t step = 0;  // of the plan, modulo its steps
  execution::LossNormalizer normalizer = execution::LossNormalizer::token;
  std::uint64_t seed = 7;  // of weights and tokens
  bool fold_tp = true;     // the program has one task for a TP group, or one for each of its ranks
  ChangeStep change;
  WrapBackend wrap;
  std::function<void(const NcclRecord&)> told;  // all calls of a run that ended
};

// A study of one row: a tiny model on random documents. `parallel` and `batch` are merged in; lengths stand
// in the study itself, as trace.lengths, which no file of a user may have.
nlohmann::json tiny_study(const nlohmann::json& parallel, const nlohmann::json& policy,
                          const nlohmann::json& batch = nlohmann::json::object(),
                          const std::vector<std::int64_t>& lengths = {});

// A row's step ready to run.
struct PreparedStep {
  std::string refused;  // the row cannot run: why; then there is nothing else
  ModelShape model;
  Layout layout;
  std::optional<RankGrid> grid;
  execution::ExecutableStep step;
};
PreparedStep prepare_step(const nlohmann::json& study, const EquivalenceOptions& options = {});

// `body` on every rank of its layout, each a thread. Throws what a rank throws. Returns what would be wrong with the
// ranks' calls over NCCL (nccl_order.h), or nothing.
using OnRank = std::function<void(execution::RankExecutor&, kernels::Communicator& world)>;
std::string run_ranks(const PreparedStep& prepared, const EquivalenceOptions& options, const OnRank& body);

struct EquivalenceResult {
  std::string refused;
  execution::Equivalence equivalence;
  std::string nccl_fault;
  int ranks = 0;
};

// Plans the study's row, runs its step, checks it. Throws what a rank throws.
EquivalenceResult run_equivalence(const nlohmann::json& study, const EquivalenceOptions& options = {});

}  // namespace equipoise::testing
