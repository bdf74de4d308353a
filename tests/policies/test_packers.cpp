// Packers of one pack length: hand-made cases, then the naive implementations as oracles.
#include <doctest/doctest.h>

#include "policies/packing/pack_length.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"
#include "tests/policies/naive_packers.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

using Expected = std::vector<naive::Pack>;

Expected listed(const Packs& packs) {
  Expected list;
  for (std::size_t p = 0; p < packs.size(); ++p) {
    const auto items = packs.of(p);
    list.emplace_back(items.begin(), items.end());
  }
  return list;
}

}  // namespace

TEST_CASE("next-fit closes a pack when a document does not fit") {
  // Capacity 10: 4 + 5, 6 + 4, 1 (7 more would be 8, fits) + 7.
  const std::vector<std::int64_t> lengths{4, 5, 6, 4, 1, 7};
  CHECK(listed(pack_next_fit(lengths, 10)) == Expected{{0, 1}, {2, 3}, {4, 5}});
}

TEST_CASE("first-fit decreasing") {
  // Sorted 7 6 4 4 3 3 2 1 (positions 3 0 1 5 2 7 4 6), capacity 10:
  // 7 | 6 | 4 joins 6 | 4 opens pack 2 | 3 joins 7 | 3 joins 4 | 2 joins 4 + 3 | 1 joins those.
  const std::vector<std::int64_t> lengths{6, 4, 3, 7, 2, 4, 1, 3};
  CHECK(listed(pack_ffd(lengths, 10)) == Expected{{3, 2}, {0, 1}, {5, 7, 4, 6}});
}

TEST_CASE("best-fit decreasing takes the fullest pack, first-fit the oldest") {
  // Capacity 10: 6 | 5 | 4 fits both 6 (room 4) and 5 (room 5). Then 2: packs are {6,4} full, {5}: room 5.
  // A case where they differ: 7, 5, 3: first-fit puts 3 with 7, best-fit too (room 3 < 5). 6, 7, 3:
  // sorted 7 6 3: room 3 and 4: both take pack 0. Unsorted order shows it: shuffle off, 5, 7, 3: first-fit
  // puts 3 with 5, best-fit with 7.
  const std::vector<std::int64_t> lengths{5, 7, 3};
  CHECK(listed(pack_ffs(lengths, 10, nullptr)) == Expected{{0, 2}, {1}});
  CHECK(listed(pack_bfs(lengths, 10, nullptr)) == Expected{{0}, {1, 2}});
  // Decreasing: 6 | 5 | 4 joins 6 | 3 joins 5 | 2 joins 5 + 3.
  const std::vector<std::int64_t> sorted{6, 5, 4, 3, 2};
  CHECK(listed(pack_bfd(sorted, 10)) == Expected{{0, 2}, {1, 3, 4}});
}

TEST_CASE("best fit breaks ties towards the oldest pack") {
  // 8 and 8 leave room 2 each; 2 goes to pack 0.
  const std::vector<std::int64_t> lengths{8, 8, 2};
  CHECK(listed(pack_bfs(lengths, 10, nullptr)) == Expected{{0, 2}, {1}});
}

TEST_CASE("spfhp spreads over the packs with the most room, and opens packs for all copies at once") {
  // Capacity 10. 6 | 5 5: pack 0 has room 4 only, so both copies open packs (though 5 + 5 would fit one).
  // 3: most room 5, pack 1, then pack 2. 2: rooms 4, 2, 2: pack 0.
  const std::vector<std::int64_t> lengths{5, 6, 3, 5, 3, 2};
  CHECK(listed(pack_spfhp(lengths, 10)) == Expected{{1, 5}, {0, 2}, {3, 4}});
}

TEST_CASE("isf keeps packs at the threshold, repools the others in order, and keeps all in the last round") {
  // No shuffle, capacity 10, threshold 9, two rounds. Round 1 next-fit: {4, 5} = 9 kept, {3} (8 does not
  // fit), {8, 1} = 9 kept, {6}. Pool: 3, 6 -> {3, 6} = 9.
  const std::vector<std::int64_t> lengths{4, 5, 3, 8, 1, 6};
  CHECK(listed(pack_isf(lengths, 10, 2, 9, nullptr)) == Expected{{0, 1}, {3, 4}, {2, 5}});
  // One round keeps everything.
  CHECK(listed(pack_isf(lengths, 10, 1, 9, nullptr)) == Expected{{0, 1}, {2}, {3, 4}, {5}});
}

TEST_CASE("multipack takes the longest prefix that LPT fits into a pack a lane") {
  // Capacity 10, two lanes: 6 4 5 5 -> LPT 6+4, 5+5. With the next 2 more: 22 tokens > 20. So batch 1 is the
  // first four: 6 | 5 | 5 (to 5) | 4 (to 6). Then 2, 9, 9: 9 | 9 | 2: 11 > 10; 2, 9 fits: 9 | 2. Then 9.
  const std::vector<std::int64_t> lengths{6, 4, 5, 5, 2, 9, 9};
  CHECK(listed(pack_multipack(lengths, 10, 2)) == Expected{{0, 1}, {2, 3}, {5}, {4}, {6}});
}

TEST_CASE("dp-balanced raises the number of packs to a multiple of the lanes") {
  // Capacity 10: {4 5} {6 3 1} {9}: 3 packs, 4 lanes: the last has one document, {6 3 1} gives its 1.
  const std::vector<std::int64_t> lengths{4, 5, 6, 3, 1, 9};
  CHECK(listed(pack_dp_balanced(lengths, 10, 4)) == Expected{{0, 1}, {2, 3}, {5}, {4}});
  // With 5 lanes {6 3 1} gives its 1, then its 3.
  CHECK(listed(pack_dp_balanced(lengths, 10, 5)) == Expected{{0, 1}, {2}, {5}, {4}, {3}});
  // Nothing to move: uneven.
  CHECK(listed(pack_dp_balanced(std::vector<std::int64_t>{9}, 10, 4)) == Expected{{0}});
}

TEST_CASE("random is a shuffle and next-fit, with the specified shuffle") {
  // The shuffle of three items from seed 0, with SplitMix64's published first outputs for seed 0:
  // 0xe220a8397b1dcdaf mod 3 = 1: swap 2 and 1 -> 0 2 1; 0x6e789e6aa1b965f4 mod 2 = 0: swap 1 and 0 -> 2 0 1.
  // (16294208416658607535 = 3 * 5431402805552869178 + 1.)
  const std::vector<std::int64_t> lengths{3, 4, 5};
  SplitMix64 random(0);
  CHECK(listed(pack_random(lengths, 8, &random)) == Expected{{2, 0}, {1}});
}

TEST_CASE("a shuffle swaps from the last index down, one draw each") {
  for (std::size_t size = 0; size < 60; ++size) {
    std::vector<std::size_t> items(size), expected(size);
    for (std::size_t i = 0; i < size; ++i) items[i] = expected[i] = i;
    SplitMix64 random(size), again(size);
    shuffle(items, random);
    for (std::size_t i = size; i-- > 1;) std::swap(expected[i], expected[again.next() % (i + 1)]);
    CHECK(items == expected);
    CHECK(random.next() == again.next());
  }
}

TEST_CASE("every packer makes exactly what its plain O(n^2) form makes") {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    const std::int64_t widest = seed % 3 == 0 ? 12 : seed % 3 == 1 ? 300 : 200000;
    const std::int64_t capacity = 1 + below(random, widest);
    const std::vector<std::int64_t> lengths = random_lengths(random, below(random, 90), capacity);
    const auto lanes = static_cast<std::size_t>(1 + below(random, 6));
    const std::int64_t threshold = below(random, capacity + 1);
    const int rounds = static_cast<int>(1 + below(random, 5));
    SplitMix64 ours(seed);
    SplitMix64 theirs(seed);
    SplitMix64* const a = seed % 7 == 0 ? nullptr : &ours;
    SplitMix64* const b = seed % 7 == 0 ? nullptr : &theirs;
    const auto shuffled = [&] { return naive::shuffled(lengths, b); };
    const std::vector<std::size_t> decreasing = naive::descending(lengths);
    REQUIRE(listed(pack_next_fit(lengths, capacity)) ==
            naive::next_fit(lengths, naive::data_order(lengths), capacity));
    REQUIRE(listed(pack_ffd(lengths, capacity)) == naive::first_fit(lengths, decreasing, capacity));
    REQUIRE(listed(pack_bfd(lengths, capacity)) == naive::best_fit(lengths, decreasing, capacity));
    REQUIRE(listed(pack_spfhp(lengths, capacity)) == naive::spfhp(lengths, capacity));
    REQUIRE(listed(pack_multipack(lengths, capacity, lanes)) == naive::multipack(lengths, capacity, lanes));
    REQUIRE(listed(pack_dp_balanced(lengths, capacity, lanes)) ==
            naive::dp_balanced(lengths, capacity, lanes));
    REQUIRE(listed(pack_random(lengths, capacity, a)) == naive::next_fit(lengths, shuffled(), capacity));
    REQUIRE(listed(pack_ffs(lengths, capacity, a)) == naive::first_fit(lengths, shuffled(), capacity));
    REQUIRE(listed(pack_bfs(lengths, capacity, a)) == naive::best_fit(lengths, shuffled(), capacity));
    REQUIRE(listed(pack_isf(lengths, capacity, rounds, threshold, a)) ==
            naive::isf(lengths, capacity, rounds, threshold, b));
  }
}

TEST_CASE("longalign-packing: iterations take packs in creation order, dealt to the lanes in turn") {
  // Pack length 4, 8 tokens an iteration: 2 packs a step, over 2 lanes. Five documents of 4: steps 2, 2, 1.
  PackOptions options;
  options.of<PackLengthOptions>().pack_length = 4;
  options.global_tokens = 8;
  options.lanes = 2;
  const Plan plan = plan_of("longalign-packing", document_batches({{4, 4, 4}, {4, 4}}), options);
  REQUIRE(plan.steps.size() == 3);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0}, {1}});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{2}, {3}});
  CHECK(ids_of(plan.steps[2]) == std::vector<Ids>{{4}});
  CHECK_FALSE(plan.steps[1].tail);
  CHECK(plan.steps[2].tail);  // a short iteration
  CHECK(plan.sees_whole_set);
  CHECK(plan.steps[0].lanes[0].micro_batches[0].pack_length == 4);
}

TEST_CASE("finished packs are mixed once before iterations are cut, from the packer's own stream") {
  // Five documents of 4 make five packs of one, 0 .. 4 in creation order; one pack a step. Fisher-Yates from
  // SplitMix64 seeded 0, whose first outputs modulo 5, 4, 3 and 2 are
  //   16294208416658607535 mod 5 = 0: 4 1 2 3 0,   7960286522194355700 mod 4 = 0: 3 1 2 4 0,
  //   487617019471545679 mod 3 = 1: 3 2 1 4 0,     17909611376780542444 mod 2 = 0: 2 3 1 4 0.
  PackOptions options;
  options.of<PackLengthOptions>().pack_length = 4;
  options.global_tokens = 4;
  options.verify = true;
  const auto order = [](const Plan& plan) {
    Ids ids;
    for (const Step& step : plan.steps)
      for (const Ids& pack : ids_of(step)) ids.insert(ids.end(), pack.begin(), pack.end());
    return ids;
  };
  const std::vector<GlobalBatch> batches = document_batches({{4, 4, 4, 4, 4}});
  for (const char* name : {"ffd", "bfd", "spfhp"}) {
    CAPTURE(name);
    CHECK(order(plan_of(name, batches, options)) == Ids{2, 3, 1, 4, 0});
    PackOptions created = options;
    created.of<PackLengthOptions>().pack_order = PackOrder::created;
    CHECK(order(plan_of(name, batches, created)) == Ids{0, 1, 2, 3, 4});
    PackOptions unshuffled = options;
    unshuffled.shuffle = false;
    CHECK(order(plan_of(name, batches, unshuffled)) == Ids{0, 1, 2, 3, 4});
  }
  // The shuffling packers go on with the stream that ordered their documents; isf has shuffled every round.
  // random, longalign-packing, multipack and dp-balanced stay as they are made.
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    SplitMix64 draws(seed);
    const std::vector<std::int64_t> lengths = random_lengths(draws, 40, 100);
    options.of<PackLengthOptions>().pack_length = options.global_tokens = 100;
    options.seed = seed;
    options.of<IsfOptions>().threshold = 95;
    for (const char* name : {"ffs", "bfs", "isf", "random"}) {
      CAPTURE(name);
      SplitMix64 random(seed);
      Packs packs;
      if (*name == 'f') packs = pack_ffs(lengths, 100, &random);
      if (*name == 'b') packs = pack_bfs(lengths, 100, &random);
      if (*name == 'i')
        packs = pack_isf(lengths, 100, options.of<IsfOptions>().rounds, options.of<IsfOptions>().threshold,
                         &random);
      if (*name == 'r') packs = pack_random(lengths, 100, &random);
      std::vector<naive::Pack> expected = listed(packs);
      for (std::size_t i = expected.size(); *name != 'r' && i-- > 1;)
        std::swap(expected[i], expected[static_cast<std::size_t>(random.next() % (i + 1))]);
      Ids ids;
      for (const naive::Pack& pack : expected) ids.insert(ids.end(), pack.begin(), pack.end());
      REQUIRE(order(plan_of(name, document_batches({lengths}), options)) == ids);
    }
  }
}

TEST_CASE("with whole documents an iteration takes the packs that hold the mean global batch") {
  // 8 documents of 3 tokens, 4 a step: 12 tokens. Packs of 6 hold two: 2 packs a step, not the window's 8.
  PackOptions options;
  options.context_window = 6;
  options.sequences_per_step = 8;
  options.documents_per_step = 4;
  const std::vector<GlobalBatch> batches = document_batches({{3, 3, 3, 3}, {3, 3, 3, 3}});
  CHECK(mean_global_tokens(batches, options) == 12);
  for (const char* name : {"ffd", "ffs", "bfd", "bfs", "spfhp", "isf", "random", "longalign-packing",
                           "multipack", "dp-balanced", "hbp"}) {
    CAPTURE(name);
    const Plan plan = plan_of(name, batches, options);
    REQUIRE(plan.steps.size() == 2);
    for (const Step& step : plan.steps) CHECK(step_metrics(step).tokens == 12);
  }
  // Packs of 5 hold one document: 4 a step, where 12 / 5 would be 2.
  options.of<PackLengthOptions>().pack_length = 5;
  CHECK(plan_of("ffd", batches, options).steps.size() == 2);
  CHECK(plan_of("ffd", batches, options).notes.empty());
  // One pack of 24 holds two batches: told.
  options.of<PackLengthOptions>().pack_length = 24;
  const Plan large = plan_of("ffd", batches, options);
  CHECK(large.notes ==
        Notes{{"more_per_iteration", "", {{"packs", 1}, {"percent", 100.0}, {"documents", 4}}}});
}

TEST_CASE("packs of an iteration are a multiple of the lanes where that is as near") {
  PackOptions options;
  options.documents_per_step = 1;
  options.global_tokens = 651;
  CHECK(packs_of_iteration(options, 10, 32, 10) == 64);  // 65.1 wanted, 1.7 % more
  options.global_tokens = 700;
  CHECK(packs_of_iteration(options, 10, 32, 10) == 70);
  options.global_tokens = 93;
  CHECK(packs_of_iteration(options, 10, 32, 10) == 9);  // no multiple is near
  options.global_tokens = 35;
  CHECK(packs_of_iteration(options, 10, 4, 10) == 4);  // the nearest, although not within 2 %
  options.lane_round = 4;                              // an interleaved schedule takes no other
  CHECK(packs_of_iteration(options, 10, 4, 10) == 16);
  options.documents_per_step = 0;
  CHECK(packs_of_iteration(options, 10, 4, 10) == 3);
}

TEST_CASE("mixing changes neither the packs nor how many iterations there are") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    SplitMix64 draws(seed);
    PackOptions options;
    options.of<PackLengthOptions>().pack_length = 64;
    options.global_tokens = 64 * (1 + below(draws, 4));
    options.lanes = static_cast<int>(1 + below(draws, 3));
    options.seed = seed;
    options.verify = true;
    const std::vector<GlobalBatch> batches = document_batches({random_lengths(draws, 60, 64)});
    PackOptions created = options;
    created.of<PackLengthOptions>().pack_order = PackOrder::created;
    for (const char* name : {"ffd", "ffs", "bfd", "bfs", "spfhp", "isf"}) {
      CAPTURE(name);
      std::vector<Ids> mixed;
      std::vector<Ids> made;
      const Plan a = plan_of(name, batches, options);
      const Plan b = plan_of(name, batches, created);
      REQUIRE(a.steps.size() == b.steps.size());
      for (const Step& step : a.steps)
        for (Ids& ids : ids_of(step)) mixed.push_back(std::move(ids));
      for (const Step& step : b.steps)
        for (Ids& ids : ids_of(step)) made.push_back(std::move(ids));
      std::sort(mixed.begin(), mixed.end());
      std::sort(made.begin(), made.end());
      REQUIRE(mixed == made);
    }
  }
}

TEST_CASE(
    "Batches of documents have as many micro-batches on each lane as windows hold a mean batch and room is "
    "left") {
  PackOptions options;
  options.context_window = 100;
  options.lanes = 2;
  options.sequences_per_step = 2;
  CHECK(micro_batches_of_step(options) == 2);
  options.documents_per_step = 8;
  CHECK(micro_batches_of_step(options) == 2);  // nothing is known of the batches
  options.global_tokens = 390;                 // 195 a lane: two windows
  CHECK(micro_batches_of_step(options) == 4);
  options.global_tokens = 400;  // 200 a lane would fill two to the brim
  CHECK(micro_batches_of_step(options) == 6);
  options.micro_batch_size = 2;
  CHECK(micro_batches_of_step(options) == 4);
  options.micro_batch_size = 1;
  options.sequences_per_step = 11;
  CHECK(micro_batches_of_step(options) == 12);
  options.context_window = std::int64_t{1} << 31;
  options.micro_batch_size = 1 << 20;
  options.lanes = 1 << 13;
  CHECK(micro_batches_of_step(options) == options.lanes);
  options.micro_batches = 3;
  CHECK(micro_batches_of_step(options) == 3);
}
