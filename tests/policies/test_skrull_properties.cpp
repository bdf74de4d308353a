// Laws of Skrull's policies on random documents, and their distance from the optimum on small ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "policies/make_plan.h"
#include "policies/packing/skrull.h"
#include "policies/solver/mixed_program.h"
#include "policies/solver/solvers.h"
#include "tests/notes.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

// In units of 1/N token.
std::int64_t fullest_rank(const std::vector<std::int64_t>& tokens, const std::vector<int>& rank_of,
                          int ranks) {
  std::vector<std::int64_t> held(static_cast<std::size_t>(ranks), 0);
  std::int64_t distributed = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (rank_of[i] == kDistributed) {
      distributed += tokens[i];
    } else {
      held[static_cast<std::size_t>(rank_of[i])] += ranks * tokens[i];
    }
  }
  return *std::max_element(held.begin(), held.end()) + distributed;
}

// Time of a micro-batch, Skrull's model: max over ranks of max(comm, local) + distributed / N, where the
// all-gather of the distributed documents costs `comm` a token. Cost is length^2.
double seconds(const std::vector<std::int64_t>& tokens, const std::vector<int>& rank_of, int ranks,
               double comm) {
  std::vector<double> local(static_cast<std::size_t>(ranks), 0);
  double gathered = 0;
  double distributed = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto cost = static_cast<double>(tokens[i] * tokens[i]);
    if (rank_of[i] == kDistributed) {
      gathered += comm * static_cast<double>(tokens[i]);
      distributed += cost;
    } else {
      local[static_cast<std::size_t>(rank_of[i])] += cost;
    }
  }
  return std::max(gathered, *std::max_element(local.begin(), local.end())) + distributed / ranks;
}

// Least time of one micro-batch over all placements within the bucket: (N + 1)^documents of them.
double best_placement(const std::vector<std::int64_t>& tokens, int ranks, std::int64_t bucket, double comm) {
  std::vector<int> rank_of(tokens.size(), kDistributed);
  double best = std::numeric_limits<double>::infinity();
  for (;;) {
    if (fullest_rank(tokens, rank_of, ranks) <= bucket * ranks)
      best = std::min(best, seconds(tokens, rank_of, ranks, comm));
    std::size_t i = 0;
    while (i < rank_of.size() && ++rank_of[i] == ranks) rank_of[i++] = kDistributed;
    if (i == rank_of.size()) return best;
  }
}

// Least total time of a lane with each subset of the documents (bit i: document i), over all ways to split it
// into at most `most` micro-batches of fewer than C*N tokens, each placed optimally: every subset once, then
// partitions by dynamic programming.
std::vector<double> best_lanes(const std::vector<std::int64_t>& documents, int ranks, std::int64_t bucket,
                               double comm, std::size_t most) {
  const std::size_t subsets = std::size_t{1} << documents.size();
  std::vector<double> alone(subsets, std::numeric_limits<double>::infinity());
  for (std::size_t set = 1; set < subsets; ++set) {
    std::vector<std::int64_t> chosen;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < documents.size(); ++i)
      if ((set >> i & 1) != 0) chosen.push_back(documents[i]), tokens += documents[i];
    if (tokens < bucket * ranks) alone[set] = best_placement(chosen, ranks, bucket, comm);
  }
  alone[0] = 0;
  std::vector<double> best = alone;
  for (std::size_t parts = 1; parts < most; ++parts) {
    std::vector<double> fewer = best;
    for (std::size_t set = 1; set < subsets; ++set)
      for (std::size_t part = set; part > 0; part = (part - 1) & set)
        best[set] = std::min(best[set], fewer[set ^ part] + alone[part]);
  }
  return best;
}

double seconds_of(const Lane& lane, double comm) {
  double sum = 0;
  for (const MicroBatch& batch : lane.micro_batches)
    sum += seconds(lengths_of(batch.slices), batch.placement, lane.context, comm);
  return sum;
}

// length^2, shared evenly, and `comm` a token for the exchange of a group.
class CommunicatingWorkload final : public Workload {
 public:
  explicit CommunicatingWorkload(double comm) : comm_(comm) {}
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    QuadraticWorkload().of(tokens, out);
  }
  void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override {
    Workload::on_group(tokens, degree, out);
    for (std::size_t i = 0; degree > 1 && i < tokens.size(); ++i)
      out[i] += comm_ * static_cast<double>(tokens[i]);
  }

 private:
  double comm_;
};

PackOptions joint_options(int lanes, int ranks, std::int64_t bucket) {
  PackOptions options;
  options.lanes = lanes;
  options.context = ranks;
  options.bucket_size = bucket;
  options.of<SolverOptions>().time_limit_seconds = 60;
  options.verify = true;
  return options;
}

}  // namespace

TEST_CASE("a placement within C*N tokens never fails and never breaks the bucket") {
  SplitMix64 random(1);
  int distributed = 0;
  for (int i = 0; i < 10000; ++i) {
    const int ranks = 1 + static_cast<int>(below(random, 8));
    std::vector<std::int64_t> tokens;
    std::int64_t sum = 0;
    for (std::int64_t k = 1 + below(random, 20); k > 0; --k) tokens.push_back(1 + below(random, 100));
    std::sort(tokens.begin(), tokens.end());
    for (const std::int64_t t : tokens) sum += t;
    std::vector<double> cost;
    for (const std::int64_t t : tokens) cost.push_back(static_cast<double>(t * t));
    const std::int64_t enough = (sum + ranks - 1) / ranks;
    for (const std::int64_t bucket : {enough, enough + below(random, 50), enough - 1}) {
      for (const skrull::PlaceFn rule : {skrull::place_dacp, skrull::place_round_robin}) {
        const skrull::Placement p = rule({tokens, cost, ranks, bucket, true});
        CHECK(p.failed == (bucket * ranks < sum));
        if (p.failed) continue;
        CHECK(p.fits);
        CHECK(fullest_rank(tokens, p.rank_of, ranks) <= bucket * ranks);
        distributed += static_cast<int>(std::count(p.rank_of.begin(), p.rank_of.end(), kDistributed));
      }
    }
  }
  CHECK(distributed > 10000);  // the hard branches are reached
}

TEST_CASE("gds, skrull and round-robin place every document once and hold every bucket") {
  SplitMix64 random(2);
  for (int i = 0; i < 3000; ++i) {
    PackOptions options;
    options.lanes = 1 + static_cast<int>(below(random, 4));
    options.context = 1 + static_cast<int>(below(random, 8));
    options.bucket_size = 120 + below(random, 200);
    options.verify = true;
    std::vector<std::vector<std::int64_t>> lengths(2);
    const std::int64_t longest = 1 + below(random, options.bucket_size * options.context - 1);
    for (auto& batch : lengths)
      for (std::int64_t k = 1 + below(random, 40); k > 0; --k) batch.push_back(1 + below(random, longest));
    const std::vector<GlobalBatch> batches = document_batches(lengths);
    CAPTURE(i);
    for (const char* name : {"gds", "skrull", "round-robin", "round-robin by arrival"}) {
      const bool by_arrival = std::string_view(name) == "round-robin by arrival";
      options.of<RoundRobinOptions>().placement_order =
          by_arrival ? PlacementOrder::arrival : PlacementOrder::as_grouped;
      const Plan plan = plan_of(by_arrival ? "round-robin" : name, batches, options);
      REQUIRE(plan.steps.size() == batches.size());
      for (std::size_t s = 0; s < batches.size(); ++s) {
        Ids ids;
        for (const Lane& lane : plan.steps[s].lanes) {
          for (const MicroBatch& batch : lane.micro_batches) {
            std::vector<std::int64_t> tokens;
            for (const Slice& slice : batch.slices) {
              tokens.push_back(slice.tokens());
              ids.push_back(slice.document);
            }
            CHECK(batch.tokens() < options.bucket_size * options.context);
            if (by_arrival)
              CHECK(std::is_sorted(batch.slices.begin(), batch.slices.end(),
                                   [](const Slice& a, const Slice& b) { return a.document < b.document; }));
            else
              CHECK(std::is_sorted(tokens.begin(), tokens.end()));
            if (std::string_view(name) != "gds" && !tokens.empty()) {
              REQUIRE(batch.placement.size() == tokens.size());
              CHECK(fullest_rank(tokens, batch.placement, options.context) <=
                    options.bucket_size * options.context);
            }
          }
        }
        std::sort(ids.begin(), ids.end());
        Ids expected;
        for (const Slice& slice : batches[s].slices) expected.push_back(slice.document);
        CHECK(ids == expected);
      }
    }
  }
}

TEST_CASE("GDS + DACP is never better than the optimum, and not far from it") {
  // One lane, so that the optimum is over splits into micro-batches and over placements. `comm` is what the
  // all-gather costs a token, in units in which a document of s tokens costs s^2.
  SplitMix64 random(3);
  double sum = 0;
  double worst = 0;
  int cases = 0;
  for (int i = 0; i < 120; ++i) {
    PackOptions options;
    options.context = 2 + static_cast<int>(below(random, 2));
    options.bucket_size = 8 + below(random, 20);
    std::vector<std::int64_t> lengths;
    for (std::int64_t k = 3 + below(random, 4); k > 0; --k)
      lengths.push_back(1 +
                        below(random, std::min<std::int64_t>(20, options.bucket_size * options.context - 1)));
    const double comm = 4;
    const Plan plan = plan_of("skrull", document_batches({lengths}), options);
    const double ours = seconds_of(plan.steps.at(0).lanes.at(0), comm);
    const double optimum =
        best_lanes(lengths, options.context, options.bucket_size, comm, lengths.size()).back();
    CHECK(ours >= optimum * (1 - 1e-12));
    const double gap = ours / optimum - 1;
    sum += gap;
    worst = std::max(worst, gap);
    ++cases;
  }
  std::printf("skrull over the optimum of %d small cases: mean %.1f %%, worst %.1f %%\n", cases,
              100 * sum / cases, 100 * worst);
  CHECK(cases == 120);
}

TEST_CASE("skrull-solver distributes the long document next to the short ones where DACP keeps all whole") {
  if (!solver_available()) return;
  // Lengths 4, 2, 2 on two ranks with room, cost length^2. DACP: 2 and 2 on a rank each, 4 on the first of
  // them: 4 + 16 = 20. Better: 4 on one and both 2 on the other, 16. Or 4 distributed, which takes 8 on each
  // rank after the slower of its exchange and one 2: with 1 a token that is max(4, 4) + 8 = 12, with 2 a
  // token max(8, 4) + 8 = 16, with 3 it is 20 and no better.
  const std::vector<GlobalBatch> batches = document_batches({{4, 2, 2}});
  const PackOptions options = joint_options(1, 2, 100);
  const auto solved = [&](double comm) {
    const CommunicatingWorkload workload(comm);
    return make_plan(packing_policy("skrull-solver"), {batches, options, workload});
  };
  const Plan cheap = solved(1);
  CHECK(cheap.solver.at(0).incumbent == 12);
  CHECK(cheap.solver.at(0).optimal);
  CHECK(test::kinds_of(cheap.notes) == std::vector<std::string>{"programs_proven", "heuristic_longer"});
  CHECK(cheap.notes[0].count("optimal") == 1);
  CHECK(cheap.notes[1].number("share") == doctest::Approx(2.0 / 3));
  const MicroBatch& batch = cheap.steps.at(0).lanes.at(0).micro_batches.at(0);
  CHECK(lengths_of(batch.slices) == std::vector<std::int64_t>{2, 2, 4});
  CHECK(batch.placement == std::vector<int>{0, 1, kDistributed});
  CHECK(solved(3).solver.at(0).incumbent == 16);
}

TEST_CASE("skrull-solver finds the brute-force optimum of lanes, micro-batches and placements") {
  if (!solver_available()) return;
  SplitMix64 random(4);
  int split = 0, beaten = 0;
  for (int i = 0; i < 24; ++i) {
    PackOptions options =
        joint_options(1 + i % 2, 2 + static_cast<int>(below(random, 2)), 8 + below(random, 20));
    std::vector<std::int64_t> lengths;
    for (std::int64_t k = 4 + below(random, 3); k > 0; --k)
      lengths.push_back(1 +
                        below(random, std::min<std::int64_t>(20, options.bucket_size * options.context - 1)));
    const auto comm = static_cast<double>(1 + below(random, 6));
    const CommunicatingWorkload workload(comm);
    const std::vector<GlobalBatch> batches = document_batches({lengths});
    const auto plan_by = [&](const char* name) {
      return make_plan(packing_policy(name), {batches, options, workload});
    };
    const Plan rules = plan_by("skrull");
    std::size_t most = 0;
    double by_rules = 0;
    for (const Lane& lane : rules.steps.at(0).lanes) {
      most = std::max(most, lane.micro_batches.size());
      by_rules = std::max(by_rules, seconds_of(lane, comm));
    }
    const std::vector<double> lane = best_lanes(lengths, options.context, options.bucket_size, comm, most);
    double optimum = lane.back();
    for (std::size_t set = 0; options.lanes == 2 && set < lane.size(); ++set)
      optimum = std::min(optimum, std::max(lane[set], lane[lane.size() - 1 - set]));
    split += most > 1 ? 1 : 0;
    beaten += by_rules > optimum * 1.001 ? 1 : 0;
    CAPTURE(i);
    for (const MilpSolver solver : {MilpSolver::cbc, MilpSolver::highs}) {
      if (!solver_available(solver)) continue;
      options.of<SolverOptions>().solver = solver;
      const Plan solved = plan_by("skrull-solver");
      double found = 0;
      for (const Lane& own : solved.steps.at(0).lanes) found = std::max(found, seconds_of(own, comm));
      CHECK(found == doctest::Approx(optimum).epsilon(1e-7));
      CHECK(solved.solver.at(0).incumbent == doctest::Approx(found).epsilon(1e-12));
      CHECK(solved.solver.at(0).bound <= optimum * (1 + 1e-7));
      CHECK(solved.solver.at(0).optimal);
      CHECK(found <= by_rules * (1 + 1e-12));
    }
  }
  CHECK(split > 5);    // more than one micro-batch
  CHECK(beaten > 12);  // not all of them were optimal from the start
}

TEST_CASE("skrull-solver keeps what moves found where a step is too large to search") {
  if (!solver_available()) return;
  // 4,001 documents in 2 micro-batches of 17 places each make 136,034 columns, whose root alone is beyond the
  // work of a plan. The one of 1 token makes ranks unequal, so that no plan reaches the bound.
  const CommunicatingWorkload workload(1);
  std::vector<std::int64_t> lengths(4000, 2);
  lengths.push_back(1);
  const std::vector<GlobalBatch> batches = document_batches({{3}, lengths});
  PackOptions options = joint_options(2, 16, 1000);
  options.of<SolverOptions>().time_limit_seconds = 0;
  const Plan plan = make_plan(packing_policy("skrull-solver"), {batches, options, workload});
  REQUIRE(plan.solver.size() == 2);
  const Note* const work = test::find_note(plan.notes, "solver_work");
  REQUIRE(work != nullptr);
  CHECK(work->count("unsearched") == 1);
  CHECK(work->count("stopped") == 0);
  CHECK(plan.solver[1].incumbent >= plan.solver[1].bound);
}
