// Running a study's rows on ranks that are threads, for the equivalence tests.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/execution/equivalence.h"

namespace equipoise::testing {

// What a mutation test changes before the step is run; the judge keeps the step as it was planned.
using ChangeStep = std::function<void(execution::ExecutableStep&)>;
using WrapBackend = std::function<std::unique_ptr<kernels::Backend>(std::unique_ptr<kernels::Backend>)>;

struct EquivalenceOptions {
  int steps = 1;  // that are run; the last one is checked against the initial weights only if it is the first
  std::uint64_t seed = 7;
  ChangeStep change;
  WrapBackend wrap;
};

// A study of one row: a tiny model on random documents. `parallel`, `policy` and `batch` are merged in.
nlohmann::json tiny_study(const nlohmann::json& parallel, const nlohmann::json& policy,
                          const nlohmann::json& batch = {}, const std::vector<std::int64_t>& lengths = {});

struct EquivalenceResult {
  std::string refused;  // the row cannot run: why
  execution::Equivalence equivalence;
  int ranks = 0;
};

// Plans the study's row number `row`, runs its first step on threads, checks it.
EquivalenceResult run_equivalence(const nlohmann::json& study, std::size_t row,
                                  const EquivalenceOptions& options);

}  // namespace equipoise::testing
