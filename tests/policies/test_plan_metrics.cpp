#include <doctest/doctest.h>

#include <algorithm>

#include "policies/base/random.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "tests/notes.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

constexpr std::int64_t kK = 1024;

// A step with one micro-batch a lane, of documents of these lengths.
Step step_of(const std::vector<std::vector<std::int64_t>>& lanes, int context = 1) {
  Step step;
  std::int64_t id = 0;
  for (const std::vector<std::int64_t>& lengths : lanes) {
    Lane& lane = step.lanes.emplace_back();
    lane.context = context;
    MicroBatch& micro_batch = lane.micro_batches.emplace_back();
    for (const std::int64_t length : lengths) micro_batch.slices.push_back({id++, 0, length});
  }
  return step;
}

}  // namespace

TEST_CASE("abr and dbr of the paper's example") {
  // A = 4 * 1K^2 = 4 and 2 * (2K)^2 = 8 (in K^2): (8 - 4) / (8 * 2) = 0.25; tokens are equal.
  const StepMetrics m = step_metrics(step_of({{kK, kK, kK, kK}, {2 * kK, 2 * kK}}));
  CHECK(*m.abr == 0.25);
  CHECK(*m.dbr == 0);
  CHECK(*m.attention_imbalance == doctest::Approx(8.0 / 6.0));  // max 8, mean 6
  CHECK(*m.ave_t == 4 * kK);
  CHECK(m.tokens == 8 * kK);
  CHECK_FALSE(m.pr.has_value());
}

TEST_CASE("abr and dbr count the devices of lanes of unlike degree, and rounds add up") {
  // A document of 4K on two devices and one of 2K on one: A = 8, 8, 4 (in K^2), tokens 2K each.
  Step step = step_of({{4 * kK}, {2 * kK}});
  step.lanes[0].context = 2;
  CHECK(*step_metrics(step).abr == doctest::Approx(4.0 / (8 * 3)));
  CHECK(*step_metrics(step).dbr == 0);
  // The second lane in a round of its own takes the first device again: A = 12 and 8, tokens 4K and 2K.
  step.lanes[1].barrier_group = 1;
  CHECK(*step_metrics(step).abr == doctest::Approx(4.0 / (12 * 2)));
  CHECK(*step_metrics(step).dbr == doctest::Approx(2.0 / (4 * 2)));
}

TEST_CASE("a group's short last iteration counts in the balance of a policy that sees the whole set") {
  Plan plan;
  plan.steps = {step_of({{4}, {4}}), step_of({{4}, {}})};
  plan.steps[1].tail = true;
  plan.sees_whole_set = true;
  CHECK(*plan_metrics({}, plan).abr == 0.25);  // 0 and 0.5
  CHECK(*plan_metrics({}, plan).ave_t == 4);   // of the full one alone
}

TEST_CASE("empty lanes count in the balance of a step") {
  // Tokens 6 and 0: (0 + 6) / (6 * 2) = 0.5.
  const StepMetrics m = step_metrics(step_of({{6}, {}}));
  CHECK(*m.dbr == 0.5);
  CHECK(*m.abr == 0.5);
  CHECK(*m.attention_imbalance == 2);
  CHECK_FALSE(step_metrics(step_of({{}, {}})).abr.has_value());
}

TEST_CASE("pr counts padded sequences and packs") {
  Step step = step_of({{3, 5}, {4}});
  step.lanes[0].micro_batches[0].pad_each_to = 5;
  // 12 real tokens; padded 5 + 5 and the 4 as they are: 1 - 12 / 14.
  CHECK(*step_metrics(step).pr == doctest::Approx(1 - 12.0 / 14.0));
  step.lanes[1].micro_batches[0].pack_length = 6;
  CHECK(*step_metrics(step).pr == doctest::Approx(1 - 12.0 / 16.0));
}

TEST_CASE("cr counts tokens spread over several CP ranks") {
  CHECK(*step_metrics(step_of({{3, 5}})).cr == 0);
  Step step = step_of({{3, 5}}, 2);
  CHECK(*step_metrics(step).cr == 1);
  step.lanes[0].micro_batches[0].placement = {1, kDistributed};
  CHECK(*step_metrics(step).cr == 5.0 / 8.0);
}

TEST_CASE("dependent chunks add up to the attention of their document") {
  // A document of 8 as chunks of 4 counts 16 and 64 - 16 = 48: max 48, mean 32.
  Step step = step_of({{4}});
  std::vector<MicroBatch>& chunks = step.lanes[0].micro_batches;
  chunks[0].chunk = {0, 0, 2, 0};
  chunks.push_back(chunks[0]);
  chunks[1].slices[0] = {0, 4, 8};
  chunks[1].chunk.index = 1;
  CHECK(*step_metrics(step).attention_imbalance == 1.5);
}

TEST_CASE("token delays count from arrival to execution") {
  // The wlb case of test_balancers: document 0 (6 tokens) arrives in step 0 and runs in step 1; 14 tokens in
  // all others run at once: 6 / 19 (6 3 2 5 2 1 = 19 tokens).
  PackOptions options;
  options.context_window = 8;
  options.sequences_per_step = 2;
  options.of<WlbOptions>().queues = 1;
  const std::vector<GlobalBatch> batches = document_batches({{6, 3, 2}, {5, 2, 1}});
  const PlanMetrics m = plan_metrics(batches, plan_of("wlb", batches, options));
  CHECK(*m.token_delay_mean == doctest::Approx(6.0 / 19.0));
  CHECK(*m.token_delay_max == 1);
  CHECK(*m.token_delay_steady == *m.token_delay_mean);
  CHECK(*m.token_delay_held == 0);
  CHECK(*m.carried_tokens == 3);  // 6 after step 0, 0 after step 1
  const PlanMetrics on_threads = plan_metrics(batches, plan_of("wlb", batches, options), 3);
  CHECK(on_threads.token_delay_mean == m.token_delay_mean);
  CHECK(on_threads.token_delay_max == m.token_delay_max);
  CHECK(on_threads.carried_tokens == m.carried_tokens);
  CHECK(on_threads.dbr == m.dbr);
  const PlanMetrics whole = plan_metrics(batches, plan_of("ffd", batches, options));
  CHECK_FALSE(whole.token_delay_mean.has_value());
  CHECK_FALSE(whole.carried_tokens.has_value());
}

TEST_CASE("what a queue held when the data ended is distinguished from a delay in steady state") {
  // N = 2, one queue from 4 tokens. Step 0 holds document 0 (6 tokens) in the queue; the data end after
  // step 2, and it runs in step 3: a tail, 3 iterations late. All others run at once.
  PackOptions options;
  options.context_window = 8;
  options.sequences_per_step = 2;
  options.of<WlbOptions>().queues = 1;
  const std::vector<GlobalBatch> batches = document_batches({{6, 3, 2}, {3, 2}, {2, 1}});
  const Plan held = plan_of("wlb", batches, options);
  const PlanMetrics m = plan_metrics(batches, held);
  CHECK(*m.token_delay_mean == doctest::Approx(6 * 3.0 / 19));
  CHECK(*m.token_delay_max == 3);
  CHECK(*m.token_delay_held == 3);
  CHECK_FALSE(m.token_delay_steady.has_value());
  CHECK(*m.queue_emptied == 0);
  CHECK(*m.tokens_per_step == doctest::Approx(13.0 / 3));  // 5, 5 and 3
  CHECK(held.notes == Notes{{"queue_never_emptied",
                             "",
                             {{"from", 4}, {"held", 1}, {"bins", 2}, {"steps", 3}, {"enough", 12}}}});
  // Two of a kind in steps 0 and 1 are given up: once.
  const Plan emptied = plan_of("wlb", document_batches({{6, 3}, {5, 2}}), options);
  CHECK(emptied.queue_emptied == true);
  CHECK(test::kinds_of(emptied.notes) == std::vector<std::string>{"queue_emptied_once"});
  CHECK_FALSE(plan_of("padded", batches, options).queue_emptied.has_value());
}

TEST_CASE("means leave tail steps out") {
  Plan plan;
  plan.steps = {step_of({{2}, {2}}), step_of({{4}, {}})};
  CHECK(*plan_metrics({},
                      [&] {
                        Plan p = plan;
                        p.sees_whole_set = true;
                        return p;
                      }())
             .dbr == 0.25);
  plan.sees_whole_set = true;
  plan.steps[1].tail = true;
  CHECK(*plan_metrics({}, plan).attention_imbalance == 1);  // dbr counts it: a group's last iteration
  CHECK(*plan_metrics({}, plan).dbr == 0.25);
  CHECK(*imbalance_degree(plan, std::vector<double>{3, 1, 8, 0}) == 1.5);  // 3 * 2 / 4
}

TEST_CASE("imbalance degree is the largest latency over the mean, empty micro-batches included") {
  CHECK(*imbalance_degree(std::vector<double>{2, 2, 2}) == 1);
  CHECK(*imbalance_degree(std::vector<double>{3, 1, 0}) == doctest::Approx(9.0 / 4.0));
  CHECK_FALSE(imbalance_degree(std::vector<double>{0, 0}).has_value());
  Plan plan;
  plan.steps = {step_of({{2, 3}, {4}})};
  CHECK(micro_batch_workloads(plan, QuadraticWorkload()) == std::vector<double>{13, 16});
}

TEST_CASE("the threshold search obeys its bound and never loses to the fixed queue counts") {
  SplitMix64 random(5);
  std::vector<std::vector<std::int64_t>> lengths(20);
  for (auto& batch : lengths) {
    for (int i = 0; i < 12; ++i) batch.push_back(1 + static_cast<std::int64_t>(random.next() % 12));
    if (random.next() % 2 == 0) batch.push_back(60);
  }
  const std::vector<GlobalBatch> batches = document_batches(lengths);
  PackOptions options;
  options.context_window = 64;
  const QuadraticWorkload quadratic;
  const PackingProblem problem{batches, options, quadratic};
  // Predicted time: the largest micro-batch of each step.
  const auto seconds = [&](const Plan& plan) {
    const std::vector<double> work = micro_batch_workloads(plan, quadratic);
    double sum = 0;
    for (std::size_t i = 0; i < work.size(); i += 4)
      sum += *std::max_element(work.begin() + static_cast<std::ptrdiff_t>(i),
                               work.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    return sum;
  };
  const ThresholdSearch found = search_wlb_thresholds(problem, seconds, 0.5);
  CHECK(found.token_delay_mean <= 0.5);
  CHECK(found.plans_tried > 5);
  for (int queues = 0; queues <= 4; ++queues) {
    options.of<WlbOptions>().queues = queues;
    const Plan plan = plan_of("wlb", batches, options);
    if (*plan_metrics(batches, plan).token_delay_mean <= 0.5) CHECK(found.seconds <= seconds(plan));
  }
  // No delay allowed: no thresholds.
  CHECK(search_wlb_thresholds(problem, seconds, 0).token_delay_mean == 0);
}
