// A lower bound that is ever above the simulated time is a fault: random candidates of several models.
#include <algorithm>

#include "policies/base/random.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/pipeline.h"
#include "tests/scratch_folder.h"
#include "tests/sim/tune/tune_case.h"

namespace equipoise {
namespace {

using nlohmann::json;
using testing::small_study;
using testing::TuneCase;

const json kRows = json::parse(R"([
  "plain-4d", "fixed-4d", "wlb-llm", "skrull", "gds", "round-robin", "chunkflow", "hybrid-cp", "dynamic-cp",
  "lpt", "karmarkar-karp", "padded", "longalign-packing", "hbp",
  {"name": "wlb", "max_tokens": 16384, "oversize": "split"},
  {"name": "equipoise", "moves": 500},
  {"name": "fixed-greedy", "pack_window": 2, "shard": ["adaptive", "striped", "contiguous"]},
  {"name": "chunkflow", "chunk_size": 4096, "keep": 2},
  {"name": "plain-4d", "schedule": ["gpipe", "zb-h1"]}
])");

json random_space() {
  return {{"parallel.tensor", {1, 2, 4}},
          {"parallel.context", {1, 2, 4}},
          {"parallel.pipeline", {1, 2, 4}},
          {"parallel.virtual_pipeline", {1, 2}},
          {"parallel.context_comm",
           {"all-gather", "ring", "ulysses", "ulysses-ring", "ulysses-all-gather", "group-cast",
            "disaggregated"}},
          {"parallel.nano_batches", {1, 2}},
          {"parallel.context_inner", {2, 4}},
          {"parallel.recompute", {"none", "selective", {{"layers", 3}}, "full"}},
          {"policies", kRows}};
}

// Holds the bounds of every step, and of the layout, against what was simulated; false where it cannot run.
bool check_candidate(const TuneCase& c, Point point, double& tightest) {
  const Study study = candidate_study(c.candidates, point, "study.json");
  RunStudyOptions options;
  options.ignore_memory = true;  // times are what is wanted
  options.keep_plans = true;
  CAPTURE(candidate_json(c.candidates, point).dump());
  try {
    StudyRow row(study, c.inputs, study.policies.front());
    resolve_recompute(row, trial_options(options));
    const SimulatedRow simulated = simulate_row(row, options, Until::all_steps);
    const Plan& plan = simulated.planned.plan;
    const StepBound bound(*row.models, row.run, row.schedule.name.starts_with("zb"), 0.98);
    double all = 0;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const double seconds = to_seconds(simulated.ran.steps[i].times.makespan);
      const double least = bound.seconds(plan.steps[i]);
      CAPTURE(i);
      CHECK(least <= seconds);
      if (seconds > 0) tightest = std::max(tightest, least / seconds);
      all += seconds;
    }
    const double pairs =
        study.policies.front().says("oversize") ? 0 : visible_pairs(c.inputs.documents, study.model.reach());
    const bool spreads =
        std::all_of(plan.steps.begin(), plan.steps.end(),
                    [&](const Step& step) {
                      return std::all_of(step.lanes.begin(), step.lanes.end(), [&](const Lane& lane) {
                        return lane.context == study.layout.context &&
                               std::all_of(lane.micro_batches.begin(), lane.micro_batches.end(),
                                           [](const MicroBatch& m) { return m.placement.empty(); });
                      });
                    }) &&
        !row.run.rule().places_documents;
    // Documents whole, recomputed as the layout says: hbp's groups say so themselves.
    const bool whole = std::all_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
      return std::all_of(step.lanes.begin(), step.lanes.end(), [](const Lane& lane) {
        return std::all_of(lane.micro_batches.begin(), lane.micro_batches.end(), [](const MicroBatch& m) {
          return m.chunk.count == 1 && m.recompute_layers == kStudyRecompute;
        });
      });
    });
    if (plan.dropped.empty() && whole && pairs > 0) CHECK(bound.run_seconds(c.inputs.documents) <= all);
    if (plan.dropped.empty())
      CHECK(bound.even_seconds(static_cast<double>(c.inputs.documents.tokens), pairs,
                               row.run.policy().derives != Derives::groups, spreads) <= all);
    return true;
  } catch (const UserError&) {
    return false;  // refused, and so never compared with a bound
  }
}

// How many of the candidates drawn could run.
int check_candidates(const TuneCase& c, int draws, SplitMix64& random, double& tightest) {
  int ran = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const Point point{static_cast<std::uint32_t>(random.next() % c.candidates.layouts.size()),
                      static_cast<std::uint32_t>(random.next() % c.candidates.rows.size())};
    ran += check_candidate(c, point, tightest) ? 1 : 0;
  }
  return ran;
}

TEST_CASE("no candidate is faster than its bound" * doctest::test_suite("figures")) {
  const test::Scratch folder;
  const json recurrent = {{"hf_config", folder.write("config.json", R"({"model_type": "qwen3_5_text",
    "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 128, "intermediate_size": 8192, "vocab_size": 32000, "full_attention_interval": 2})")}};
  const json models[] = {recurrent,
                         "wlb-550m",
                         "llama3.1-8b",
                         "deepseek-v2",
                         {{"layers", 6},
                          {"hidden", 2048},
                          {"heads", 16},
                          {"kv_heads", 4},
                          {"ffn", 8192},
                          {"vocab", 32000},
                          {"gated_ffn", false},
                          {"sliding_window", 4096},
                          {"sliding_window_pattern", 2}},
                         {{"layers", 6},
                          {"hidden", 2048},
                          {"heads", 16},
                          {"ffn", 8192},
                          {"vocab", 32000},
                          {"sliding_window", 2048},
                          {"chunked_attention", true},
                          {"sliding_window_pattern", 2}}};
  SplitMix64 random(5);
  for (const json& model : models) {
    json file = small_study();
    file["model"] = model;
    if (model.contains("chunked_attention")) file["lora"] = {{"dim", 16}};
    if (model.is_string() && model != "wlb-550m") file["mtp_layers"] = 1;
    file["batch"]["steps"] = 2;
    file["batch"]["sequences_per_step"] = 8;
    json space = random_space();
    if (model == "deepseek-v2") {
      space["parallel.expert"] = {1, 2, 4};
      space["parallel.expert_tensor"] = {1, 2};
    }
    if (model.is_object()) space["parallel.recompute"][2]["layers"] = 2;
    const TuneCase c(file, space, 8);
    double tightest = 0;
    const int ran = check_candidates(c, 60, random, tightest);
    CAPTURE(model.dump());
    CHECK(ran >= 20);
    CHECK(tightest > 0.75);  // a bound of nothing would hold, too
  }
}

TEST_CASE("no step of a pool of stages, or with a group-cast once to a node, is faster than its bound") {
  json file = small_study();
  file["cluster"]["gpus_per_node"] = 4;
  file["cluster"]["network"]["nic_GBps"] = 50;
  file["batch"]["steps"] = 2;
  file["batch"]["sequences_per_step"] = 8;
  const json space = {{"parallel.tensor", {1, 2}},
                      {"parallel.context", {2, 4, 8}},
                      {"parallel.pipeline", {1, 2, 4}},
                      {"parallel.nano_batches", {1, 2}},
                      {"parallel.cast_once_per_node", {true}},
                      {"parallel.recompute", {"none", "selective", "full"}},
                      {"policies", json::parse(R"([
                        {"name": "disaggregated", "schedule": "seq1f1b", "stage_attention_exchange": true},
                        {"name": "wlb", "schedule": "seq1f1b", "stage_attention_exchange": true,
                         "context_comm": "disaggregated"},
                        {"name": "plain-4d", "shard": "per-document", "context_comm": "group-cast"}])")}};
  const TuneCase c(file, space, 32);
  SplitMix64 random(8);
  double tightest = 0;
  const int ran = check_candidates(c, 40, random, tightest);
  CHECK(ran >= 20);
  CHECK(tightest > 0.5);
}

TEST_CASE("no step of stages that even out their attention is faster than the bound of its layout") {
  json file = testing::small_study_of({{"name", "slimpipe"}, {"slices", 16}});
  file["trace"] = {{"uniform", 524288}};
  file["model"] = {{"layers", 32}, {"hidden", 1536}, {"heads", 12}, {"ffn", 4096}, {"vocab", 32000}};
  file["parallel"] = {{"tensor", 2}, {"pipeline", 4}, {"stage_layers", {20, 4, 4, 4}}};
  file["batch"] = {{"context_window", 524288}, {"sequences_per_step", 3}, {"steps", 1}};
  const TuneCase c(file, {{"parallel.tensor", {2}}}, 8);
  StudyRow row(c.study, c.inputs, c.study.policies.front());
  REQUIRE(row.models->layout.evens_out_stages());
  RunStudyOptions options;
  options.ignore_memory = true;
  const double seconds =
      to_seconds(simulate_row(row, options, Until::all_steps).ran.steps.front().times.makespan);
  const auto least = [&](const RunModels& models) {
    return StepBound(models, row.run, false)
        .even_seconds(static_cast<double>(c.inputs.documents.tokens), visible_pairs(c.inputs.documents, {}),
                      false, true);
  };
  CHECK(least(*row.models) <= seconds);
  CHECK(least(RunModels(c.study, c.study.layout, c.inputs.profile)) > seconds);  // of stages apart
  CHECK(StepBound(*row.models, row.run, false).run_seconds(c.inputs.documents) <= seconds);
}

TEST_CASE("layouts that share the least costs of their layers have the same") {
  SplitMix64 random(13);
  for (const char* model : {"wlb-550m", "deepseek-v2"}) {
    json file = small_study();
    file["model"] = model;
    file["batch"]["sequences_per_step"] = 8;
    json space = random_space();
    space["policies"] = {"plain-4d"};
    space["parallel.zero"] = {1, 2, 3};
    if (model == std::string("deepseek-v2")) {
      space["parallel.expert"] = {1, 2, 4};
      space["parallel.expert_tensor"] = {1, 2};
    }
    const TuneCase c(file, space, 8);
    SharedLeastCosts shared(StepBound::kNear);
    for (int draw = 0; draw < 40; ++draw) {
      const auto layout = static_cast<std::uint32_t>(random.next() % c.candidates.layouts.size());
      const Study study = candidate_study(c.candidates, {layout, 0}, "study.json");
      CAPTURE(c.candidates.layouts[layout].keys.dump());
      const RunModels models(study, study.layout, c.inputs.profile);
      const LeastCosts own = least_costs(models.costs, StepBound::kNear), &common = shared.of(models.costs);
      const auto same = [](const LeastCosts::Layer& a, const LeastCosts::Layer& b) {
        return a.forward_token == b.forward_token && a.backward_token == b.backward_token &&
               a.again_token == b.again_token && a.forward_arrived == b.forward_arrived &&
               a.backward_arrived == b.backward_arrived;
      };
      CHECK(same(own.layer, common.layer));
      for (std::size_t k = 0; k < own.layers.size(); ++k) CHECK(same(own.layers[k], common.layers[k]));
      CHECK(own.forward_pair == common.forward_pair);
      CHECK(own.backward_pair == common.backward_pair);
      CHECK(own.head_token == common.head_token);
    }
  }
}

TEST_CASE("no pass of a layer is faster with more tokens") {  // by which bounds are found
  SplitMix64 random(9);
  for (const char* model : {"wlb-550m", "llama3.1-8b", "deepseek-v2"})
    for (const int tensor : {1, 4}) {
      json file = small_study();
      file["model"] = model;
      file["parallel"] = {{"tensor", tensor}, {"data", 8 / tensor}};
      file["batch"]["sequences_per_step"] = 8;
      if (model == std::string("deepseek-v2")) file["parallel"]["expert"] = 2;
      const TuneCase c(file, {{"parallel.context", {1}}}, 8);
      const RunModels models(c.study, c.study.layout, c.inputs.profile);
      const LayerKind kind = models.costs.layer_counts()[1] > 0 ? LayerKind::moe : LayerKind::dense;
      const auto seconds = [&](bool backward, std::int64_t tokens) {
        OpList before, after;
        RangeUse use;
        if (backward)
          models.costs.layers.backward(kind, tokens, before, after, use);
        else
          models.costs.layers.forward(kind, tokens, before, after, use);
        return to_seconds(run_time(before.ops()).total + run_time(after.ops()).total);
      };
      for (int draw = 0; draw < 300; ++draw) {
        const std::uint64_t size = 1 + random.next() % (std::uint64_t{1} << (draw % 16));
        const auto few = static_cast<std::int64_t>(size);
        const auto more = static_cast<std::int64_t>(size + 1 + random.next() % (1 + size / 16));
        CAPTURE(few);
        CAPTURE(more);
        CHECK(seconds(draw % 2 == 0, few) <= seconds(draw % 2 == 0, more));
      }
    }
}

}  // namespace
}  // namespace equipoise
