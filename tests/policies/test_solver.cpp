// The integer program of the solver policies: against brute force on small cases, and never worse than the
// heuristics. Without a solver only the refusal is
// tested; HiGHS is tested where its library is found.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/wlb.h"
#include "policies/solver/assignment.h"
#include "policies/solver/solvers.h"
#include "tests/notes.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

// Each document, heaviest first, to the lightest bin with room. False if one finds none.
bool assign_greedily(const AssignmentProblem& problem, BinOf& bin_of) {
  std::vector<std::size_t> order(problem.weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  std::vector<double> weights(problem.bins, 0);
  std::vector<std::int64_t> tokens(problem.bins, 0);
  bin_of.assign(order.size(), 0);
  for (const std::size_t i : order) {
    std::size_t best = problem.bins;
    for (std::size_t b = 0; b < problem.bins; ++b) {
      if (tokens[b] + problem.tokens[i] > problem.capacity) continue;
      if (best == problem.bins || weights[b] < weights[best]) best = b;
    }
    if (best == problem.bins) return false;
    bin_of[i] = static_cast<std::uint32_t>(best);
    weights[best] += problem.weight[i];
    tokens[best] += problem.tokens[i];
  }
  return true;
}

std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

AssignmentProblem squares(const std::vector<std::int64_t>& tokens, std::size_t bins, std::int64_t capacity) {
  AssignmentProblem problem;
  problem.tokens = tokens;
  for (const std::int64_t t : tokens) problem.weight.push_back(static_cast<double>(t * t));
  problem.bins = bins;
  problem.capacity = capacity;
  return problem;
}

double brute_force(const AssignmentProblem& problem) {
  BinOf bin_of(problem.tokens.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  for (;;) {
    if (within_capacity(problem, bin_of)) best = std::min(best, heaviest_bin(problem, bin_of));
    std::size_t i = 0;
    while (i < bin_of.size() && ++bin_of[i] == problem.bins) bin_of[i++] = 0;
    if (i == bin_of.size()) return best;
  }
}

// One batch of full windows of `window` tokens, cut at random; document ids from `id` on.
GlobalBatch random_windows(SplitMix64& random, std::int64_t windows, std::int64_t window,
                           std::int64_t id = 0) {
  GlobalBatch batch;
  for (std::int64_t w = 0; w < windows; ++w) {
    batch.window_begin.push_back(batch.slices.size());
    for (std::int64_t left = window; left > 0;) {
      const std::int64_t length =
          std::min(left, 1 + below(random, below(random, 3) == 0 ? window : window / 2));
      batch.slices.push_back({id++, 0, length});
      left -= length;
    }
  }
  batch.window_begin.push_back(batch.slices.size());
  return batch;
}

// Largest sum of len^2 of a micro-batch.
double largest(const Step& step) {
  double most = 0;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      double sum = 0;
      for (const Slice& s : micro_batch.slices) sum += static_cast<double>(s.tokens() * s.tokens());
      most = std::max(most, sum);
    }
  return most;
}

std::size_t documents_of(const Step& step) {
  std::size_t count = 0;
  for (const Ids& ids : ids_of(step)) count += ids.size();
  return count;
}

}  // namespace

TEST_CASE("swaps: the heaviest bin gives a document away or trades it") {
  // Sums of squares 4^2 + 3^2 = 25 and 2^2 + 1 = 5. Giving away 3 leaves 16 and 14; giving away 4 leaves 9
  // and 21; trading 4 for 2 leaves 13 and 17; 3 for 2: 20 and 10; 3 for 1: 17 and 13. Best: 16.
  BinOf bins = {0, 0, 1, 1};
  improve_by_swaps(squares({4, 3, 2, 1}, 2, 100), bins);
  CHECK(bins == BinOf{0, 1, 1, 1});
  // With room for 6 tokens only trades are possible that keep both bins at 6 or less: 4 for 2 leaves 3 + 2 =
  // 5 and 4 + 1 = 5 tokens, 13 and 17.
  BinOf tight = {0, 0, 1, 1};
  improve_by_swaps(squares({4, 3, 2, 1}, 2, 5), tight);
  CHECK(tight == BinOf{1, 0, 0, 1});
}

TEST_CASE("a program without a solver says so") {
  if (solver_available()) return;
  CHECK_THROWS_AS(solve_assignment(squares({1, 2}, 2, 3), {0, 1}, {}), UserError);
}

TEST_CASE("the solver finds the brute-force optimum and proves it") {
  if (!solver_available()) return;
  SplitMix64 random(1);
  int tight = 0;
  for (int i = 0; i < 60; ++i) {
    const auto bins = static_cast<std::size_t>(2 + below(random, 2));
    std::vector<std::int64_t> tokens;
    for (std::int64_t k = 3 + below(random, 6); k > 0; --k) tokens.push_back(1 + below(random, 30));
    AssignmentProblem problem = squares(tokens, bins, 0);
    // A feasible start is dealt first, and the capacity is what it needs: no or little slack.
    BinOf start;
    std::vector<std::int64_t> held(bins, 0);
    for (const std::int64_t t : tokens) {
      start.push_back(static_cast<std::uint32_t>(below(random, static_cast<std::int64_t>(bins))));
      held[start.back()] += t;
    }
    problem.capacity = *std::max_element(held.begin(), held.end());
    CAPTURE(i);
    const AssignmentResult result = solve_assignment(problem, start, {60, nullptr});
    const double optimum = brute_force(problem);
    CHECK(within_capacity(problem, result.bin_of));
    CHECK(result.objective == doctest::Approx(heaviest_bin(problem, result.bin_of)).epsilon(1e-12));
    CHECK(result.objective == doctest::Approx(optimum).epsilon(1e-7));
    CHECK(result.optimal);
    CHECK(result.bound <= optimum * (1 + 1e-7));
    tight += optimum > lower_bound(problem) * 1.001 ? 1 : 0;
  }
  CHECK(tight > 18);  // not all were solved by the trivial bound
}

TEST_CASE("CBC and HiGHS prove the same optimum") {
  if (!solver_available(MilpSolver::cbc) || !solver_available(MilpSolver::highs)) {
    std::printf("not compared: %s is not there\n", solver_available(MilpSolver::cbc) ? "HiGHS" : "CBC");
    return;
  }
  SplitMix64 random(7);
  int tight = 0;
  for (int i = 0; i < 40; ++i) {
    const auto bins = static_cast<std::size_t>(2 + below(random, 3));
    std::vector<std::int64_t> tokens;
    std::int64_t sum = 0;
    for (std::int64_t k = 6 + below(random, 8); k > 0; --k) {
      tokens.push_back(1 + below(random, 60));
      sum += tokens.back();
    }
    const AssignmentProblem problem =
        squares(tokens, bins, sum * 6 / 5 / static_cast<std::int64_t>(bins) + 60);
    BinOf start;
    if (!assign_greedily(problem, start)) continue;
    CAPTURE(i);
    const AssignmentResult cbc = solve_assignment(problem, start, {60, nullptr, MilpSolver::cbc});
    const AssignmentResult highs = solve_assignment(problem, start, {60, nullptr, MilpSolver::highs});
    CHECK(cbc.optimal);
    CHECK(highs.optimal);
    CHECK(within_capacity(problem, highs.bin_of));
    CHECK(highs.objective == doctest::Approx(heaviest_bin(problem, highs.bin_of)).epsilon(1e-12));
    CHECK(highs.objective == doctest::Approx(cbc.objective).epsilon(1e-7));
    tight += highs.objective > lower_bound(problem) * 1.001 ? 1 : 0;
  }
  CHECK(tight > 10);  // not all were solved by the trivial bound
}

TEST_CASE("HiGHS stops at its time limit, and when it is told to") {
  if (!solver_available(MilpSolver::highs)) return;
  SplitMix64 random(5);
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(1 + below(random, 1000));
  const AssignmentProblem problem = squares(tokens, 6, 7000);
  BinOf start;
  REQUIRE(assign_greedily(problem, start));
  const AssignmentResult late = solve_assignment(problem, start, {0.3, nullptr, MilpSolver::highs});
  CHECK(late.objective <= heaviest_bin(problem, start));
  CHECK(late.bound <= late.objective);
  CHECK(late.bound >= lower_bound(problem));
  std::atomic<bool> cancel = false;
  std::thread other([&cancel] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cancel = true;
  });
  const AssignmentResult told = solve_assignment(problem, start, {300, &cancel, MilpSolver::highs});
  other.join();
  CHECK(within_capacity(problem, told.bin_of));
  CHECK(told.bound <= told.objective);
  CHECK((told.optimal || told.seconds < 100));
}

TEST_CASE("a solver that is not there is named") {
  for (const MilpSolver solver : {MilpSolver::cbc, MilpSolver::highs})
    if (!solver_available(solver))
      CHECK_THROWS_AS(solve_assignment(squares({1, 2}, 2, 3), {0, 1}, {10, nullptr, solver}), UserError);
}

TEST_CASE("a cancelled solver keeps its start and claims nothing") {
  if (!solver_available()) return;
  const std::atomic<bool> cancel = true;
  const AssignmentProblem problem = squares({5, 4, 3, 3, 2, 1}, 2, 18);
  const BinOf start = {0, 0, 0, 1, 1, 1};
  const AssignmentResult result = solve_assignment(problem, start, {60, &cancel});
  CHECK(result.bin_of == start);
  CHECK_FALSE(result.optimal);
  CHECK(result.bound == lower_bound(problem));
}

TEST_CASE("a solver stopped by its time limit still reports a bound below its incumbent") {
  if (!solver_available()) return;
  SplitMix64 random(5);
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(1 + below(random, 1000));
  AssignmentProblem problem = squares(tokens, 6, 7000);
  BinOf start;
  REQUIRE(assign_greedily(problem, start));
  const AssignmentResult result = solve_assignment(problem, start, {0.3, nullptr});
  CHECK(result.objective <= heaviest_bin(problem, start));
  CHECK(result.bound <= result.objective);
  CHECK(result.bound >= lower_bound(problem));
}

TEST_CASE("fixed-greedy and plain are never better than fixed-solver") {
  if (!solver_available()) return;
  SplitMix64 random(2);
  double worst = 0;
  double sum = 0;
  int placed_all = 0;
  for (int i = 0; i < 30; ++i) {
    const std::vector<GlobalBatch> batches = {random_windows(random, 3, 64)};
    PackOptions options;
    options.context_window = i % 2 == 0 ? 64 : 72;  // no slack, as in training, and some
    options.sequences_per_step = 3;
    options.of<SolverOptions>().time_limit_seconds = 60;
    options.verify = true;
    const Plan solved = plan_of("fixed-solver", batches, options);
    REQUIRE(solved.solver.size() == 1);
    REQUIRE(solved.steps.size() == 1);
    const double optimum = largest(solved.steps[0]);
    CHECK(optimum == doctest::Approx(solved.solver[0].incumbent).epsilon(1e-12));
    CHECK(documents_of(solved.steps[0]) == batches[0].slices.size());
    for (const Lane& lane : solved.steps[0].lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches)
        CHECK(micro_batch.tokens() <= options.context_window);
    REQUIRE(solved.solver[0].optimal);
    CHECK(largest(plan_of("plain", batches, options).steps[0]) >= optimum * (1 - 1e-7));
    const Plan greedy = plan_of("fixed-greedy", batches, options);
    if (documents_of(greedy.steps[0]) != batches[0].slices.size()) continue;  // it did not place everything
    CHECK(largest(greedy.steps[0]) >= optimum * (1 - 1e-7));
    const double gap = largest(greedy.steps[0]) / optimum - 1;
    worst = std::max(worst, gap);
    sum += gap;
    ++placed_all;
  }
  std::printf(
      "fixed-greedy over fixed-solver where it placed everything (%d of 30): mean %.2f %%, worst %.2f %%\n",
      placed_all, placed_all > 0 ? 100 * sum / placed_all : 0, 100 * worst);
}

TEST_CASE("wlb is never better than varlen-solver on the same documents") {
  if (!solver_available()) return;
  SplitMix64 random(3);
  double worst = 0;
  double sum = 0;
  int steps = 0;
  for (int i = 0; i < 10; ++i) {
    const std::vector<GlobalBatch> batches = {random_windows(random, 3, 64),
                                              random_windows(random, 3, 64, 1000)};
    PackOptions options;
    options.context_window = 64;
    options.sequences_per_step = 3;
    options.lanes = 1 + static_cast<int>(below(random, 2));
    options.of<WlbOptions>().queues = 1;
    options.of<SolverOptions>().time_limit_seconds = 60;
    options.verify = true;
    const Plan wlb = plan_of("wlb", batches, options);
    const Plan solved = plan_of("varlen-solver", batches, options);
    REQUIRE(wlb.steps.size() == solved.steps.size());
    for (std::size_t s = 0; s < wlb.steps.size(); ++s) {
      CHECK(documents_of(wlb.steps[s]) == documents_of(solved.steps[s]));
      CHECK(wlb.steps[s].carried == solved.steps[s].carried);
      for (std::size_t lane = 0; lane < wlb.steps[s].lanes.size(); ++lane)
        CHECK(wlb.steps[s].lanes[lane].micro_batches.size() ==
              solved.steps[s].lanes[lane].micro_batches.size());
      const double optimum = largest(solved.steps[s]);
      CHECK(largest(wlb.steps[s]) >= optimum);
      const double gap = largest(wlb.steps[s]) / optimum - 1;
      worst = std::max(worst, gap);
      sum += gap;
      ++steps;
    }
  }
  std::printf("wlb over varlen-solver, %d steps: mean %.2f %%, worst %.2f %%\n", steps, 100 * sum / steps,
              100 * worst);
}

TEST_CASE("with a pack window the solver moves documents between steps and reports who waits") {
  if (!solver_available()) return;
  // Two steps of one window of 8. Plain has {8} and {2, 2, 2, 2}: 64 and 16. Two bins of 8 tokens cannot do
  // better: the document of 8 fills one. The heavier bin runs first, so nothing waits.
  const std::vector<GlobalBatch> batches = {{{{0, 0, 8}}, {0, 1}},
                                            {{{1, 0, 2}, {2, 0, 2}, {3, 0, 2}, {4, 0, 2}}, {0, 4}}};
  PackOptions options;
  options.context_window = 8;
  options.sequences_per_step = 1;
  options.of<FixedLengthOptions>().pack_window = 2;
  options.verify = true;
  const Plan same = plan_of("fixed-solver", batches, options);
  CHECK(ids_of(same.steps.at(0)) == std::vector<Ids>{{0}});
  CHECK(ids_of(same.steps.at(1)) == std::vector<Ids>{{1, 2, 3, 4}});
  CHECK(same.solver.at(0).incumbent == 64);

  // {4, 4} and {1, 1, 1, 1, 1, 1, 1, 1}: 32 and 8. The optimum has one 4 and four 1 in each: 16 + 4 = 20.
  std::vector<GlobalBatch> uneven(2);
  uneven[0] = {{{0, 0, 4}, {1, 0, 4}}, {0, 2}};
  for (std::int64_t id = 2; id < 10; ++id) uneven[1].slices.push_back({id, 0, 1});
  uneven[1].window_begin = {0, 8};
  const Plan mixed = plan_of("fixed-solver", uneven, options);
  CHECK(largest(mixed.steps.at(0)) == 20);
  CHECK(largest(mixed.steps.at(1)) == 20);
  // One document of 4 waits for the second step.
  CHECK(carried_of(mixed.steps[0]) == Ids{1});
  CHECK(carried_of(mixed.steps[1]).empty());
  CHECK(mixed.solver.at(0).optimal);
}

TEST_CASE("with the maximum fixed by one document, the second solve lightens the other steps") {
  if (!solver_available()) return;
  // Two steps of two windows of 8: {8} {4 4} and {4 4} {2 2 2 2}. The document of 8 fixes the maximum at 64.
  // Plain's bins of 64, 32, 32, 16 cost 64 + 32 = 96 over two steps. With {8} and {4 4} in the first step the
  // rest makes two bins of 4 2 2, 24 each: 64 + 24 = 88, and no two bins of the rest are lighter.
  const std::vector<GlobalBatch> batches = {
      {{{0, 0, 8}, {1, 0, 4}, {2, 0, 4}}, {0, 1, 3}},
      {{{3, 0, 4}, {4, 0, 4}, {5, 0, 2}, {6, 0, 2}, {7, 0, 2}, {8, 0, 2}}, {0, 2, 6}}};
  PackOptions options;
  options.context_window = 8;
  options.sequences_per_step = 2;
  options.of<FixedLengthOptions>().pack_window = 2;
  options.verify = true;
  const Plan plan = plan_of("fixed-solver", batches, options);
  CHECK(ids_of(plan.steps.at(0))[0] == Ids{0});
  CHECK(ids_of(plan.steps.at(0))[1].size() == 2);
  CHECK(largest(plan.steps.at(0)) == 64);
  CHECK(largest(plan.steps.at(1)) == 24);
  REQUIRE(plan.solver.size() == 2);
  CHECK_FALSE(plan.solver[0].over_steps);
  CHECK(plan.solver[0].incumbent == 64);
  CHECK(plan.solver[1].over_steps);
  CHECK(plan.solver[1].incumbent == 88);
  CHECK(plan.solver[1].optimal);
  CHECK(plan.solver[1].gap() == doctest::Approx(0));
  REQUIRE(test::kinds_of(plan.notes) == std::vector<std::string>{"programs_proven"});
  CHECK(plan.notes[0].count("optimal") == 2);
  CHECK(plan.notes[0].count("programs") == 2);
  CHECK(plan.notes[0].number("gap") == doctest::Approx(0));
}

TEST_CASE("fixed-solver is never worse than plain or fixed-greedy over the same pack window") {
  if (!solver_available()) return;
  SplitMix64 random(11);
  int compared = 0;
  for (int i = 0; i < 25; ++i) {
    CAPTURE(i);
    PackOptions options;
    options.context_window = 64;
    options.sequences_per_step = 1 + below(random, 3);
    options.of<FixedLengthOptions>().pack_window = 1 + below(random, 4);
    options.lanes = static_cast<int>(1 + below(random, 2));
    options.of<SolverOptions>().node_limit = 2;
    options.verify = true;
    std::vector<GlobalBatch> batches;
    for (std::int64_t k = 0; k < options.of<FixedLengthOptions>().pack_window; ++k)
      batches.push_back(random_windows(random, options.sequences_per_step, 64, 1000 * k));
    const Plan solved = plan_of("fixed-solver", batches, options);
    const auto score = [](const Plan& plan) {  // maximum first, then the sum over steps of the largest
      std::pair<double, double> pair{0, 0};
      for (const Step& step : plan.steps) {
        pair.first = std::max(pair.first, largest(step));
        pair.second += largest(step);
      }
      return pair;
    };
    // The steps have their bins heaviest first.
    for (std::size_t s = 1; s < solved.steps.size(); ++s)
      CHECK(largest(solved.steps[s]) <= largest(solved.steps[s - 1]));
    CHECK(score(solved) <= score(plan_of("plain", batches, options)));
    const Plan greedy = plan_of("fixed-greedy", batches, options);
    if (greedy.steps.size() > batches.size()) continue;  // it did not place everything
    CHECK(score(solved) <= score(greedy));
    ++compared;
  }
  CHECK(compared > 5);
}

TEST_CASE("the second solve finds the brute-force optimum under the first one's maximum") {
  if (!solver_available()) return;
  SplitMix64 random(12);
  int tight = 0;
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    std::vector<std::int64_t> tokens;
    for (std::int64_t k = 4 + below(random, 3); k > 0; --k) tokens.push_back(1 + below(random, 30));
    AssignmentProblem problem = squares(tokens, 4, 45);
    problem.bins_a_step = 2;
    BinOf start;
    if (!assign_greedily(problem, start)) continue;
    AssignmentProblem largest_only = problem;
    largest_only.bins_a_step = 0;
    const AssignmentResult first = solve_assignment(largest_only, start, {60, nullptr});
    REQUIRE(first.optimal);
    problem.heaviest_allowed = first.objective;

    double optimum = std::numeric_limits<double>::infinity();
    for (BinOf bin_of(tokens.size(), 0);;) {
      if (within_capacity(problem, bin_of) && heaviest_bin(problem, bin_of) <= first.objective) {
        std::vector<double> weights = bin_weights(problem, bin_of);
        std::sort(weights.rbegin(), weights.rend());
        optimum = std::min(optimum, weights[0] + weights[2]);
      }
      std::size_t at = 0;
      while (at < bin_of.size() && ++bin_of[at] == problem.bins) bin_of[at++] = 0;
      if (at == bin_of.size()) break;
    }
    for (const MilpSolver solver : {MilpSolver::cbc, MilpSolver::highs}) {
      if (!solver_available(solver)) continue;
      const AssignmentResult second = solve_assignment(problem, first.bin_of, {60, nullptr, solver});
      CHECK(second.optimal);
      CHECK(second.objective == doctest::Approx(optimum).epsilon(1e-7));
      CHECK(heaviest_bin(problem, second.bin_of) <= first.objective);
      CHECK(within_capacity(problem, second.bin_of));
    }
    CHECK(lower_bound(problem) <= optimum);
    tight += optimum > lower_bound(problem) * 1.001 ? 1 : 0;

    // The swaps that start it never worsen anything.
    BinOf swapped = first.bin_of;
    improve_steps_by_swaps(problem, swapped);
    CHECK(sum_over_steps(problem, swapped) <= sum_over_steps(problem, first.bin_of));
    CHECK(sum_over_steps(problem, swapped) >= optimum);
    CHECK(heaviest_bin(problem, swapped) <= first.objective);
    CHECK(within_capacity(problem, swapped));
  }
  CHECK(tight > 10);  // not all were solved by the trivial bound
}

TEST_CASE("a limit on nodes takes the place of the time: the clock changes nothing") {
  if (!solver_available()) return;
  SplitMix64 random(13);
  std::vector<GlobalBatch> batches;
  for (std::int64_t k = 0; k < 3; ++k) batches.push_back(random_windows(random, 3, 256, 1000 * k));
  PackOptions options;
  options.context_window = 256;
  options.sequences_per_step = 3;
  options.of<FixedLengthOptions>().pack_window = 3;
  options.of<SolverOptions>().node_limit = 5;
  for (const MilpSolver solver : {MilpSolver::cbc, MilpSolver::highs}) {
    if (!solver_available(solver)) continue;
    options.of<SolverOptions>().solver = solver;
    options.of<SolverOptions>().time_limit_seconds = 1e-6;
    const Plan hurried = plan_of("fixed-solver", batches, options);
    options.of<SolverOptions>().time_limit_seconds = 1e6;
    const Plan patient = plan_of("fixed-solver", batches, options);
    REQUIRE(hurried.steps.size() == patient.steps.size());
    for (std::size_t s = 0; s < patient.steps.size(); ++s)
      CHECK(ids_of(hurried.steps[s]) == ids_of(patient.steps[s]));
    REQUIRE(hurried.solver.size() == patient.solver.size());
    for (std::size_t r = 0; r < patient.solver.size(); ++r) {
      CHECK(hurried.solver[r].incumbent == patient.solver[r].incumbent);
      CHECK(hurried.solver[r].bound == patient.solver[r].bound);
    }
  }
}

TEST_CASE("without a limit of its own a plan's solver stops at counted work and says so") {
  if (!solver_available()) return;
  // The program of 200 windows has 10^5 columns and more, which is beyond the work of a plan. The steps keep
  // what swaps found, never worse than plain, and the second plan is the same.
  SplitMix64 random(17);
  const std::vector<GlobalBatch> batches = {random_windows(random, 200, 4096),
                                            random_windows(random, 200, 4096, 10000)};
  PackOptions options;
  options.context_window = 4096;
  options.sequences_per_step = 200;
  const Plan plan = plan_of("fixed-solver", batches, options);
  const Note* const work = test::find_note(plan.notes, "solver_work");
  REQUIRE(work != nullptr);
  CHECK(work->count("unsearched") == 2);
  CHECK(work->count("stopped") == 0);
  const Plan again = plan_of("fixed-solver", batches, options);
  const Plan plain = plan_of("plain", batches, options);
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    CHECK(ids_of(again.steps[s]) == ids_of(plan.steps[s]));
    CHECK(largest(plan.steps[s]) <= largest(plain.steps[s]));
  }
}

TEST_CASE("a program whose root is beyond a plan's work is not searched") {
  const SolverOptions options;
  SolverWork work(options, 2);
  CHECK(work.next(1e4, 1e6, 0).nodes == 0);
  work.ended(false, false);
  // The whole work is left for the second.
  const std::int64_t all = work.next(100, 1e4, 0).nodes;
  CHECK(all > 1);
  SolverWork halved(options, 2);
  CHECK(halved.next(100, 1e4, 0).nodes < all);
  Plan plan;
  work.ended(true, false);
  work.note_on(plan);
  const Note* const note = test::find_note(plan.notes, "solver_work");
  REQUIRE(note != nullptr);
  CHECK(note->count("unsearched") == 1);
  CHECK(note->count("stopped") == 1);
  SolverOptions timed;
  timed.time_limit_seconds = 3;
  CHECK(SolverWork(timed, 1).next(1e4, 1e6, 1.5).seconds == 1.5);
}
