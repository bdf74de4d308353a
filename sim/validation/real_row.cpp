#include "sim/validation/real_row.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/unplaceable.h"
#include "sim/execution/make_step.h"
#include "sim/report/result_files.h"
#include "sim/study/read/framework.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/row/plan.h"
#include "sim/study/row/simulate.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {
namespace {

RunStudyOptions quiet_options() {
  RunStudyOptions options;
  options.ignore_memory = true;  // the ranks' memory is another than the simulated GPUs'
  options.find_fits = false;
  return options;
}

// What rank 0 decided.
struct Decision {
  std::string reason, shard;
  nlohmann::json plan;
};

Decision decide(const ModelShape& model, RealRow& row) {
  Decision decision;
  try {
    SimulatedRow simulated = simulate_row(row.ready, quiet_options(), Until::all_steps);
    row.plan = std::move(simulated.planned.plan);
    decision.shard = simulated.simulated.shard;
    const RecomputedLayers recomputed(model, row.ready.models->layout);
    decision.plan = plan_json(row.plan, nlohmann::json::object(), &recomputed);
  } catch (const UnplaceableDocument& e) {
    decision.reason = e.what();
  } catch (const UserError& e) {
    decision.reason = e.what();
  }
  return decision;
}

// The same row on another rank: sizes are derived alike, the plan is taken over.
void take_over(const ModelShape& model, const Decision& decision, RealRow& row) {
  StudyRow& ready = row.ready;
  derive_sizes(ready, quiet_options().ignore_memory);
  ready.workload = workload_of(ready);
  const RecomputedLayers recomputed(model, ready.models->layout);
  row.plan = read_plan(decision.plan, "the plan of rank 0", "", recomputed);
}

void make_steps(const StudyInputs& inputs, const RealRowOptions& options, RealRow& row) {
  const execution::DocumentLengths documents(inputs.trace.lengths);
  for (const Step& step : row.plan.steps) {
    if (static_cast<int>(row.steps.size()) == options.steps) break;
    if (step.tail && !row.steps.empty()) continue;
    row.steps.push_back(execution::make_step(row.ready.models->costs, row.ready.rule(row.shard),
                                             row.ready.step_options(), step, documents, options.normalizer));
  }
  if (row.steps.empty()) row.reason = "its plan has no steps";
}

RealRow real_row(const Study& study, const StudyInputs& inputs, std::size_t number,
                 const RealRowOptions& options, kernels::Communicator& world) {
  RealRow row{study.policies[number].label, StudyRow(study, inputs, study.policies[number]), {}, {}, {}, {}};
  resolve_recompute(row.ready, quiet_options());
  execution::check_layout_runs(study.model, row.ready.models->layout);
  Decision decision;
  if (world.rank() == 0) decision = decide(study.model, row);
  const nlohmann::json told = nlohmann::json::parse(broadcast(
      world, nlohmann::json{{"reason", decision.reason}, {"shard", decision.shard}, {"plan", decision.plan}}
                 .dump()));
  row.reason = told["reason"].get<std::string>();
  row.shard = told["shard"].get<std::string>();
  if (!row.runs()) return row;
  if (world.rank() != 0) {
    decision.plan = told["plan"];
    take_over(study.model, decision, row);
  }
  try {
    make_steps(inputs, options, row);
  } catch (const UserError& e) {
    row.reason = e.what();
  }
  return row;
}

}  // namespace

std::string broadcast(kernels::Communicator& world, const std::string& text) {
  if (world.size() == 1) return text;
  // Lengths first; both travel as floats, bit by bit.
  const auto round_up = [](std::size_t bytes) { return (bytes + 3) / 4; };
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(world.size()));
  const std::uint64_t mine = world.rank() == 0 ? text.size() : 0;
  world.all_gather(&mine, lengths.data(), 2);
  std::vector<float> data(round_up(lengths[0]));
  const auto count = static_cast<std::int64_t>(data.size());
  if (world.rank() == 0) {
    std::memcpy(data.data(), text.data(), text.size());
    for (int r = 1; r < world.size(); ++r) world.send(data.data(), count, r);
    return text;
  }
  world.receive(data.data(), count, 0);
  return {reinterpret_cast<const char*>(data.data()), lengths[0]};
}

void use_own_ranks(Study& study) {
  study.framework = framework_of("execution");
  study.layout.reduce_each_micro_batch = false;
}

std::vector<RealRow> real_rows(const Study& study, const StudyInputs& inputs, const RealRowOptions& options,
                               kernels::Communicator& world) {
  std::vector<RealRow> rows;
  std::vector<std::string_view> labels;
  for (std::size_t i = 0; i < study.policies.size(); ++i) {
    labels.push_back(study.policies[i].label);
    if (options.policy.empty() || study.policies[i].label == options.policy)
      rows.push_back(real_row(study, inputs, i, options, world));
  }
  if (rows.empty()) refuse_name("--policy", options.policy, labels);
  return rows;
}

}  // namespace equipoise
