#include "tests/execution/equivalence_case.h"

#include <memory>
#include <mutex>

#include "policies/base/error.h"
#include "policies/unplaceable.h"
#include "sim/execution/make_step.h"
#include "sim/study/framework.h"
#include "sim/study/ready_row.h"
#include "sim/study/simulate_plan.h"

namespace equipoise::testing {

using namespace execution;

nlohmann::json tiny_study(const nlohmann::json& parallel, const nlohmann::json& policy,
                          const nlohmann::json& batch, const std::vector<std::int64_t>& lengths) {
  nlohmann::json study = {
      {"name", "tiny"},
      {"trace", {{"distribution", "lmsys-chat-1m"}, {"documents", 200}, {"seed", 3}}},
      {"model",
       {{"name", "tiny"},
        {"layers", 4},
        {"hidden", 64},
        {"heads", 4},
        {"kv_heads", 2},
        {"head_dim", 16},
        {"ffn", 96},
        {"vocab", 131},
        {"gated_ffn", true},
        {"tied_embeddings", false}}},
      {"cluster", {{"profile", "h100-sxm"}}},
      {"framework", "execution"},
      {"parallel", {{"tensor", 1}, {"context", 1}, {"pipeline", 1}, {"data", 1}}},
      {"batch", {{"context_window", 256}, {"sequences_per_step", 4}, {"micro_batch_size", 1}, {"steps", 2}}},
      {"policies", nlohmann::json::array({policy})}};
  study["parallel"].update(parallel);
  if (!batch.is_null()) study["batch"].update(batch);
  if (!lengths.empty()) study["trace"] = {{"lengths", lengths}};
  return study;
}

EquivalenceResult run_equivalence(const nlohmann::json& file, std::size_t row,
                                  const EquivalenceOptions& options) {
  EquivalenceResult result;
  const Study study = parse_study(file, "equivalence.json");
  const StudyInputs inputs = load_inputs(study);
  RunStudyOptions run_options;
  run_options.ignore_memory = true;
  ReadyRow ready;
  ExecutableStep step;
  try {
    ready = row_with_models(study, inputs, study.policies.at(row), run_options);
    plan_ready_row(study, inputs, run_options, ready);
    const Run run = ready.run(study, inputs, run_options);
    const SimulatedPlan simulated = simulate_plan(run, ready.planned.plan, Until::all_steps);
    step = make_step(ready.models->costs, run.rule(simulated.shard), run.step_options(),
                     ready.planned.plan.steps.at(0), DocumentLengths(inputs.trace.lengths),
                     LossNormalizer::token);
  } catch (const UnplaceableDocument& e) {
    result.refused = e.what();
    return result;
  } catch (const UserError& e) {
    result.refused = e.what();
    return result;
  }
  const ExecutableStep planned = step;
  if (options.change) options.change(step);
  const Layout& layout = ready.models->layout;
  result.ranks = static_cast<int>(layout.gpus());
  Gathered gathered;
  kernels::run_in_process(result.ranks, [&](kernels::Communicator& world) {
    std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
    if (options.wrap) backend = options.wrap(std::move(backend));
    RankExecutor rank({study.model, layout, ready.models->grid, *backend, world, world, options.seed,
                       longest_attended(step), true});
    StepRecord record;
    Gathered mine = rank.run(step, true, record);
    if (world.rank() == 0) gathered = std::move(mine);
  });
  result.equivalence =
      check_equivalence(planned, gathered, study.model, options.seed, kernels::ElementType::f32, 2);
  return result;
}

}  // namespace equipoise::testing
