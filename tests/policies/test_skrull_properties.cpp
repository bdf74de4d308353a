// Laws of Skrull's policies on random documents, and their distance from the optimum on small ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "policies/base/random.h"
#include "policies/packing/skrull.h"
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

// Least total time of one lane over all ways to split its documents into micro-batches of fewer than C*N
// tokens, each placed optimally: every subset once, then a partition by dynamic programming.
double best_lane(const std::vector<std::int64_t>& documents, int ranks, std::int64_t bucket, double comm) {
  const std::size_t subsets = std::size_t{1} << documents.size();
  std::vector<double> alone(subsets, std::numeric_limits<double>::infinity());
  for (std::size_t set = 1; set < subsets; ++set) {
    std::vector<std::int64_t> chosen;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < documents.size(); ++i)
      if ((set >> i & 1) != 0) chosen.push_back(documents[i]), tokens += documents[i];
    if (tokens < bucket * ranks) alone[set] = best_placement(chosen, ranks, bucket, comm);
  }
  std::vector<double> best(subsets, std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (std::size_t set = 1; set < subsets; ++set)
    for (std::size_t part = set; part > 0; part = (part - 1) & set)
      best[set] = std::min(best[set], best[set ^ part] + alone[part]);
  return best.back();
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
    double ours = 0;
    for (const MicroBatch& batch : plan.steps.at(0).lanes.at(0).micro_batches) {
      std::vector<std::int64_t> tokens;
      for (const Slice& slice : batch.slices) tokens.push_back(slice.tokens());
      ours += seconds(tokens, batch.placement, options.context, comm);
    }
    const double optimum = best_lane(lengths, options.context, options.bucket_size, comm);
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
