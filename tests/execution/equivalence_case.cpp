#include "tests/execution/equivalence_case.h"

#include <utility>

#include "policies/base/error.h"
#include "sim/execution/executable_step.h"
#include "sim/study/row/pipeline.h"

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
        {"hidden", 48},
        {"heads", 4},
        {"kv_heads", 2},
        {"head_dim", 16},
        {"ffn", 96},
        {"vocab", 67},
        {"tied_embeddings", false}}},
      {"cluster", {{"profile", "h100-sxm"}}},
      {"framework", "execution"},
      {"parallel", {{"tensor", 1}, {"context", 1}, {"pipeline", 1}, {"data", 1}}},
      {"batch", {{"context_window", 128}, {"sequences_per_step", 4}, {"micro_batch_size", 1}, {"steps", 1}}},
      {"policies", nlohmann::json::array({policy})}};
  study["parallel"].update(parallel);
  study["batch"].update(batch);
  if (!lengths.empty()) study["trace"] = {{"lengths", lengths}};
  return study;
}

namespace {

// Like load_inputs, where the study may have the lengths.
StudyInputs inputs_of(const Study& study, const nlohmann::json& trace) {
  StudyInputs inputs{Profile::load(study.cluster.profile), {}, {}, {}};
  inputs.trace.lengths = trace.at("lengths").get<std::vector<std::int64_t>>();
  inputs.documents = documents_of(study, inputs.trace);
  return inputs;
}

PreparedStep prepare(const nlohmann::json& file, const EquivalenceOptions& options) {
  const bool has_lengths = file.at("trace").contains("lengths");
  nlohmann::json readable = file;
  if (has_lengths) readable["trace"] = {{"uniform", 1}};
  const Study study = parse_study(readable, "tiny.json");
  const StudyInputs inputs = has_lengths ? inputs_of(study, file.at("trace")) : load_inputs(study);
  RunStudyOptions run_options;
  run_options.ignore_memory = true;
  run_options.keep_plans = true;
  PreparedStep prepared;
  StudyRow row(study, inputs, study.policies.at(options.row));
  resolve_recompute(row, trial_options(run_options));
  const SimulatedRow simulated = simulate_row(row, run_options, Until::all_steps);
  const std::vector<Step>& steps = simulated.planned.plan.steps;
  prepared.step = make_step(row.models->costs, row.rule(simulated.ran.shard), row.step_options(),
                            steps.at(options.step % steps.size()), DocumentLengths(inputs.trace.lengths),
                            options.normalizer, options.fold_tp);
  prepared.model = study.model;
  prepared.layout = row.models->layout;
  prepared.grid = row.models->grid;
  return prepared;
}

}  // namespace

PreparedStep prepare_step(const nlohmann::json& study, const EquivalenceOptions& options) {
  PreparedStep refused;
  try {
    return prepare(study, options);
  } catch (const UserError& e) {  // of a document that fits nowhere, too
    refused.refused = e.what();
  }
  return refused;
}

std::string run_ranks(const PreparedStep& prepared, const EquivalenceOptions& options, const OnRank& body) {
  const auto ranks = static_cast<int>(prepared.layout.gpus());
  NcclRecord record(ranks);
  kernels::run_in_process(ranks, [&](kernels::Communicator& threads) {
    const std::unique_ptr<kernels::Communicator> noted = recorded(threads, record);
    kernels::Communicator& world = *noted;
    std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
    if (options.wrap) backend = options.wrap(std::move(backend), world.rank());
    RankExecutor rank({prepared.model, prepared.layout, *prepared.grid, *backend, world, world, options.seed,
                       longest_attended(prepared.step), nullptr, true});
    body(rank, world);
  });
  if (options.told) options.told(record);
  return nccl_fault(record);
}

EquivalenceResult run_equivalence(const nlohmann::json& study, const EquivalenceOptions& options) {
  const PreparedStep prepared = prepare_step(study, options);
  EquivalenceResult result;
  result.refused = prepared.refused;
  if (!result.refused.empty()) return result;
  ExecutableStep step = prepared.step;
  if (options.change) options.change(step);
  Gathered gathered;
  result.nccl_fault = run_ranks(prepared, options, [&](RankExecutor& rank, kernels::Communicator& world) {
    StepRecord record;
    Gathered mine = rank.run(step, true, record);
    if (world.rank() == 0) gathered = std::move(mine);
  });
  constexpr int kThreads = 2;
  result.ranks = static_cast<int>(prepared.layout.gpus());
  result.equivalence = check_equivalence(prepared.step, gathered, prepared.model, options.seed,
                                         kernels::ElementType::f32, kThreads);
  return result;
}

}  // namespace equipoise::testing
