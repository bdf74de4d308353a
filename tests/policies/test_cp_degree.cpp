// Policies that choose a CP degree per document: hand-derived rounds, laws on random steps, and FlexSP's
// heuristic against its exact solver and that against brute force.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "policies/cp_degree/cp_grid.h"
#include "policies/cp_degree/flexsp.h"
#include "policies/make_plan.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

PackOptions grid_options(std::int64_t gpus, std::int64_t tokens_per_rank) {
  PackOptions options;
  options.gpus = gpus;
  options.of<CpGridOptions>().tokens_per_rank = tokens_per_rank;
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
  for (const std::int64_t t : problem.tokens) problem.least_degree.push_back(problem.grid.power_needed(t));
  for (int degree = 1; degree <= gpus; degree *= 2) {
    problem.times.emplace_back(problem.tokens.size());
    workload.on_group(problem.tokens, degree, problem.times.back());
  }
  return problem;
}

// Lane time of the slowest group, computed from nothing but the assignment.
double slowest_of(const FlexspProblem& problem, const GroupLayout& layout,
                  const std::vector<std::uint32_t>& group_of) {
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
    std::vector<std::uint32_t> group_of(problem.documents(), 0);
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

TEST_CASE("hybrid-cp takes the last document of the most loaded group back when that lowers the spread") {
  // Two GPUs, one degree: 10 costs 100, 9 costs 81, 8 goes to the less loaded: 100 and 145, 45 apart. Without
  // the 8 they are 19 apart. That is more than 5% of 100, but a group keeps one document. The 8 runs in a
  // round of its own, on both GPUs.
  const Plan trimmed = plan_of("hybrid-cp", document_batches({{9, 10, 8}}), grid_options(2, 100));
  CHECK(lanes_of(trimmed) == std::vector<LaneOf>{{0, 1, {{1}}}, {0, 1, {{0}}}, {1, 2, {{2}}}});
  // 10, 8, 5: 100 and 64 + 25 = 89, 11 apart. The most loaded group has one document.
  const Plan kept = plan_of("hybrid-cp", document_batches({{10, 8, 5}}), grid_options(2, 100));
  CHECK(lanes_of(kept) == std::vector<LaneOf>{{0, 1, {{0}}}, {0, 1, {{1}, {2}}}});
  // 10, 9, 5: 100 and 81 + 25 = 106, 6 apart; without the 5 it would be 19.
  const Plan better = plan_of("hybrid-cp", document_batches({{10, 9, 5}}), grid_options(2, 100));
  CHECK(lanes_of(better) == std::vector<LaneOf>{{0, 1, {{0}}}, {0, 1, {{1}, {2}}}});
}

namespace {

// hybrid-cp once more, GPU by GPU: every GPU has its time, its group and its documents. Costs are whole
// numbers where lengths are multiples of the largest degree, so sums are exact in any order.
std::vector<LaneOf> naive_hybrid_cp(std::vector<std::int64_t> lengths, const PackOptions& options) {
  const auto gpus = static_cast<std::size_t>(options.gpus);
  const auto needed = [&](std::int64_t length) {
    int degree = 1;
    while (degree * options.of<CpGridOptions>().tokens_per_rank < length) degree *= 2;
    return degree;
  };
  const auto cost = [&](std::int64_t id) {
    const std::int64_t length = lengths[static_cast<std::size_t>(id)];
    return length * length / needed(length);
  };
  Ids waiting;
  for (std::size_t i = 0; i < lengths.size(); ++i) waiting.push_back(static_cast<std::int64_t>(i));
  std::stable_sort(waiting.begin(), waiting.end(), [&](std::int64_t a, std::int64_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  std::vector<LaneOf> lanes;
  for (int round = 0; !waiting.empty(); ++round) {
    std::vector<std::int64_t> time(gpus, 0);
    std::vector<int> group(gpus, -1);
    std::vector<int> degrees;
    std::vector<Ids> documents;
    Ids left;
    bool stopped = false;
    bool check = false;
    int first = 0;
    const auto apart = [&] {
      const auto [least, most] = std::minmax_element(time.begin(), time.end());
      return std::pair<std::int64_t, bool>{
          *most - *least, static_cast<double>(*most - *least) <= 0.05 * static_cast<double>(*most)};
    };
    const auto charge = [&](int g, std::int64_t amount) {
      for (std::size_t r = 0; r < gpus; ++r)
        if (group[r] == g) time[r] += amount;
    };
    for (const std::int64_t id : waiting) {
      const int degree = needed(lengths[static_cast<std::size_t>(id)]);
      const auto free = std::count(group.begin(), group.end(), -1);
      int chosen = -1;
      for (std::size_t r = 0; r < gpus; ++r) {
        if (group[r] < 0 || degrees[static_cast<std::size_t>(group[r])] != degree) continue;
        const auto of_chosen = std::find(group.begin(), group.end(), chosen) - group.begin();
        if (chosen < 0 || time[r] < time[static_cast<std::size_t>(of_chosen)]) chosen = group[r];
      }
      if (stopped || (chosen < 0 && free < degree)) {
        left.push_back(id);
        continue;
      }
      if (free >= degree) {
        chosen = static_cast<int>(degrees.size());
        degrees.push_back(degree);
        documents.emplace_back();
        int wanted = degree;
        for (std::size_t r = 0; r < gpus && wanted > 0; ++r)
          if (group[r] == -1) group[r] = chosen, --wanted;
      }
      documents[static_cast<std::size_t>(chosen)].push_back(id);
      charge(chosen, cost(id));
      if (first == 0) first = degree;
      check = check || degree < first;
      stopped = check && apart().second;
    }
    while (!apart().second && *std::min_element(time.begin(), time.end()) > 0) {
      const int most =
          group[static_cast<std::size_t>(std::max_element(time.begin(), time.end()) - time.begin())];
      Ids& of_most = documents[static_cast<std::size_t>(most)];
      if (of_most.size() < 2) break;
      const std::int64_t before = apart().first;
      charge(most, -cost(of_most.back()));
      if (apart().first >= before) break;
      left.push_back(of_most.back());
      of_most.pop_back();
    }
    int empty = static_cast<int>(std::count(group.begin(), group.end(), -1));
    while (empty > 0) {
      const auto smallest = std::min_element(degrees.begin(), degrees.end());
      if (*smallest > empty || 2 * *smallest > options.gpus) break;
      empty -= *smallest;
      *smallest *= 2;
    }
    for (std::size_t g = 0; g < degrees.size(); ++g) {
      lanes.push_back({round, degrees[g], {}});
      for (const std::int64_t id : documents[g]) lanes.back().micro_batches.push_back({id});
    }
    for (; empty > 0; --empty) lanes.push_back({round, 1, {{}}});
    waiting = left;
  }
  return lanes;
}

}  // namespace

TEST_CASE("hybrid-cp makes exactly what its plain GPU-by-GPU form makes") {
  SplitMix64 random(21);
  std::size_t rounds = 0;
  for (int i = 0; i < 3000; ++i) {
    CAPTURE(i);
    PackOptions options = grid_options(std::int64_t{1} << below(random, 5), 16 * (1 + below(random, 20)));
    std::vector<std::int64_t> lengths;
    for (std::int64_t k = 1 + below(random, 30); k > 0; --k) {
      const std::int64_t longest =
          options.of<CpGridOptions>().tokens_per_rank * (below(random, 3) == 0 ? options.gpus : 1);
      lengths.push_back(16 * (1 + below(random, longest / 16)));
    }
    const std::vector<LaneOf> expected = naive_hybrid_cp(lengths, options);
    REQUIRE(lanes_of(plan_of("hybrid-cp", document_batches({lengths}), options)) == expected);
    rounds += static_cast<std::size_t>(expected.back().barrier);
  }
  CHECK(rounds > 1000);
}

TEST_CASE(
    "hybrid-cp and dynamic-cp with degrees of any size, a least one, and the whole grid as a last resort") {
  for (const char* name : {"hybrid-cp", "dynamic-cp"}) {
    CAPTURE(name);
    // 4 tokens a rank: 17 need 5 ranks, 9 need 3. Powers of two would leave no room for both.
    PackOptions any = grid_options(8, 4);
    any.of<CpGridOptions>().degrees = Degrees::any;
    CHECK(lanes_of(plan_of(name, document_batches({{9, 17}}), any)) ==
          std::vector<LaneOf>{{0, 5, {{1}}}, {0, 3, {{0}}}});
    // Six GPUs: 20 tokens need five ranks, more than four, so all six. A document alone gets all, too.
    CHECK(lanes_of(plan_of(name, document_batches({{20}}), grid_options(6, 4))) ==
          std::vector<LaneOf>{{0, 6, {{0}}}});
    CHECK(lanes_of(plan_of(name, document_batches({{3}}), grid_options(6, 4))) ==
          std::vector<LaneOf>{{0, 6, {{0}}}});
    CHECK_THROWS_AS(plan_of(name, document_batches({{25}}), grid_options(6, 4)), UserError);
    PackOptions least = grid_options(4, 4);
    least.of<CpGridOptions>().min_degree = 2;
    CHECK(lanes_of(plan_of(name, document_batches({{8, 8}}), least)) ==
          std::vector<LaneOf>{{0, 2, {{0}}}, {0, 2, {{1}}}});
    least.of<CpGridOptions>().min_degree = 5;
    CHECK_THROWS_AS(plan_of(name, document_batches({{1}}), least), UserError);
  }
}

TEST_CASE("groups of hybrid-cp and dynamic-cp come in multiples of align, the last micro-batches empty") {
  PackOptions options = grid_options(2, 100);
  options.of<CpGridOptions>().align = 2;
  // Two GPUs, 10 and 9 open a group each, 5 goes to the 9 (its load is less). hybrid-cp: one document each.
  CHECK(lanes_of(plan_of("hybrid-cp", document_batches({{10, 9, 5}}), options)) ==
        std::vector<LaneOf>{{0, 1, {{0}, {}}}, {0, 1, {{1}, {2}}}});
  // dynamic-cp deals a group's documents to as many micro-batches as are asked for.
  CHECK(lanes_of(plan_of("dynamic-cp", document_batches({{10, 9, 5}}), options)) ==
        std::vector<LaneOf>{{0, 1, {{0}, {}}}, {0, 1, {{1}, {2}}}});
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
    CpGridOptions& own = options.of<CpGridOptions>();
    own.degrees = below(random, 2) == 0 ? Degrees::any : Degrees::powers_of_two;
    own.min_degree = 1 + below(random, options.gpus);
    own.align = 1 + below(random, 3);
    std::int64_t largest_group = 1;
    while (2 * largest_group <= options.gpus) largest_group *= 2;
    std::vector<std::vector<std::int64_t>> lengths(1);
    for (std::int64_t k = below(random, 15); k > 0; --k)
      lengths[0].push_back(1 + below(random, options.of<CpGridOptions>().tokens_per_rank *
                                                 (below(random, 3) == 0 ? largest_group : 1)));
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
        const bool grouped = std::string(name) != "flexsp" && lane.micro_batches.front().tokens() > 0;
        if (grouped) CHECK(lane.micro_batches.size() % static_cast<std::size_t>(own.align) == 0);
        if (grouped) CHECK(lane.context >= own.min_degree);
        for (const MicroBatch& micro_batch : lane.micro_batches) {
          CHECK(micro_batch.tokens() <= options.of<CpGridOptions>().tokens_per_rank * lane.context);
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
    const FlexspSolution exact = flexsp_exact(problem, group_layouts(problem.grid), 1'000'000);
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
    const std::vector<GroupLayout> layouts = group_layouts(problem.grid);
    const FlexspSolution fast = flexsp_heuristic(problem, layouts);
    const FlexspSolution exact = flexsp_exact(problem, layouts, 300'000);
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
