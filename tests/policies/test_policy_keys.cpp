// A policy's row says which keys it uses. Changing any other key must not change a plan; changing one of its
// own must, in some case.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/cp_degree/cp_grid.h"
#include "policies/make_plan.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/hbp.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/packing/skrull.h"
#include "policies/packing/wlb.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "policies/solver/mixed_program.h"
#include "policies/solver/solvers.h"
#include "policies/steps.h"
#include "policies/validator.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

struct Case {
  PackOptions options;
  bool flops = false;  // the cost, else quadratic
};

struct Change {
  std::string_view key;
  std::function<void(Case&)> apply;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"context_window", [](Case& c) { c.options.context_window = 96; }},
      {"sequences_per_step", [](Case& c) { c.options.sequences_per_step = 16; }},
      {"pack_length", [](Case& c) { c.options.of<PackLengthOptions>().pack_length = 80; }},
      {"micro_batches", [](Case& c) { c.options.micro_batches = 3; }},
      {"oversize", [](Case& c) { c.options.oversize = Oversize::drop; }},
      {"seed", [](Case& c) { c.options.seed = 12345; }},
      {"shuffle", [](Case& c) { c.options.shuffle = false; }},
      {"pack_order", [](Case& c) { c.options.of<PackLengthOptions>().pack_order = PackOrder::created; }},
      {"pack_window", [](Case& c) { c.options.of<FixedLengthOptions>().pack_window = 2; }},
      {"queues", [](Case& c) { c.options.of<WlbOptions>().queues = 2; }},
      {"thresholds", [](Case& c) { c.options.of<WlbOptions>().thresholds = {20}; }},
      {"max_tokens", [](Case& c) { c.options.max_tokens = 70; }},
      {"chunk_size", [](Case& c) { c.options.of<ChunkflowOptions>().chunk_size = 11; }},
      {"slices", [](Case& c) { c.options.of<SequenceSlicesOptions>().slices = 6; }},
      {"slice_by", [](Case& c) { c.options.of<SequenceSlicesOptions>().slice_by = SliceBy::tokens; }},
      {"groups",
       [](Case& c) {
         c.options.groups = {{16, 1, kStudyRecompute}, {64, 2, kStudyRecompute}};
       }},
      {"candidates",
       [](Case& c) {
         c.options.candidates = {{32, 1, 0, 0, 1.0}, {64, 2, 0, 0, 2.0}};
       }},
      {"rounds", [](Case& c) { c.options.of<IsfOptions>().rounds = 1; }},
      {"threshold", [](Case& c) { c.options.of<IsfOptions>().threshold = 30; }},
      {"curriculum_steps", [](Case& c) { c.options.of<HbpOptions>().curriculum_steps = 2; }},
      {"balance_batching", [](Case& c) { c.options.of<HbpOptions>().balance_batching = false; }},
      {"bucket_size", [](Case& c) { c.options.bucket_size = 50; }},
      {"rollback", [](Case& c) { c.options.rollback = false; }},
      {"placement_order",
       [](Case& c) { c.options.of<RoundRobinOptions>().placement_order = PlacementOrder::arrival; }},
      {"tokens_per_rank", [](Case& c) { c.options.of<CpGridOptions>().tokens_per_rank = 24; }},
      {"degrees", [](Case& c) { c.options.of<CpGridOptions>().degrees = Degrees::any; }},
      {"min_degree", [](Case& c) { c.options.of<CpGridOptions>().min_degree = 3; }},
      {"align", [](Case& c) { c.options.of<CpGridOptions>().align = 2; }},
      {"exact", [](Case& c) { c.options.of<FlexspOptions>().exact = true; }},
      {"padding", [](Case& c) { c.options.of<PaddedOptions>().padding = false; }},
      {"tokens_per_micro_batch", [](Case& c) { c.options.of<TokenBudget>().tokens_per_micro_batch = 70; }},
      {"linear_cost", [](Case& c) { c.options.of<TokenBudget>().linear_cost = 2; }},
      {"quadratic_cost", [](Case& c) { c.options.of<TokenBudget>().quadratic_cost = 0.05; }},
      {"start", [](Case& c) { c.options.of<EquipoiseOptions>().start = Start::wlb; }},
      {"moves", [](Case& c) { c.options.of<EquipoiseOptions>().moves = 0; }},
      {"max_delay", [](Case& c) { c.options.of<EquipoiseOptions>().max_delay = 0; }},
      {"look_ahead", [](Case& c) { c.options.of<EquipoiseOptions>().look_ahead = 1; }},
      {"place", [](Case& c) { c.options.of<EquipoiseOptions>().place = false; }},
      {"taper", [](Case& c) { c.options.of<EquipoiseOptions>().taper = false; }},
      {"equal_size", [](Case& c) { c.options.of<KarmarkarKarpOptions>().equal_size = true; }},
      {"cost", [](Case& c) { c.flops = true; }},
  };
  return all;
}

// Options from which some change of every key shows: with and without groups and buckets, and, for equipoise,
// with as many micro-batches as the batch has windows.
std::vector<Case> bases() {
  Case plain;
  PackOptions& o = plain.options;
  o.context_window = 64;
  o.sequences_per_step = 4;
  o.lanes = 2;
  o.context = 2;
  o.documents_per_step = 12;
  o.oversize = Oversize::split;
  o.of<ChunkflowOptions>().chunk_size = 20;
  o.of<IsfOptions>().threshold = 60;
  o.of<SolverOptions>().node_limit = 1;
  o.of<EquipoiseOptions>().moves = 200;
  Case buckets = plain;
  buckets.options.bucket_size = 40;
  Case groups = buckets;
  groups.options.groups = {{16, 1, kStudyRecompute}, {32, 1, kStudyRecompute}, {64, 4, kStudyRecompute}};
  Case ranks = plain;
  ranks.options.of<CpGridOptions>().tokens_per_rank = 20;  // three hold a document of 41 to 60
  Case budget = plain;
  budget.options.of<TokenBudget>().tokens_per_micro_batch = 60;
  Case windows = plain;
  windows.options.documents_per_step = 0;
  return {plain, buckets, groups, ranks, budget, windows};
}

std::string fingerprint(const Policy& policy, const std::vector<GlobalBatch>& batches, const Case& c,
                        const StepSink* sink = nullptr, const std::vector<Step>& taken = {}) {
  const QuadraticWorkload quadratic;
  const FlopsWorkload flops(64, 64);
  const Workload& workload = c.flops ? static_cast<const Workload&>(flops) : quadratic;
  std::string text;
  const auto add = [&text](std::int64_t number) { text.append(std::to_string(number)).append(" "); };
  Plan plan;
  try {
    plan = make_plan(policy, {batches, c.options, workload, sink});
  } catch (const UserError&) {
    return "refused";
  }
  if (sink != nullptr) {
    CHECK(plan.steps.empty());
    plan.steps = taken;
  }
  for (const Step& step : plan.steps) {
    text += step.tail ? "\ntail " : "\n";
    for (const Lane& lane : step.lanes) {
      text += "| ";
      add(lane.context);
      add(lane.barrier_group);
      for (const MicroBatch& m : lane.micro_batches) {
        text += "( ";
        for (const Slice& s : m.slices)
          for (const std::int64_t n : {s.document, s.begin, s.end}) add(n);
        for (const int rank : m.placement) add(rank);
        for (const std::int64_t n : {std::int64_t{m.chunk.count}, m.pad_each_to, m.pack_length}) add(n);
      }
    }
  }
  text += "\n";
  for (const Slice& s : plan.dropped) add(s.document);
  return text;
}

// Without a pipeline, with exchanges for nothing and few documents these change no plan: test_equipoise.cpp
// has cases in which they do.
bool shows_elsewhere(std::string_view key) {
  return key == "place" || key == "max_delay" || key == "look_ahead" || key == "moves" || key == "taper";
}

bool solves(const Policy& policy) {
  return uses_key(policy, "solver");
}

}  // namespace

TEST_CASE("A sink gets the steps of the plan, while the policy packs if it streams and nobody verifies") {
  SplitMix64 random(3);
  std::vector<std::vector<std::int64_t>> lengths(7);
  for (std::vector<std::int64_t>& batch : lengths) batch = random_lengths(random, 12, 40);
  const std::vector<GlobalBatch> batches = document_batches(lengths);
  std::set<std::string_view> seen;
  for (const Policy& policy : packing_policies()) {
    if (solves(policy) && !solver_available()) continue;
    std::vector<Case> cases = solves(policy) ? std::vector{bases().front()} : bases();
    cases.push_back(cases.front());
    cases.back().options.verify = true;
    for (const Case& base : cases)
      for (const std::size_t block : {1, 3, 100}) {
        CAPTURE(policy.name);
        CAPTURE(block);
        CAPTURE(base.options.verify);
        const bool streams = policy.streams && !is_verified(base.options);
        std::vector<Step> taken;
        std::size_t most = 0;
        const StepSink sink{block, [&](std::vector<Step>& steps) {
                              most = std::max(most, steps.size());
                              taken.insert(taken.end(), steps.begin(), steps.end());
                            }};
        const std::string whole = fingerprint(policy, batches, base);
        if (whole == "refused") continue;
        CHECK(fingerprint(policy, batches, base, &sink, taken) == whole);
        CHECK(most == (streams ? std::min(block, taken.size()) : taken.size()));
        if (streams && taken.size() > block) seen.insert(policy.name);
      }
  }
  for (const Policy& policy : packing_policies()) {
    CAPTURE(policy.name);
    if (policy.streams && !is_verified(PackOptions())) CHECK(seen.contains(policy.name));
  }
}

TEST_CASE("a key that a policy's row does not name changes no plan, and each that it names changes some" *
          doctest::test_suite("figures")) {
  std::set<std::pair<std::string_view, std::string_view>> seen;  // policy, key
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    std::vector<std::vector<std::int64_t>> lengths(4);
    for (std::vector<std::int64_t>& batch : lengths) batch = random_lengths(random, 12, 50);
    lengths[1][3] = 150;  // above every limit here
    const std::vector<GlobalBatch> batches = document_batches(lengths);
    for (const Policy& policy : packing_policies()) {
      if (solves(policy) && (seed > 0 || !solver_available())) continue;  // seconds a seed
      if (policy.packs_for_time && seed > 1) continue;                    // some twenty plans each
      for (const Case& base : solves(policy) ? std::vector{bases().front()} : bases()) {
        if (base.options.documents_per_step == 0 && !policy.packs_for_time) continue;
        const std::string before = fingerprint(policy, batches, base);
        for (const Change& change : changes()) {
          CAPTURE(seed);
          CAPTURE(policy.name);
          CAPTURE(change.key);
          Case changed = base;
          change.apply(changed);
          const bool differs = fingerprint(policy, batches, changed) != before;
          if (differs) seen.insert({policy.name, change.key});
          REQUIRE((!differs || uses_key(policy, change.key)));
        }
      }
    }
  }
  for (const Policy& policy : packing_policies()) {
    if (solves(policy)) continue;
    for (const Change& change : changes()) {
      if (shows_elsewhere(change.key)) continue;
      CAPTURE(policy.name);
      CAPTURE(change.key);
      CHECK(seen.contains({policy.name, change.key}) == uses_key(policy, change.key));
    }
  }
}

TEST_CASE("keys of no row concern every policy, keys of sharding rules only their rules") {
  const Policy& plain = packing_policy("plain");
  CHECK(uses_key(plain, "order"));
  CHECK_FALSE(is_policy_key("order"));
  CHECK_FALSE(uses_key(plain, "chunk_size"));
  CHECK_FALSE(uses_key(plain, "block"));
  CHECK(is_shard_key("block"));
  CHECK_FALSE(is_shard_key("bucket_size"));  // of skrull, too
  CHECK(uses_key(sharding_policy("dacp"), "bucket_size"));
  CHECK(uses_key(sharding_policy("snake"), "block"));
  CHECK_FALSE(uses_key(sharding_policy("adaptive"), "pad"));
}
