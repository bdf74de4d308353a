// Metrics of a step of two micro-batches, by hand.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/metrics/metrics.h"

using namespace equipoise;

namespace {

constexpr Picoseconds kSecond = 1'000'000'000'000;

// One lane, two micro-batches: a document of 2,000 tokens; two of 1,000.
Plan two_micro_batches(int steps, bool last_is_tail) {
  Plan plan;
  plan.policy = "plain";
  for (int i = 0; i < steps; ++i) {
    Step step;
    step.lanes.resize(1);
    step.lanes[0].micro_batches.resize(2);
    step.lanes[0].micro_batches[0].slices = {{3 * i, 0, 2000}};
    step.lanes[0].micro_batches[1].slices = {{3 * i + 1, 0, 1000}, {3 * i + 2, 0, 1000}};
    step.tail = last_is_tail && i + 1 == steps;
    plan.steps.push_back(step);
  }
  return plan;
}

std::vector<GlobalBatch> batches_of(const Plan& plan) {
  std::vector<GlobalBatch> batches;
  for (const Step& step : plan.steps) {
    GlobalBatch batch;
    for (const MicroBatch& micro_batch : step.lanes[0].micro_batches)
      batch.slices.insert(batch.slices.end(), micro_batch.slices.begin(), micro_batch.slices.end());
    batches.push_back(batch);
  }
  return batches;
}

std::vector<StepFigures> figures_of(const Plan& plan, const std::vector<StepResult>& results) {
  const Arrivals arrivals(batches_of(plan));
  std::vector<StepFigures> figures;
  for (std::size_t k = 0; k < results.size(); ++k)
    figures.push_back(step_figures(plan.steps[k], step_of_plan(plan.steps[k], k, &arrivals), results[k]));
  return figures;
}

StepResult result_of(double seconds) {
  StepResult r;
  r.times.makespan = static_cast<Picoseconds>(seconds * kSecond);
  r.times.forward_latency = {3 * kSecond / 10, kSecond / 10};
  r.times.losses.bubble_ratio = 0.25;
  r.times.compute = {3, 2, 1};
  r.times.attention = {1.8, 1.5, 1.25};
  r.times.cp_imbalance = 1.5;
  r.times.recompute_seconds = 0.5;
  r.times.recompute_exposed_seconds = 0.05;
  r.times.losses.idle_seconds = 0.4;
  r.times.losses.lanes_wait_seconds = 0.06;
  r.times.gradient_wait = kSecond / 10;
  r.times.exposed_seconds[static_cast<std::size_t>(Stream::pp)] = 0.08;
  r.times.exposed_seconds[static_cast<std::size_t>(Stream::dp)] = 0.12;  // 0.1 follows the pipeline
  r.times.exposed_seconds[static_cast<std::size_t>(Stream::cp)] = 0.2;
  r.work.kv_sent_tokens = 1000;
  r.work.kv_useful_tokens = 250;
  r.work.tokens = 4000;
  r.work.computed_tokens = 5000;
  r.work.distributed_tokens = 1000;
  return r;
}

ModelShape model() {
  ModelShape m;
  m.layers = 2;
  m.hidden = 8;
  m.heads = m.kv_heads = 4;
  m.head_dim = 2;
  m.ffn = 16;
  m.vocab = 100;
  return m;
}

}  // namespace

TEST_CASE("Every metric of one step") {
  const Plan plan = two_micro_batches(1, false);
  std::vector<StepResult> results = {result_of(2)};
  // 2000 x 2001 / 2 = 2,001,000; 1000 x 1001 / 2 = 500,500, twice.
  results[0].work.causal_pairs = 2001000 + 2 * 500500;
  Layout layout;
  layout.tensor = 2;
  layout.pipeline = 2;
  const ModelShape shape = model();
  const Metrics m = metrics_of({shape, layout, 1e9, plan, figures_of(plan, results)});
  CHECK(m.step_seconds == 2.0);
  CHECK(m.tokens_per_second_per_gpu == 4000.0 / 2 / 4);
  // 6 x 2,080 matmul parameters x 4,000 tokens; 192 FLOPs a pair (12 x head dim 2 x 4 heads x 2 layers).
  const double flops = 6.0 * 2080 * 4000 + 192.0 * 3002000;
  CHECK(*m.mfu == doctest::Approx(flops / (2.0 * 4 * 1e9)).epsilon(1e-12));
  CHECK(m.bubble_ratio == 0.25);
  CHECK(*m.imbalance_degree == doctest::Approx(0.3 * 2 / 0.4));  // max x count / sum
  CHECK(*m.attention_imbalance == doctest::Approx(4.0 / 3));     // 4e6 over the mean of 4e6 and 2e6
  CHECK(m.gpu_compute_imbalance == 1.5);
  CHECK(m.gpu_compute_slowest_over_fastest == 3.0);
  CHECK(*m.gpu_attention_imbalance == doctest::Approx(1.2));              // 1.8 / 1.5
  CHECK(*m.gpu_attention_slowest_over_fastest == doctest::Approx(1.44));  // 1.8 / 1.25
  CHECK(*m.gpu_hours_per_billion_tokens == doctest::Approx(2.0 * 4 / 3600 / 4000 * 1e9));
  CHECK(m.cp_imbalance == 1.5);
  CHECK(m.kv_useful_ratio == 0.25);
  CHECK(m.recompute_ratio == 0.25);
  CHECK(*m.pr == doctest::Approx(0.2));
  CHECK(m.cr == 0.25);
  CHECK(m.ave_t == 4000.0);
  CHECK(*m.exposed_comm_ratio[static_cast<std::size_t>(Stream::cp)] == doctest::Approx(0.1));
  CHECK(*m.exposed_comm_ratio[static_cast<std::size_t>(Stream::pp)] == doctest::Approx(0.04));
  // Idle 0.4 of 2 s, of it 0.08 for transfers and 0.02 for collectives inside the pipeline.
  CHECK(*m.losses.waiting == doctest::Approx(0.15));
  CHECK(*m.losses.lanes_wait == doctest::Approx(0.03));
  CHECK(*m.losses.recompute == doctest::Approx(0.225));  // 0.05 of it is communication
  CHECK(m.token_delay_mean == 0.0);
  CHECK(m.carried_tokens == 0.0);
  CHECK(!m.speedup);  // nothing to compare with yet
}

TEST_CASE("Energy is watts times the time by kind, of all GPUs") {
  const Plan plan = two_micro_batches(2, true);
  std::vector<StepResult> results = {result_of(4), result_of(6)};
  for (StepResult& step : results) step.times.optimizer = kSecond / 4;
  Layout layout;
  layout.tensor = 2;
  layout.pipeline = 2;
  const ModelShape shape = model();
  const std::vector<StepFigures> figures = figures_of(plan, results);
  const MetricInputs inputs{shape, layout, 1e9, plan, figures};
  Metrics m = metrics_of(inputs);
  CHECK(!m.joules_per_token);
  // A GPU of the first step: 1.5 s of attention; of 0.5 s of other compute three fifths in products; 0.25 s
  // of optimizer; 0.08 + 0.12 + 0.2 s of communication; of 4 s 1.35 are left. The second, a tail, waits for 2
  // s more.
  add_energy(inputs, {600, 700, 400, 300, 100}, 0.6, m);
  const double first = 1.5 * 600 + 0.3 * 700 + (0.2 + 0.25) * 400 + 0.4 * 300 + 1.35 * 100;
  CHECK(first == doctest::Approx(1545));
  CHECK(*m.joules_per_token == doctest::Approx(4 * (2 * first + 200) / 8000));
  CHECK(*m.kwh_per_step == doctest::Approx(4 * first / 3.6e6));
  CHECK(*m.watts_per_gpu == doctest::Approx((2 * first + 200) / 10));
  // Whatever a GPU does draws as much: its mean is that.
  add_energy(inputs, {500, 500, 500, 500, 500}, 0.1, m);
  CHECK(*m.watts_per_gpu == doctest::Approx(500));
}

TEST_CASE("A profile's power has all its kinds and its source, or is refused by name") {
  nlohmann::json file = Profile::load("h100-sxm").json();
  CHECK(!power_of(Profile(file, "p.json")).known());
  file["power"] = {{"attention_W", 600}, {"gemm_W", 700},
                   {"memory_W", 400},    {"communication_W", 300},
                   {"idle_W", 100},      {"provenance", {{"kind", "measured"}, {"source", "a hand"}}}};
  CHECK(power_of(Profile(file, "p.json")).communication == 300);
  const auto refusal = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json wrong = file;
    wrong["power"][key] = value;
    try {
      (void)power_of(Profile(wrong, "p.json"));
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal("idle_W", 0).find("p.json: power.idle_W: expected") == 0);
  CHECK(refusal("idle_W", "low").find("p.json: power.idle_W: expected") == 0);
  CHECK(refusal("gpu_W", 1).find("p.json: power") == 0);
  CHECK(refusal("provenance", {{"kind", "measured"}}).find("p.json: power.provenance.source: expected") == 0);
}

TEST_CASE("Tail steps count in time and tokens, not in means") {
  const Plan plan = two_micro_batches(3, true);
  std::vector<StepResult> results = {result_of(2), result_of(4), result_of(100)};
  const ModelShape shape = model();
  const Metrics m = metrics_of({shape, Layout{}, 1e9, plan, figures_of(plan, results)});
  CHECK(m.step_seconds == 3.0);
  CHECK(m.seconds == doctest::Approx(106));
  CHECK(m.tokens == 12000);
  CHECK(m.steps == 3);
  CHECK(m.tail_steps == 1);
}

TEST_CASE("An empty micro-batch counts in the imbalance degree with latency 0") {
  // Two lanes of two: 0.3 and 0.1 s on the first, nothing at all on the second. 0.3 x 4 / 0.4 = 3.
  Plan plan = two_micro_batches(1, false);
  plan.steps[0].lanes.resize(2);
  plan.steps[0].lanes[1].micro_batches.resize(2);
  const std::vector<StepResult> results = {result_of(2)};
  const ModelShape shape = model();
  CHECK(*metrics_of({shape, Layout{}, 1e9, plan, figures_of(plan, results)}).imbalance_degree ==
        doctest::Approx(3));
}

TEST_CASE("Delays and what is carried are null for a policy that sees the whole set first") {
  Plan plan = two_micro_batches(2, false);
  const std::vector<StepResult> results = {result_of(2), result_of(2)};
  const ModelShape shape = model();
  CHECK(metrics_of({shape, Layout{}, 1e9, plan, figures_of(plan, results)}).token_delay_mean == 0.0);
  plan.sees_whole_set = true;
  const Metrics m = metrics_of({shape, Layout{}, 1e9, plan, figures_of(plan, results)});
  CHECK(!m.token_delay_mean);
  CHECK(!m.token_delay_max);
  CHECK(!m.carried_tokens);
}
