// Policies that choose a CP degree per document: hand-derived rounds, laws on random steps, and FlexSP's
// heuristic against its exact solver and that against brute force.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "policies/cp_degree/flexsp_problem.h"
#include "policies/error.h"
#include "policies/random.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

PackOptions grid_options(std::int64_t gpus, std::int64_t tokens_per_rank) {
  PackOptions options;
  options.gpus = gpus;
  options.tokens_per_rank = tokens_per_rank;
  return options;
}

struct LaneOf {
  int barrier;
  int degree;
  std::vector<Ids> micro_batches;
  friend bool operator==(const LaneOf&, const LaneOf&) = default;
};

std::vector<LaneOf> lanes_of(const Plan& plan, std::size_t step = 0) {
  std::vector<LaneOf> lanes;
  for (const Lane& lane : plan.steps.at(step).lanes) {
    lanes.push_back({lane.barrier_group, lane.context, {}});
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      Ids ids;
      for (const Slice& slice : micro_batch.slices) ids.push_back(slice.document);
      lanes.back().micro_batches.push_back(ids);
    }
  }
  return lanes;
}

// Shares W evenly, and moves the keys of a group's documents at a price for each token.
class CommunicatingWorkload final : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      out[i] = static_cast<double>(tokens[i] * (tokens[i] + 50));
  }
  void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override {
    of(tokens, out);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      out[i] = out[i] / degree + (degree > 1 ? 4.0 * static_cast<double>(tokens[i]) : 0);
  }
};

FlexspProblem random_problem(SplitMix64& random, int gpus, std::int64_t documents, const Workload& workload,
                             std::int64_t longest) {
  FlexspProblem problem;
  problem.grid = {gpus, gpus, 50, below(random, 2) == 0 ? 1 : 4};
  for (std::int64_t i = 0; i < documents; ++i) {
    const std::int64_t most = below(random, 4) == 0 ? longest : longest / 8;
    problem.tokens.push_back(1 + below(random, most));
  }
  std::sort(problem.tokens.rbegin(), problem.tokens.rend());
  for (const std::int64_t t : problem.tokens) problem.least_degree.push_back(problem.grid.degree_needed(t));
  for (int degree = 1; degree <= gpus; degree *= 2) {
    problem.times.emplace_back(problem.tokens.size());
    workload.on_group(problem.tokens, degree, problem.times.back());
  }
  return problem;
}

// Lane time of the slowest group, computed from nothing but the assignment.
double slowest_of(const FlexspProblem& problem, const GroupLayout& layout,
                  const std::vector<std::uint16_t>& group_of) {
  double slowest = 0;
  for (std::size_t g = 0; g < layout.size(); ++g) {
    std::size_t level = 0;
    while (1 << level < layout[g]) ++level;
    double sum = 0;
    double largest = 0;
    for (std::size_t i = 0; i < problem.documents(); ++i) {
      if (group_of[i] != g) continue;
      if (problem.least_degree[i] > layout[g]) return std::numeric_limits<double>::infinity();
      sum += problem.times[level][i];
      largest = std::max(largest, problem.times[level][i]);
    }
    slowest = std::max(slowest, sum + (problem.grid.stages - 1) * largest);
  }
  return slowest;
}

double brute_force(const FlexspProblem& problem, const std::vector<GroupLayout>& layouts) {
  double best = std::numeric_limits<double>::infinity();
  for (const GroupLayout& layout : layouts) {
    std::vector<std::uint16_t> group_of(problem.documents(), 0);
    for (;;) {
      best = std::min(best, slowest_of(problem, layout, group_of));
      std::size_t i = 0;
      while (i < group_of.size() && ++group_of[i] == layout.size()) group_of[i++] = 0;
      if (i == group_of.size()) break;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("hybrid-cp: degree by length, a barrier where the next degree finds no place, empty GPUs filled") {
  // 4 GPUs, 4 tokens a rank. 16 needs 4 GPUs: a round of its own. 4, 4 and 3 need one GPU each; the one GPU
  // left doubles the first of the smallest groups.
  const Plan plan = plan_of("hybrid-cp", document_batches({{3, 16, 4, 4}}), grid_options(4, 4));
  CHECK(lanes_of(plan) == std::vector<LaneOf>{{0, 4, {{1}}}, {1, 2, {{2}}}, {1, 1, {{3}}}, {1, 1, {{0}}}});
}

TEST_CASE("hybrid-cp ends a round within 5% once a smaller degree has been placed") {
  // 8 on two GPUs costs 64/2 = 32 on each, a 4 costs 16. Loads after the 4s: 32 16 | 32 16 16 | 32 32 16 | 32
  // 32 32: balanced with four of six. The other two make a round of two groups of one GPU, doubled to two
  // each.
  const Plan plan = plan_of("hybrid-cp", document_batches({{8, 4, 4, 4, 4, 4, 4}}), grid_options(4, 4));
  CHECK(lanes_of(plan) ==
        std::vector<LaneOf>{
            {0, 2, {{0}}}, {0, 1, {{1}, {3}}}, {0, 1, {{2}, {4}}}, {1, 2, {{5}}}, {1, 2, {{6}}}});
}

TEST_CASE("dynamic-cp takes the least projected maximum, the smaller degree on a tie") {
  // 8 GPUs, 4 tokens a rank. 9 needs 4 GPUs: 81/4 = 20.25. 8 needs 2: 32, but on 4 it costs 16 and the
  // largest load stays 20.25 (the first group has room for 16 tokens, not for 17). Nothing is free: both
  // lanes have degree 4.
  const Plan wide = plan_of("dynamic-cp", document_batches({{9, 8}}), grid_options(8, 4));
  CHECK(lanes_of(wide) == std::vector<LaneOf>{{0, 4, {{0}}}, {0, 4, {{1}}}});

  // 4 GPUs. 8 on two: 32. 3 alone on one: 9; 2 does not fit with it (5 tokens), 1 would. 2 takes the last
  // GPU: 4. 1 joins the oldest group of the least degree that keeps the maximum: the 3.
  const Plan packed = plan_of("dynamic-cp", document_batches({{8, 3, 2, 1}}), grid_options(4, 4));
  CHECK(lanes_of(packed) == std::vector<LaneOf>{{0, 2, {{0}}}, {0, 1, {{1, 3}}}, {0, 1, {{2}}}});

  // What fits nowhere waits for the next round, where the grid is shared out anew.
  const Plan rounds = plan_of("dynamic-cp", document_batches({{4, 4, 4}}), grid_options(2, 4));
  CHECK(lanes_of(rounds) == std::vector<LaneOf>{{0, 1, {{0}}}, {0, 1, {{1}}}, {1, 2, {{2}}}});
}

TEST_CASE("flexsp chooses the layout by its slowest group, most groups on a tie") {
  // Two equal documents on two GPUs: 16 either way. {3, 1}: 9 on single GPUs, (9 + 1) / 2 = 5 on a pair.
  const Plan tie = plan_of("flexsp", document_batches({{4, 4}}), grid_options(2, 100));
  CHECK(lanes_of(tie) == std::vector<LaneOf>{{0, 1, {{0}}}, {0, 1, {{1}}}});
  const Plan pair = plan_of("flexsp", document_batches({{3, 1}}), grid_options(2, 100));
  CHECK(lanes_of(pair) == std::vector<LaneOf>{{0, 2, {{0, 1}}}});
}

TEST_CASE("flexsp with a pipeline counts the largest micro-batch once for every stage") {
  // Two GPUs, documents 3, 3, 3, 3 (9 each). One stage: pairs on two GPUs, 18, as good as all on a pair.
  // Four stages, single GPUs: 18 + 3 * 9 = 45. On a pair: 4 * 4.5 + 3 * 4.5 = 31.5.
  PackOptions options = grid_options(2, 100);
  options.stages = 4;
  const Plan plan = plan_of("flexsp", document_batches({{3, 3, 3, 3}}), options);
  // Nor is a micro-batch longer than the longest document, or it would be paid four times.
  CHECK(lanes_of(plan) == std::vector<LaneOf>{{0, 2, {{0}, {1}, {2}, {3}}}});
}

TEST_CASE("a document that no group holds is refused in one line") {
  for (const char* name : {"hybrid-cp", "dynamic-cp", "flexsp"})
    CHECK_THROWS_AS(plan_of(name, document_batches({{17}}), grid_options(4, 4)), UserError);
}

TEST_CASE("every document runs once, on ranks that hold it, and every round covers the grid") {
  SplitMix64 random(1);
  const CommunicatingWorkload workload;
  for (int i = 0; i < 10000; ++i) {
    PackOptions options = grid_options(1 + below(random, 20), 1 + below(random, 60));
    options.stages = below(random, 2) == 0 ? 1 : 4;
    options.verify = true;
    std::int64_t largest_group = 1;
    while (2 * largest_group <= options.gpus) largest_group *= 2;
    std::vector<std::vector<std::int64_t>> lengths(1);
    for (std::int64_t k = below(random, 15); k > 0; --k)
      lengths[0].push_back(
          1 + below(random, options.tokens_per_rank * (below(random, 3) == 0 ? largest_group : 1)));
    const std::vector<GlobalBatch> batches = document_batches(lengths);
    CAPTURE(i);
    for (const char* name : {"hybrid-cp", "dynamic-cp", "flexsp"}) {
      CAPTURE(name);
      const Plan plan = make_plan(packing_policy(name), {batches, options, workload});
      std::map<int, std::int64_t> gpus_of_round;
      std::size_t seen = 0;
      std::vector<bool> ran(lengths[0].size(), false);
      for (const Lane& lane : plan.steps.at(0).lanes) {
        gpus_of_round[lane.barrier_group] += lane.context;
        CHECK(!lane.micro_batches.empty());
        for (const MicroBatch& micro_batch : lane.micro_batches) {
          CHECK(micro_batch.tokens() <= options.tokens_per_rank * lane.context);
          for (const Slice& slice : micro_batch.slices) {
            CHECK_FALSE(ran[static_cast<std::size_t>(slice.document)]);
            ran[static_cast<std::size_t>(slice.document)] = true;
            ++seen;
          }
        }
      }
      CHECK(seen == lengths[0].size());
      for (const auto& [round, gpus] : gpus_of_round) CHECK(gpus == options.gpus);
    }
  }
}

TEST_CASE("the exact solver equals brute force") {
  SplitMix64 random(2);
  const CommunicatingWorkload workload;
  for (int i = 0; i < 300; ++i) {
    // All layouts of 2, 3 and 4 GPUs, written out.
    const int gpus = 2 + static_cast<int>(below(random, 3));
    const std::vector<GroupLayout> layouts =
        gpus == 2   ? std::vector<GroupLayout>{{1, 1}, {2}}
        : gpus == 3 ? std::vector<GroupLayout>{{1, 1, 1}, {2, 1}}
                    : std::vector<GroupLayout>{{1, 1, 1, 1}, {2, 1, 1}, {2, 2}, {4}};
    FlexspProblem problem = random_problem(random, gpus == 3 ? 2 : gpus, 1 + below(random, 5), workload, 100);
    problem.grid.gpus = gpus;
    const FlexspSolution exact = flexsp_exact(problem, 1'000'000);
    CAPTURE(i);
    CHECK(exact.proven);
    CHECK(exact.slowest == doctest::Approx(slowest_of(problem, exact.layout, exact.group_of)).epsilon(1e-12));
    CHECK(exact.slowest == doctest::Approx(brute_force(problem, layouts)).epsilon(1e-12));
  }
}

TEST_CASE("the heuristic is never better than the optimum and within 2% of it") {
  SplitMix64 random(3);
  const CommunicatingWorkload communicating;
  const QuadraticWorkload quadratic;
  double sum = 0;
  double worst = 0;
  int known = 0;
  for (int i = 0; i < 200; ++i) {
    const int gpus = below(random, 2) == 0 ? 8 : 16;
    const Workload& workload = i % 2 == 0 ? static_cast<const Workload&>(communicating) : quadratic;
    const FlexspProblem problem = random_problem(random, gpus, 4 + below(random, 9), workload, 50 * gpus);
    const FlexspSolution fast = flexsp_heuristic(problem);
    const FlexspSolution exact = flexsp_exact(problem, 300'000);
    CAPTURE(i);
    CHECK(fast.slowest == doctest::Approx(slowest_of(problem, fast.layout, fast.group_of)).epsilon(1e-12));
    CHECK(fast.slowest >= exact.slowest * (1 - 1e-12));
    if (!exact.proven) continue;
    const double gap = fast.slowest / exact.slowest - 1;
    CHECK(gap <= 0.02);
    sum += gap;
    worst = std::max(worst, gap);
    ++known;
  }
  CHECK(known > 150);
  std::printf("flexsp over the optimum where that is known (%d of 200): mean %.3f %%, worst %.2f %%\n", known,
              100 * sum / known, 100 * worst);
}
