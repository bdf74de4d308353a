// What a step is lost to: every second of a GPU counts once.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "policies/base/random.h"
#include "sim/report/verdict.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

double sum_of(const std::vector<Loss>& losses) {
  double sum = 0;
  for (const Loss& loss : losses) sum += loss.share;
  return sum;
}

// A small model with experts on several EP ranks, everything recomputed.
json study_with_experts() {
  json file = small_study();
  file["model"] = "deepseek-v2";
  file["parallel"] = {{"tensor", 1}, {"context", 1}, {"pipeline", 4},
                      {"data", 8},   {"expert", 8},  {"recompute", "full"}};
  file["batch"] = {{"context_window", "8K"}, {"sequences_per_step", 32}, {"steps", 2}};
  file["cluster"] = {{"profile", "h100-sxm"}, {"memory_GB", 4000}};
  file["policies"] = {"plain"};
  file["baseline"] = "plain";
  return file;
}

}  // namespace

TEST_CASE("Losses are named, largest first, three of them in the line") {
  Metrics m;
  m.losses = {0.2, 0.01, 0.3};
  m.exposed_comm_ratio[static_cast<std::size_t>(Stream::tp)] = 0.05;
  m.exposed_comm_ratio[static_cast<std::size_t>(Stream::pp)] = 0.0;  // not worth naming
  CHECK(losses_of(m, 4).size() == 4);
  CHECK(blame_of(m, 4).get<Notes>("losses") ==
        Notes{{"loss", "", {{"name", "recompute"}, {"share", 0.3}}},
              {"loss", "", {{"name", "waiting for other stages"}, {"share", 0.2}}},
              {"loss", "", {{"name", "TP communication"}, {"share", 0.05}}}});
  CHECK(blame_of(Metrics{}, 1).kind == "computation");
}

TEST_CASE("Communication in what is recomputed is not blamed twice: experts, recomputed in full") {
  json file = study_with_experts();
  // So that exchanges are a good part of the step.
  file["framework"] = {
      {"preset", "megatron"}, {"expert_product_seconds", 0}, {"expert_streams", 0}, {"routing_kernels", 0}};
  const StudyResult result = run_study(parse(file), {});
  const PolicyResult& plain = result.policies.front();
  REQUIRE(plain.simulated());
  const Metrics& m = plain.metrics;
  const double ep = *m.exposed_comm_ratio[static_cast<std::size_t>(Stream::ep)];
  REQUIRE(ep > 0.05);
  CHECK(sum_of(losses_of(m, 4)) <= 1);
  // A third of the exchanges, the recomputing forward's, are in recompute_ratio, too; nothing else is exposed
  // there but little: without it the two are less by just that.
  CHECK(*m.recompute_ratio - *m.losses.recompute > 0.3 * ep);
  CHECK(*m.recompute_ratio - *m.losses.recompute < 0.4 * ep);
}

TEST_CASE("Exchanges that compute hides are not blamed, and what is left of them once") {
  double all = 0;  // exposed where nothing hides it
  for (const char* overlap : {"none", "shared-expert", "dualpipe"})
    for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
      CAPTURE(overlap);
      json file = study_with_experts();
      file["parallel"]["recompute"] = "none";
      // Without the SMs that they take, which are blamed as theirs.
      file["framework"] = {{"preset", "megatron"}, {"expert_overlap", overlap}, {"exchange_sms", 0}};
      file["batch"]["sequences_per_step"] = 96;
      RunStudyOptions options;
      options.steps.fidelity = fidelity;
      const StudyResult result = run_study(parse(file), options);
      REQUIRE(result.policies.front().simulated());
      const Metrics& m = result.policies.front().metrics;
      CHECK(sum_of(losses_of(m, 4)) <= 1 + 1e-9);
      const double exposed = *m.exposed_comm_ratio[static_cast<std::size_t>(Stream::ep)];
      if (std::string_view(overlap) == "none")
        all = exposed;
      else
        CHECK(exposed < 0.5 * all);
    }
}

TEST_CASE("The blame line adds up to a step or less, whatever runs") {
  SplitMix64 random(21);
  const auto pick = [&random](const std::vector<json>& values) {
    return values[random.next() % values.size()];
  };
  int added_up = 0;
  for (int round = 0; round < 30; ++round) {
    json file = small_study();
    file["parallel"] = {{"tensor", pick({1, 2, 4})},
                        {"context", pick({1, 2, 4})},
                        {"pipeline", pick({1, 2, 4})},
                        {"data", pick({1, 2})},
                        {"zero", pick({0, 1, 2})},
                        {"recompute", pick({"none", "selective", "full"})},
                        {"context_comm", pick({"all-gather", "ring"})}};
    if (file["parallel"]["pipeline"] == 1 && round % 2 == 0) file["parallel"]["zero"] = 3;
    file["batch"] = {{"context_window", "16K"}, {"sequences_per_step", 8}, {"steps", 2}};
    file["policies"] = {"plain",
                        {{"name", "wlb"}, {"shard", "adaptive"}},
                        {{"name", "chunkflow"}, {"chunk_size", 4096}, {"schedule", "state-aware-1f1b"}},
                        {{"name", "skrull"}, {"shard", "dacp"}, {"bucket_size", 20000}}};
    file["baseline"] = "plain";
    file["cluster"]["memory_GB"] = 1000;
    CAPTURE(file["parallel"].dump());
    RunStudyOptions options;
    if (round % 3 == 0) options.steps.fidelity = Fidelity::op;
    const Study study = parse(file);
    for (const PolicyResult& policy : run_study(study, options).policies) {
      CAPTURE(policy.run.label);
      if (!policy.simulated()) continue;
      ++added_up;
      CHECK(sum_of(losses_of(policy.metrics, study.layout.pipeline)) <= 1 + 1e-9);
    }
  }
  CHECK(added_up > 30 * 4 / 2);  // of 30 rounds of 4 policies
}
