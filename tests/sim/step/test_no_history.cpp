// A step's result says nothing of the steps that its simulator ran before: any step behind any other equals
// the same step from a fresh simulator, whole results compared.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/workload.h"
#include "sim/step/op_step_simulator.h"
#include "sim/topology/fabric.h"
#include "tests/sim/models.h"
#include "tests/sim/step/random_job.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct Setting {
  const char* text;
  int pipeline = 2, expert = 1, zero = 1;
  const char* schedule = "1f1b";
};

constexpr Setting kSettings[] = {
    {"lanes on their own"},
    {"split backwards", 2, 1, 1, "zb-h1"},
    {"dependent chunks", 2, 1, 1, "state-aware-1f1b"},
    {"experts over lanes", 2, 4, 1},
    {"ZeRO-2, every micro-batch reduced", 2, 1, 2},
    {"ZeRO-3", 1, 1, 3},
};

Layout layout_of(const Setting& setting, ContextComm form) {
  Layout layout;
  layout.data = 2;
  layout.context = 4;
  layout.pipeline = setting.pipeline;
  layout.expert = setting.expert;
  layout.zero = setting.zero;
  layout.context_comm = form;
  layout.context_inner = 2;
  layout.recompute = form == ContextComm::ring ? Recompute::selective : Recompute::layers;
  layout.recompute_layers = 3;
  layout.nano_batches = setting.expert > 1 ? 1 : 2;
  return layout;
}

ModelShape model_for(const Setting& setting) {
  ModelShape model = builtin_model("wlb-550m");
  model.layers = 6;
  if (setting.expert > 1) model.moe = MoeShape{8, 2, 0, model.ffn, 1};
  return model;
}

void add_chunks(SplitMix64& random, std::int64_t document, Lane& lane) {
  const int pieces = 2 + static_cast<int>(below(random, 2));
  for (int i = 0; i < pieces; ++i) {
    MicroBatch& chunk = lane.micro_batches.emplace_back();
    chunk.slices = {{document, i * 512, (i + 1) * 512}};
    chunk.chunk = {document, i, pieces, 0};
  }
}

// Lanes of unlike CP degrees, numbers of micro-batches and barrier groups, now and then without any work.
Step random_step(SplitMix64& random, const Setting& setting, bool places) {
  static const std::vector<std::vector<int>> kLanes = {{4, 4}, {2, 2, 4}, {4, 2, 2}, {8}, {1, 2, 4, 1}};
  const bool alike = setting.expert > 1;  // an expert group may only span lanes of one CP degree
  Step step;
  std::int64_t document = 0;
  const bool barrier = below(random, 4) == 0;
  for (const int context : kLanes[alike ? 0 : below(random, kLanes.size())]) {
    Lane& lane = step.lanes.emplace_back();
    lane.context = context;
    lane.barrier_group = barrier && step.lanes.size() > 1 ? 1 : 0;
    for (std::uint64_t n = below(random, 5); n > 0; --n) {
      if (std::string(setting.schedule) == "state-aware-1f1b" && below(random, 3) == 0) {
        add_chunks(random, document++, lane);
        continue;
      }
      MicroBatch micro_batch;  // short documents: some rules place single tokens
      for (std::uint64_t d = below(random, 6); d > 0; --d)
        micro_batch.slices.push_back({document++, 0, static_cast<std::int64_t>(below(random, 600)) + 1});
      if (places && below(random, 3) == 0)
        for (std::size_t i = 0; i < micro_batch.slices.size(); ++i)
          micro_batch.placement.push_back(
              static_cast<int>(below(random, static_cast<std::uint64_t>(context) + 1)) - 1);
      if (below(random, 3) == 0) micro_batch.recompute_layers = static_cast<int>(below(random, 7));
      lane.micro_batches.push_back(std::move(micro_batch));
    }
  }
  return step;
}

ShardRule rule_of(const ShardPolicy& policy, const Workload& workload) {
  ShardRule rule = shard_by(std::string(policy.name).c_str());
  rule.options.bucket_size = 500;
  rule.options.workload = &workload;
  if (policy.name == "adaptive") rule.choice = ShardChoice::adaptive;
  if (policy.name == "optimal") rule.choice = ShardChoice::optimal;
  return rule;
}

StepOptions options_of(const Setting& setting) {
  StepOptions options;
  options.schedule = &schedule_policy(setting.schedule);
  options.record_ops = options.record_gpus = true;
  return options;
}

// Runs steps on one simulator, each against a fresh one.
template <class Fresh>
void check_no_history(const Fresh& fresh, const Setting& setting, std::uint64_t seed, bool places) {
  SplitMix64 random(seed);
  auto reused = fresh();
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    const Step step = random_step(random, setting, places);
    const StepResult again = reused.run(step);
    const StepResult expected = fresh().run(step);
    CHECK(again.work == expected.work);
    CHECK(again.times == expected.times);
  }
}

}  // namespace

TEST_CASE("A step equals the same step from a fresh simulator, whatever ran before, at both fidelities") {
  const FlopsWorkload workload(1024, 1024);
  for (const Setting& setting : kSettings)
    for (const ContextComm form :
         {ContextComm::all_gather, ContextComm::ring, ContextComm::ulysses, ContextComm::ulysses_ring,
          ContextComm::group_cast, ContextComm::disaggregated}) {
      const Models models(model_for(setting), layout_of(setting, form));
      for (const ShardPolicy& policy : sharding_policies()) {
        // Every rule where lanes run on their own; the other settings differ in what comes behind it.
        const bool first = &setting == &kSettings[0];
        if (!first && policy.name != "per-document" && policy.name != "dacp") continue;
        // It takes neither striped tokens nor dependent chunks.
        if (form == ContextComm::disaggregated && (policy.deals_tokens || &setting == &kSettings[2]))
          continue;
        CAPTURE(setting.text);
        CAPTURE(name_of(form));
        CAPTURE(policy.name);
        const ShardRule rule = rule_of(policy, workload);
        const StepOptions options = options_of(setting);
        const bool places = form == ContextComm::all_gather || form == ContextComm::group_cast;
        check_no_history([&] { return StepSimulator(models.costs, rule, options, &models.memory); }, setting,
                         7, places);
        check_no_history([&] { return OpStepSimulator(models.costs, rule, options, {}, &models.memory); },
                         setting, 8, places);
      }
    }
}

TEST_CASE("A step with contention, jitter and slow GPUs equals the same step from a fresh simulator") {
  for (const Setting& setting : kSettings) {
    CAPTURE(setting.text);
    const Models models(model_for(setting), layout_of(setting, ContextComm::all_gather));
    const ShardRule rule = shard_by("per-document");
    const StepOptions options = options_of(setting);
    FabricOptions links;
    links.gpus = models.grid.gpus();
    links.gpus_per_node = 4;
    links.nvlink_GBps = 100;
    links.nic_GBps = 5;
    const Fabric fabric(links);
    OpStepOptions shared;
    shared.fabric = &fabric;
    OpStepOptions noisy;
    noisy.jitter = {0.1, 3};
    noisy.speed.assign(static_cast<std::size_t>(models.grid.gpus()), 1.0);
    noisy.speed[1] = 0.5;
    for (const OpStepOptions& op : {shared, noisy})
      check_no_history([&] { return OpStepSimulator(models.costs, rule, options, op, &models.memory); },
                       setting, 9, true);
  }
}

TEST_CASE("A step that the schedule refused leaves nothing behind") {
  Setting setting{"interleaved", 2, 1, 1, "interleaved-1f1b"};
  Layout layout = layout_of(setting, ContextComm::all_gather);
  layout.virtual_pipeline = 2;
  const Models models(model_for(setting), layout);
  const ShardRule rule = shard_by("per-document");
  StepSimulator simulator(models.costs, rule, options_of(setting), &models.memory);
  const auto step_of = [](std::size_t micro_batches) {
    Step step;
    step.lanes.resize(1);
    step.lanes[0].context = 4;
    step.lanes[0].micro_batches.assign(micro_batches, documents({3000, 70}));
    return step;
  };
  const StepResult first = simulator.run(step_of(4));
  CHECK_THROWS_AS(simulator.run(step_of(3)), UserError);  // no multiple of the stages
  CHECK(simulator.run(step_of(4)) == first);
}
