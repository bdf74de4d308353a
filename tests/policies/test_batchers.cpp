// padded, sorted, lpt, karmarkar-karp, chunkflow, sequence-slices.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "policies/packing/chunkflow.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

PackOptions shape(std::int64_t micro_batches, int lanes) {
  PackOptions options;
  options.sequences_per_step = micro_batches;
  options.lanes = lanes;
  return options;
}

}  // namespace

TEST_CASE("padded without padding puts the same documents together as they are") {
  PackOptions options = shape(4, 2);
  options.micro_batch_size = 2;
  const auto batches = document_batches({{3, 9, 5, 2, 4}});
  const Plan padded = plan_of("padded", batches, options);
  options.of<PaddedOptions>().padding = false;
  const Plan plan = plan_of("padded", batches, options);
  for (std::size_t l = 0; l < 2; ++l) {
    REQUIRE(plan.steps[0].lanes[l].micro_batches.size() == padded.steps[0].lanes[l].micro_batches.size());
    for (std::size_t m = 0; m < plan.steps[0].lanes[l].micro_batches.size(); ++m) {
      CHECK(plan.steps[0].lanes[l].micro_batches[m].slices ==
            padded.steps[0].lanes[l].micro_batches[m].slices);
      CHECK(plan.steps[0].lanes[l].micro_batches[m].pad_each_to == 0);
    }
  }
  CHECK_FALSE(plan_metrics(batches, plan).pr.has_value());
}

TEST_CASE("padded makes one sequence of each document and pads micro-batches to their longest") {
  PackOptions options = shape(4, 2);
  options.micro_batch_size = 2;
  const Plan plan = plan_of("padded", document_batches({{3, 9, 5, 2, 4}}), options);
  // Lane 0 gets 0, 2, 4; lane 1 gets 1, 3; two sequences a micro-batch.
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0, 2}, {4}, {1, 3}});
  CHECK(plan.steps[0].lanes[0].micro_batches[0].pad_each_to == 5);
  CHECK(plan.steps[0].lanes[1].micro_batches[0].pad_each_to == 9);
}

TEST_CASE("sorted cuts the sorted set into batches and shuffles these") {
  PackOptions options = shape(2, 1);
  options.documents_per_step = 2;
  options.shuffle = false;
  const std::vector<GlobalBatch> batches = document_batches({{5, 1}, {4, 1}, {2}});
  // Sorted, stable: 1 (1), 1 (3), 2 (4), 4 (2), 5 (0).
  Plan plan = plan_of("sorted", batches, options);
  REQUIRE(plan.steps.size() == 3);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{1}, {3}});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{4}, {2}});
  CHECK(ids_of(plan.steps[2]) == std::vector<Ids>{{0}});
  CHECK(plan.steps[2].tail);
  // Shuffled from seed 0, three batches become 2 0 1 (derived in test_packers.cpp).
  options.shuffle = true;
  plan = plan_of("sorted", batches, options);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0}});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{1}, {3}});
}

TEST_CASE("lpt puts the largest cost first on the least loaded micro-batch") {
  // W = len^2: 36 -> 0, 25 -> 1, 16 -> 1 (41), 16 -> 0 (52), 9 -> 1 (50).
  const Plan plan = plan_of("lpt", document_batches({{4, 6, 5, 4, 3}}), shape(2, 1));
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{1, 3}, {2, 0, 4}});
}

TEST_CASE("a token budget makes the fewest micro-batches that stay within it, in multiples of the lanes") {
  PackOptions options;
  options.of<TokenBudget>().tokens_per_micro_batch = 10;
  // 23 tokens ask for three bins. Longest first by len^2: 9 | 6 | 5, then 2 and 1 to the 5: 9, 6, 8.
  CHECK(ids_of(plan_of("lpt", document_batches({{6, 9, 5, 2, 1}}), options).steps[0]) ==
        std::vector<Ids>{{1}, {0}, {2, 3, 4}});
  // 21 tokens ask for three, but 7 and 7 on one would be 14: by tokens LPT puts 4 and 3 together, 7 each.
  CHECK(ids_of(plan_of("karmarkar-karp", document_batches({{7, 7, 4, 3}}), options).steps[0]).size() == 3);
  // A document above the budget is alone; the others need two bins, so three; on two lanes four.
  options.lanes = 2;
  const Plan long_one = plan_of("lpt", document_batches({{30, 6, 5}}), options);
  std::size_t micro_batches = 0;
  for (const Lane& lane : long_one.steps[0].lanes) micro_batches += lane.micro_batches.size();
  CHECK(micro_batches == 4);
  options.lanes = 1;
  // Arrival order: 6 | 9 | 5 2 1; a cost of L + L^2 / 10 instead of tokens: 9.6, 17.1, 7.5 + 2.4, 1.1.
  CHECK(ids_of(plan_of("plain", document_batches({{6, 9, 5, 2, 1}}), options).steps[0]) ==
        std::vector<Ids>{{0}, {1}, {2, 3, 4}});
  options.of<TokenBudget>().linear_cost = 1;
  options.of<TokenBudget>().quadratic_cost = 0.1;
  CHECK(ids_of(plan_of("plain", document_batches({{6, 9, 5, 2, 1}}), options).steps[0]) ==
        std::vector<Ids>{{0}, {1}, {2, 3}, {4}});
  // Padded: what is padded counts. 2 x 4 fit, 3 x 4 do not; without padding 4 + 1 + 3 do.
  CHECK(ids_of(plan_of("padded", document_batches({{4, 1, 3, 9}}), options).steps[0]) ==
        std::vector<Ids>{{0, 1}, {2}, {3}});
  options.of<PaddedOptions>().padding = false;
  CHECK(ids_of(plan_of("padded", document_batches({{4, 1, 3, 9}}), options).steps[0]) ==
        std::vector<Ids>{{0, 1, 2}, {3}});
  // Three documents on two lanes: 9 | 8 and 7. Both lanes get two micro-batches, of which one is empty.
  options.lanes = 2;
  for (const char* name : {"padded", "sorted"}) {
    const Step step = plan_of(name, document_batches({{7, 8, 9}}), options).steps[0];
    CHECK(step.lanes[0].micro_batches.size() == 2);
    CHECK(step.lanes[1].micro_batches.size() == 2);
  }
}

TEST_CASE("no micro-batch of several documents is over its budget, and one fewer a lane would not do") {
  SplitMix64 random(7);
  for (int i = 0; i < 500; ++i) {
    CAPTURE(i);
    PackOptions options;
    options.lanes = 1 + static_cast<int>(random.next() % 3);
    options.verify = true;
    const auto budget = static_cast<std::int64_t>(20 + random.next() % 80);
    options.of<TokenBudget>().tokens_per_micro_batch = budget;
    const std::vector<std::vector<std::int64_t>> lengths = {random_lengths(random, 20, 60)};
    for (const char* name : {"lpt", "karmarkar-karp", "plain", "padded", "sorted"}) {
      CAPTURE(name);
      const Plan plan = plan_of(name, document_batches(lengths), options);
      std::int64_t count = 0;
      for (const Lane& lane : plan.steps[0].lanes)
        for (const MicroBatch& m : lane.micro_batches) {
          ++count;
          if (m.slices.size() > 1) CHECK(m.tokens() <= budget);
        }
      CHECK(count % options.lanes == 0);
    }
  }
}

TEST_CASE("Karmarkar-Karp differences the two states of largest spread") {
  // Weights 8 7 6 5 4, two parts: 8-7 -> 1 {8|7}; 6-5 -> 1 {6|5}; 4 with spread 4 joins the first of spread 1
  // ({8|7}, the older): 7+4 = 11 | 8, spread 3; then {6|5}: 11+5 = 16 | 8+6 = 14. (The best is 15 | 15.)
  const std::vector<double> weights{8, 7, 6, 5, 4};
  CHECK(karmarkar_karp(weights, 2, false) == std::vector<std::vector<std::uint32_t>>{{1, 3, 4}, {0, 2}});
}

TEST_CASE("Karmarkar-Karp with equal sizes keeps the parts equal in number") {
  // 8 7 | 6 5 | 4 3 | 2 1 with spread 1 each: (8|7)+(6|5): 8+5 | 7+6 = 13 | 13, spread 0; (4|3)+(2|1): 5 | 5;
  // 18 | 18: parts {8 5 4 1}, {7 6 3 2}.
  const std::vector<double> weights{8, 7, 6, 5, 4, 3, 2, 1};
  CHECK(karmarkar_karp(weights, 2, true) ==
        std::vector<std::vector<std::uint32_t>>{{0, 3, 5, 6}, {1, 2, 4, 7}});
  SplitMix64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto k = static_cast<std::size_t>(1 + below(random, 7));
    std::vector<double> any;
    for (const std::int64_t x : random_lengths(random, below(random, 40), 50))
      any.push_back(static_cast<double>(x));
    std::size_t least = any.size();
    std::size_t most = 0;
    for (const auto& part : karmarkar_karp(any, k, true)) {
      least = std::min(least, part.size());
      most = std::max(most, part.size());
    }
    CHECK(most - least <= 1);
  }
}

TEST_CASE("chunkflow cuts long documents and packs the others into chunks") {
  // ChunkSize 4: document 1 (10) -> [0,4) [4,8) [8,10); document 3 (4) is not cut. Short: 1 4 2 1 (ids 0 3 4
  // 2 by length 4 2 1 1): sum 8, n = 2: 4 | 2 | 1 | 1 -> {3}, {4, 0, 2} -> 4 and 4 tokens. Ordered by lowest
  // document: {0, 2, 4}, {3}; then the group.
  PackOptions options = shape(4, 1);
  options.of<ChunkflowOptions>().chunk_size = 4;
  const Plan plan = plan_of("chunkflow", document_batches({{1, 10, 1, 4, 2}}), options);
  const Step& step = plan.steps[0];
  CHECK(ids_of(step) == std::vector<Ids>{{0, 2, 4}, {3}, {1}, {1}, {1}});
  const std::vector<MicroBatch>& chunks = step.lanes[0].micro_batches;
  CHECK(chunks[0].chunk.count == 1);
  CHECK(chunks[2].slices[0] == Slice{1, 0, 4});
  CHECK(chunks[3].slices[0] == Slice{1, 4, 8});
  CHECK(chunks[4].slices[0] == Slice{1, 8, 10});
  CHECK(chunks[4].chunk == Chunk{1, 2, 3, 0});
}

TEST_CASE("chunkflow raises the number of chunks until LPT fits") {
  // ChunkSize 6: 4 4 4: sum 12, n = 2 puts 8 into one chunk; n = 3 fits.
  PackOptions options = shape(4, 1);
  options.of<ChunkflowOptions>().chunk_size = 6;
  CHECK(ids_of(plan_of("chunkflow", document_batches({{4, 4, 4}}), options).steps[0]) ==
        std::vector<Ids>{{0}, {1}, {2}});
}

namespace {

// The rule as it reads: every number of bins in turn, a plain search for the least loaded.
std::vector<Ids> chunks_one_by_one(const std::vector<std::int64_t>& lengths, std::int64_t chunk_size) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  std::vector<std::size_t> order(lengths.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return lengths[a] > lengths[b]; });
  for (auto n = static_cast<std::size_t>((sum + chunk_size - 1) / chunk_size);; ++n) {
    std::vector<std::int64_t> load(n, 0);
    std::vector<Ids> bins(n);
    for (const std::size_t i : order) {
      const auto bin = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      load[bin] += lengths[i];
      bins[bin].push_back(static_cast<std::int64_t>(i));
    }
    if (*std::max_element(load.begin(), load.end()) > chunk_size) continue;
    for (Ids& bin : bins) std::sort(bin.begin(), bin.end());
    std::sort(bins.begin(), bins.end());
    return bins;
  }
}

}  // namespace

TEST_CASE("chunkflow takes the first number of chunks that fits, though it does not try them all") {
  SplitMix64 random(29);
  int above_the_bound = 0;
  for (int i = 0; i < 2000; ++i) {
    PackOptions options;
    options.of<ChunkflowOptions>().chunk_size = 10 + static_cast<std::int64_t>(random.next() % 90);
    const auto longest =
        1 + random.next() % static_cast<std::uint64_t>(options.of<ChunkflowOptions>().chunk_size);
    std::vector<std::int64_t> lengths;
    std::int64_t sum = 0;
    for (std::uint64_t k = 1 + random.next() % 120; k > 0; --k) {
      lengths.push_back(1 + static_cast<std::int64_t>(random.next() % longest));
      sum += lengths.back();
    }
    const std::vector<Ids> expected = chunks_one_by_one(lengths, options.of<ChunkflowOptions>().chunk_size);
    CHECK(ids_of(plan_of("chunkflow", document_batches({lengths}), options).steps.at(0)) == expected);
    // The same in units of 2^16 tokens, where chunks are too long to count loads.
    constexpr std::int64_t kUnit = 1 << 16;
    PackOptions long_chunks = options;
    long_chunks.of<ChunkflowOptions>().chunk_size *= kUnit;
    std::vector<std::int64_t> scaled = lengths;
    for (std::int64_t& length : scaled) length *= kUnit;
    CHECK(ids_of(plan_of("chunkflow", document_batches({scaled}), long_chunks).steps.at(0)) == expected);
    const auto bound = static_cast<std::size_t>((sum + options.of<ChunkflowOptions>().chunk_size - 1) /
                                                options.of<ChunkflowOptions>().chunk_size);
    above_the_bound += expected.size() > bound + 1 ? 1 : 0;
  }
  CHECK(above_the_bound > 100);  // the search goes beyond its first two trials
}

TEST_CASE("chunkflow gives whole groups to lanes, largest first, and keeps the order inside a lane") {
  // ChunkSize 4, lanes 2: units {2} of 4 tokens (document 0 is 9 tokens, document 1 is 8): group 0 (9) ->
  // lane 0, group 1 (8) -> lane 1, standalone (4) -> lane 1, where it stands first.
  PackOptions options = shape(4, 2);
  options.of<ChunkflowOptions>().chunk_size = 4;
  const Plan plan = plan_of("chunkflow", document_batches({{9, 8, 4}}), options);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0}, {0}, {0}, {2}, {1}, {1}});
  CHECK(plan.steps[0].lanes[0].micro_batches.size() == 3);
}

TEST_CASE("a window-cut slice that is too long becomes a chunk group of its own") {
  PackOptions options = shape(2, 1);
  options.context_window = 10;
  options.of<ChunkflowOptions>().chunk_size = 4;
  const std::vector<std::int64_t> lengths{20};
  const DocumentSet set = load_documents(lengths, options, {});
  const Plan plan = plan_of("chunkflow", set.batches, options);
  const std::vector<MicroBatch>& chunks = plan.steps[0].lanes[0].micro_batches;
  REQUIRE(chunks.size() == 6);
  CHECK(chunks[3].chunk == Chunk{0, 0, 3, 10});  // it attends back to token 10, not to 0
}

TEST_CASE("chunk groups keep their places when a lane is reordered") {
  PackOptions options = shape(4, 1);
  options.of<ChunkflowOptions>().chunk_size = 4;
  options.order = Order::descending;
  // Standalone {0}: 3, {1}: 4 -> descending puts {1} first; the group of document 2 stays behind them.
  const Plan plan = plan_of("chunkflow", document_batches({{3, 4, 5}}), options);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{1}, {0}, {2}, {2}});
  CHECK(plan.steps[0].lanes[0].micro_batches[2].chunk.index == 0);
}

namespace {

// Each micro-batch of a lane as "document [begin, end)", packed ones with +.
std::vector<std::string> slices_of(const Lane& lane) {
  std::vector<std::string> texts;
  for (const MicroBatch& m : lane.micro_batches) {
    std::string text;
    for (const Slice& s : m.slices)
      text += (text.empty() ? "" : " + ") + std::to_string(s.document) + " [" + std::to_string(s.begin) +
              ", " + std::to_string(s.end) + ")";
    texts.push_back(text);
  }
  return texts;
}

PackOptions in_slices(std::int64_t slices, SliceBy by = SliceBy::work) {
  PackOptions options;
  options.of<SequenceSlicesOptions>() = {slices, by};
  options.verify = true;
  return options;
}

double square(std::int64_t tokens) {
  return static_cast<double>(tokens * tokens);
}

}  // namespace

TEST_CASE(
    "sequence-slices cuts documents into slices of equal work and packs short ones to a slice's tokens") {
  // W(t) = t^2, cuts at even tokens. The longest, 16 tokens in 4 slices: W reaches 64, 128 and 192 of 256 at
  // tokens 8, 12 and 14. A slice takes T = 64 and holds at most 8 tokens. The document of 10 takes 100: two
  // slices of 50, cut at 8. Those of 6 and 2 fill one micro-batch of 8 tokens.
  const auto batches = document_batches({{6, 10, 16, 2}});
  using Texts = std::vector<std::string>;
  CHECK(slices_of(plan_of("sequence-slices", batches, in_slices(4)).steps[0].lanes[0]) ==
        Texts{"2 [0, 8)", "2 [8, 12)", "2 [12, 14)", "2 [14, 16)", "1 [0, 8)", "1 [8, 10)",
              "0 [0, 6) + 3 [0, 2)"});
  // By tokens a slice holds 4: 6 tokens are two slices, 10 are three, cut at 4 and 8 (10/3 and 20/3, rounded
  // up).
  CHECK(slices_of(plan_of("sequence-slices", batches, in_slices(4, SliceBy::tokens)).steps[0].lanes[0]) ==
        Texts{"2 [0, 4)", "2 [4, 8)", "2 [8, 12)", "2 [12, 16)", "1 [0, 4)", "1 [4, 8)", "1 [8, 10)",
              "0 [0, 4)", "0 [4, 6)", "3 [0, 2)"});
  // More slices than pairs of tokens: two each, T = 32. 100 of work are four slices, 36 two, 2 tokens are
  // left.
  CHECK(plan_of("sequence-slices", batches, in_slices(100)).steps[0].lanes[0].micro_batches.size() == 15);
  // On two CP ranks cuts are at multiples of 4.
  PackOptions ranks = in_slices(4);
  ranks.context = 2;
  CHECK(slices_of(plan_of("sequence-slices", batches, ranks).steps[0].lanes[0]).front() == "2 [0, 4)");
  // Rounds of 4 in each of two lanes; 256 of work to the first, 100 + 40 to the second. The last ones are
  // empty.
  PackOptions rounds = in_slices(4);
  rounds.lanes = 2;
  rounds.lane_round = 4;
  const Step step = plan_of("sequence-slices", batches, rounds).steps[0];
  CHECK(slices_of(step.lanes[0]) == Texts{"2 [0, 8)", "2 [8, 12)", "2 [12, 14)", "2 [14, 16)"});
  CHECK(slices_of(step.lanes[1]) == Texts{"1 [0, 8)", "1 [8, 10)", "0 [0, 6) + 3 [0, 2)", ""});
}

TEST_CASE("slices of a document differ by less than two tokens' work, and none is above the longest's") {
  SplitMix64 random(5);
  for (int round = 0; round < 1000; ++round) {
    CAPTURE(round);
    const auto slices = static_cast<std::int64_t>(1 + random.next() % 8);
    const std::vector<std::int64_t> lengths = random_lengths(random, 15, 300);
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    PackOptions options = in_slices(slices);
    options.lanes = 1 + static_cast<int>(random.next() % 3);
    const Plan plan = plan_of("sequence-slices", document_batches({lengths}), options);
    const double pair = square(longest) - square(std::max<std::int64_t>(0, longest - 2));  // two of them
    const double most = square(longest) / static_cast<double>(std::min(slices, (longest + 1) / 2));
    bool cut = false;
    for (const Lane& lane : plan.steps[0].lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        double work = 0;
        for (const Slice& s : m.slices) work += square(s.end) - square(s.begin);
        CHECK(work < most + pair);
        if (m.chunk.count == 1) continue;
        cut = true;
        const auto length = lengths[static_cast<std::size_t>(m.chunk.sequence)];
        const double even = square(length) / m.chunk.count;
        CHECK(work > even - pair);
        CHECK(work < even + pair);
      }
    CHECK(cut == (slices > 1 && longest > 2));
  }
}

TEST_CASE("one slice a document is the plain packer's plan, where documents fill windows") {
  PackOptions options = in_slices(1);
  options.lanes = 2;
  options.context_window = 64;
  options.sequences_per_step = 6;
  const auto batches = document_batches({std::vector<std::int64_t>(6, 64), std::vector<std::int64_t>(6, 64)});
  const Plan slices = plan_of("sequence-slices", batches, options),
             plain = plan_of("plain", batches, options);
  REQUIRE(slices.steps.size() == plain.steps.size());
  for (std::size_t s = 0; s < plain.steps.size(); ++s)
    CHECK(ids_of(slices.steps[s]) == ids_of(plain.steps[s]));
}
