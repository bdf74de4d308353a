// The validator, and every policy before it.
#include <doctest/doctest.h>

#include <map>
#include <stdexcept>

#include "policies/base/error.h"
#include "policies/make_plan.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/hbp.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/packing/skrull.h"
#include "policies/packing/wlb.h"
#include "policies/solver/solvers.h"
#include "policies/steps.h"
#include "policies/validator.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

std::string violation(const std::vector<GlobalBatch>& batches, const Plan& plan,
                      const PlanLimits& limits = {}) {
  return plan_violation(batches, plan, limits).value_or("");
}

// Two batches of {5, 3} and {4}: step 0 runs documents 0 and carries 1, step 1 runs 1 and 2.
struct Small {
  std::vector<GlobalBatch> batches = document_batches({{5, 3}, {4}});
  Plan plan;
  Small() {
    plan.steps.resize(2);
    for (Step& step : plan.steps) step.lanes.resize(1);
    plan.steps[0].lanes[0].micro_batches.resize(1);
    plan.steps[0].lanes[0].micro_batches[0].slices = {{0, 0, 5}};
    plan.steps[0].carried = {{1, 0, 3}};
    plan.steps[1].lanes[0].micro_batches.resize(1);
    plan.steps[1].lanes[0].micro_batches[0].slices = {{1, 0, 3}, {2, 0, 4}};
  }
  MicroBatch& micro_batch(std::size_t step) { return plan.steps[step].lanes[0].micro_batches[0]; }
};

struct Chunked {
  std::vector<GlobalBatch> batches = document_batches({{2, 10}});
  Plan plan;
  Chunked() {
    PackOptions options;
    options.of<ChunkflowOptions>().chunk_size = 4;
    plan = plan_of("chunkflow", batches, options);
  }
  std::vector<MicroBatch>& chunks() { return plan.steps[0].lanes[0].micro_batches; }
};

}  // namespace

TEST_CASE("the validator finds each kind of broken plan") {
  CHECK(violation(Small().batches, Small().plan).empty());
  SUBCASE("a lost token") {
    Small s;
    s.micro_batch(1).slices[1].end = 3;
    CHECK(violation(s.batches, s.plan).find("token 3 of document 2 is neither") != std::string::npos);
  }
  SUBCASE("a lost document") {
    Small s;
    s.micro_batch(1).slices.pop_back();
    CHECK(violation(s.batches, s.plan).find("token 0 of document 2 is neither") != std::string::npos);
  }
  SUBCASE("a token executed twice") {
    Small s;
    s.micro_batch(1).slices.push_back({0, 0, 5});
    CHECK(violation(s.batches, s.plan).find("executed twice") != std::string::npos);
  }
  SUBCASE("a document that is not in the set") {
    Small s;
    s.micro_batch(1).slices.push_back({7, 0, 1});
    CHECK(violation(s.batches, s.plan).find("not in the set") != std::string::npos);
  }
  SUBCASE("dropped and executed") {
    Small s;
    s.plan.dropped = {{0, 0, 5}};
    CHECK(violation(s.batches, s.plan).find("dropped and also executed") != std::string::npos);
  }
  SUBCASE("pieces out of order") {
    Small s;
    s.micro_batch(1).slices = {{1, 2, 3}, {1, 0, 2}, {2, 0, 4}};
    CHECK(violation(s.batches, s.plan).find("runs before") != std::string::npos);
    s.micro_batch(1).slices = {{1, 0, 2}, {1, 2, 3}, {2, 0, 4}};
    CHECK(violation(s.batches, s.plan).empty());
  }
  SUBCASE("a budget") {
    Small s;
    CHECK(violation(s.batches, s.plan, {7, 0, 0}).empty());
    CHECK(violation(s.batches, s.plan, {6, 0, 0}).find("7 tokens above its limit of 6") != std::string::npos);
    s.micro_batch(0).pack_length = 4;
    CHECK(violation(s.batches, s.plan).find("above its limit of 4") != std::string::npos);
  }
  SUBCASE("GPUs") {
    Small s;
    s.plan.steps[0].lanes[0].context = 4;
    CHECK(violation(s.batches, s.plan, {0, 0, 4}).empty());
    CHECK(violation(s.batches, s.plan, {0, 0, 3}).find("use 4 GPUs of 3") != std::string::npos);
  }
  SUBCASE("placements") {
    Small s;
    s.plan.steps[1].lanes[0].context = 2;
    s.micro_batch(1).placement = {1, kDistributed};
    CHECK(violation(s.batches, s.plan, {0, 5, 0}).empty());  // rank 1 holds 3 + 4 / 2
    CHECK(violation(s.batches, s.plan, {0, 4, 0}).find("more than its 4 tokens") != std::string::npos);
    s.micro_batch(1).placement = {2, kDistributed};
    CHECK(violation(s.batches, s.plan).find("CP rank 2 of 2") != std::string::npos);
    s.micro_batch(1).placement = {1};
    CHECK(violation(s.batches, s.plan).find("for some slices only") != std::string::npos);
  }
  SUBCASE("carried lists") {
    Small s;
    s.plan.steps[0].carried.clear();
    CHECK(violation(s.batches, s.plan).find("waits 1 steps and is reported as carried in 0") !=
          std::string::npos);
    s.plan.steps[0].carried = {{1, 0, 3}, {1, 0, 3}};
    CHECK(violation(s.batches, s.plan).find("listed twice") != std::string::npos);
    s.plan.steps[0].carried = {{1, 0, 3}, {2, 0, 4}};
    CHECK(violation(s.batches, s.plan).find("has not arrived") != std::string::npos);
    s.plan.steps[0].carried = {{1, 0, 3}, {0, 0, 5}};
    CHECK(violation(s.batches, s.plan).find("was executed already") != std::string::npos);
    s.plan.steps[0].carried = {{1, 0, 2}};
    CHECK(violation(s.batches, s.plan).find("is not a slice of the set") != std::string::npos);
  }
  SUBCASE("chunk groups") {
    CHECK(violation(Chunked().batches, Chunked().plan).empty());
    Chunked swapped;
    std::swap(swapped.chunks()[1], swapped.chunks()[2]);
    CHECK(violation(swapped.batches, swapped.plan).find("not in its place") != std::string::npos);
    Chunked split;
    std::swap(split.chunks()[0], split.chunks()[1]);
    CHECK(violation(split.batches, split.plan).find("not in its place") != std::string::npos);
    Chunked cut;
    cut.plan.steps[0].lanes.resize(2);
    cut.plan.steps[0].lanes[1].micro_batches = {cut.chunks().back()};
    cut.chunks().pop_back();
    CHECK(violation(cut.batches, cut.plan).find("is not whole") != std::string::npos);
  }
}

TEST_CASE("a sink gets no step of a plan that the validator refuses") {
  Policy policy = packing_policy("plain");
  policy.plan = [](const PackingProblem& problem) {
    Plan plan;
    for (const GlobalBatch& batch : problem.batches) {
      Step step = empty_step(problem.options);
      step.lanes[0].micro_batches.emplace_back().slices.assign(batch.slices.begin() + 1, batch.slices.end());
      add_step(problem, std::move(step), plan);
    }
    return plan;
  };
  PackOptions options;
  options.verify = true;
  std::size_t taken = 0;
  const StepSink sink{1, [&taken](std::vector<Step>& steps) { taken += steps.size(); }};
  const std::vector<GlobalBatch> batches = document_batches({{3, 4}, {5, 6}, {7, 8}});
  const QuadraticWorkload workload;
  CHECK_THROWS_AS(make_plan(policy, {batches, options, workload, &sink}), std::logic_error);
  CHECK(taken == 0);
}

namespace {

PackOptions random_options(SplitMix64& random) {
  PackOptions options;
  options.context_window = 8 << below(random, 4);
  options.micro_batch_size = 1 + below(random, 2);
  options.sequences_per_step = options.micro_batch_size * (1 + below(random, 4));
  options.documents_per_step = below(random, 2) * (1 + below(random, 12));
  options.lanes = 1 << below(random, 3);
  options.context = 1 << below(random, 3);
  options.of<PackLengthOptions>().pack_length =
      below(random, 2) * (1 + below(random, options.context_window));
  options.order = static_cast<Order>(below(random, 3));
  options.oversize = static_cast<Oversize>(1 + below(random, 3));
  options.seed = random.next();
  options.shuffle = below(random, 4) > 0;
  options.of<FixedLengthOptions>().pack_window = 1 + below(random, 3);
  options.of<WlbOptions>().queues = static_cast<int>(below(random, 4));
  options.max_tokens = below(random, 2) * (options.context_window + below(random, options.context_window));
  options.of<ChunkflowOptions>().chunk_size = 1 + below(random, options.context_window);
  options.groups = {{options.context_window / 4, 1, 0}, {options.context_window, options.context, 1}};
  options.of<IsfOptions>().rounds = static_cast<int>(1 + below(random, 4));
  options.of<IsfOptions>().threshold = below(random, options.context_window);
  options.of<HbpOptions>().curriculum_steps = below(random, 3);
  options.bucket_size = options.context_window;
  options.of<KarmarkarKarpOptions>().equal_size = below(random, 2) == 0;
  options.of<SolverOptions>().time_limit_seconds = 0.05;
  options.of<EquipoiseOptions>().moves = below(random, 1000);
  options.verify = true;
  return options;
}

std::int64_t tokens_of(const std::vector<Slice>& slices) {
  std::int64_t sum = 0;
  for (const Slice& s : slices) sum += s.tokens();
  return sum;
}

}  // namespace

TEST_CASE("every policy makes legal plans that keep every token, in 10,000 random cases") {
  const QuadraticWorkload quadratic;
  std::map<std::string, int> made;
  std::map<std::string, int> refused;
  std::map<std::string, std::string> refusal;  // the last
  const auto policies = packing_policies();
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    const Policy& policy = policies[seed % policies.size()];
    const std::string name(policy.name);
    // The exact solvers take milliseconds each and have random cases of their own.
    const bool solver = name.find("-solver") != std::string::npos;
    if (solver && seed % 20 != 0) continue;
    CAPTURE(seed);
    CAPTURE(name);
    SplitMix64 random(seed);
    const PackOptions options = random_options(random);
    const std::vector<std::int64_t> lengths =
        random_lengths(random, 1 + below(random, solver ? 8 : 40), 2 * options.context_window);
    const LoadOptions load{0, below(random, 2) == 0 ? LoaderTail::carry : LoaderTail::drop, false};
    const DocumentSet set = load_documents(lengths, options, load);
    try {
      const Plan plan = make_plan(policy, {set.batches, options, quadratic});
      std::int64_t tokens = tokens_of(plan.dropped);
      for (const Step& step : plan.steps) {
        for (const Lane& lane : step.lanes) {
          for (const MicroBatch& micro_batch : lane.micro_batches) tokens += tokens_of(micro_batch.slices);
        }
      }
      REQUIRE(tokens == set.tokens);
      ++made[name];
    } catch (const UserError& e) {
      refusal[name] = e.what();
      ++refused[name];
    } catch (const std::logic_error& e) {
      FAIL(std::string(e.what()));
    }
  }
  for (const Policy& policy : policies) {
    const std::string name(policy.name);
    if (name.find("-solver") != std::string::npos) continue;  // refused where no solver is installed
    CAPTURE(name);
    CAPTURE(refused[name]);
    CAPTURE(refusal[name]);
    CHECK(made[name] > 9 * refused[name]);
  }
}

TEST_CASE("the same input gives the same plan") {
  const QuadraticWorkload quadratic;
  SplitMix64 random(99);
  PackOptions options = random_options(random);
  options.oversize = Oversize::split;
  const std::vector<std::int64_t> lengths = random_lengths(random, 60, options.context_window);
  const DocumentSet set = load_documents(lengths, options, {});
  for (const Policy& policy : packing_policies()) {
    if (policy.name.find("-solver") != std::string_view::npos) continue;  // a time limit is not repeatable
    CAPTURE(policy.name);
    const Plan a = make_plan(policy, {set.batches, options, quadratic});
    const Plan b = make_plan(policy, {set.batches, options, quadratic});
    REQUIRE(a.steps.size() == b.steps.size());
    for (std::size_t s = 0; s < a.steps.size(); ++s) CHECK(ids_of(a.steps[s]) == ids_of(b.steps[s]));
  }
}
