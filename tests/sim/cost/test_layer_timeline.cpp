// The max-plus recurrence of CP ranks: by hand, and against stepping through every layer.
#include <doctest/doctest.h>

#include <algorithm>

#include "policies/base/random.h"
#include "sim/cost/layer_timeline.h"

using namespace equipoise;

namespace {

// The recurrence as the header states it, layer by layer and synchronisation by synchronisation.
void step_through(const LayerTimeline& t, int layers, std::vector<Picoseconds>& clock) {
  const auto c = static_cast<std::size_t>(t.ranks);
  for (int layer = 0; layer < layers; ++layer)
    for (std::size_t p = 0; p <= t.syncs(); ++p) {
      for (std::size_t r = 0; r < c; ++r) clock[r] += t.local[p * c + r];
      if (p == t.syncs()) break;
      const Picoseconds all_in = *std::max_element(clock.begin(), clock.end());
      for (std::size_t r = 0; r < c; ++r)
        clock[r] = std::max(all_in + t.comm[p], clock[r] + t.overlap[p * c + r]);
    }
}

LayerTimeline random_timeline(SplitMix64& random, int ranks, bool overlaps) {
  const auto draw = [&random](std::uint64_t below) {
    return static_cast<Picoseconds>(random.next() % below);
  };
  LayerTimeline t;
  t.reset(ranks);
  const auto locals = [&] {
    for (int r = 0; r < ranks; ++r) t.add_local(r, draw(100));
  };
  locals();
  for (std::uint64_t syncs = random.next() % 4; syncs > 0; --syncs) {
    t.add_sync(draw(60));
    for (int r = 0; r < ranks && overlaps; ++r)
      if (random.next() % 2 == 0) t.overlap_last(r, draw(150));
    locals();
  }
  return t;
}

}  // namespace

TEST_CASE("Two ranks, one collective: the slower holds both, what runs meanwhile is free") {
  LayerTimeline t;
  t.reset(2);
  t.add_local(0, 5);
  t.add_local(1, 2);
  t.add_sync(3);
  t.add_local(0, 1);
  t.add_local(1, 4);
  std::vector<Picoseconds> clock = {0, 0};
  advance(t, 1, clock);
  CHECK(clock == std::vector<Picoseconds>{9, 12});  // both leave the collective at 5 + 3
  advance(t, 1, clock);
  CHECK(clock == std::vector<Picoseconds>{18, 21});  // 9 + 5 and 12 + 2 meet at 14, leave at 17
  // Rank 1 computes 10 under the collective: it leaves at 2 + 10 = 12.
  t.overlap_last(1, 10);
  clock = {0, 0};
  advance(t, 1, clock);
  CHECK(clock == std::vector<Picoseconds>{9, 16});
}

TEST_CASE("Many layers equal as many single ones, on random timelines with and without overlap") {
  SplitMix64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const int ranks = 1 + static_cast<int>(random.next() % 5);
    const LayerTimeline t = random_timeline(random, ranks, round % 2 == 0);
    const int layers = static_cast<int>(random.next() % 7);
    std::vector<Picoseconds> fast, naive;
    for (int r = 0; r < ranks; ++r) fast.push_back(static_cast<Picoseconds>(random.next() % 1000));
    naive = fast;
    advance(t, layers, fast);
    step_through(t, layers, naive);
    CAPTURE(round);
    REQUIRE(fast == naive);
  }
}

TEST_CASE("A layer appended to another is one after the other") {
  SplitMix64 random(4);
  for (int round = 0; round < 1000; ++round) {
    const int ranks = 1 + static_cast<int>(random.next() % 4);
    const LayerTimeline a = random_timeline(random, ranks, true), b = random_timeline(random, ranks, true);
    LayerTimeline both = a;
    both.append(b);
    REQUIRE(both.syncs() == a.syncs() + b.syncs());
    std::vector<Picoseconds> joined(static_cast<std::size_t>(ranks), 0), apart = joined;
    advance(both, 1, joined);
    step_through(a, 1, apart);
    step_through(b, 1, apart);
    REQUIRE(joined == apart);
  }
}
