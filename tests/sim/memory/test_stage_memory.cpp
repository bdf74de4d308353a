// The walk over a stage's ops against a ledger that books every layer of every micro-batch by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/memory/memory_model.h"
#include "sim/schedule/schedule.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct Case {
  Layout layout;
  std::string schedule;
  int keep = 1;
  bool ahead = false;
  bool pairs = false;
  std::vector<std::int32_t> groups;
  std::vector<MicroBatch> micro_batches;
  std::vector<std::int64_t> tokens, gathered;
  int layers = 4;
};

std::uint64_t draw(std::uint64_t& state, std::uint64_t below) {  // SplitMix64
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return (z ^ (z >> 31)) % below;
}

Case random_case(std::uint64_t seed) {
  std::uint64_t state = seed;
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(draw(state, static_cast<std::uint64_t>(to - from + 1)));
  };
  Case c;
  c.layout.pipeline = pick(1, 4);
  c.layout.context = pick(1, 2);
  c.layout.recompute = Recompute::none;
  const char* names[] = {"gpipe", "1f1b", "zb-h1", "seq1f1b", "state-aware-1f1b", "state-aware-1f1b"};
  c.schedule = names[pick(0, 5)];
  const bool grouped = c.schedule == "state-aware-1f1b" || c.schedule == "seq1f1b";
  c.keep = pick(1, 3);
  c.ahead = c.schedule == "state-aware-1f1b" && pick(0, 1) == 1;
  c.pairs = pick(0, 1) == 1;
  c.layers = c.layout.pipeline * pick(1, 3);
  const int groups = pick(1, 5);
  for (int g = 0; g < groups; ++g) {
    c.groups.push_back(grouped ? pick(1, 6) : 1);
    for (int i = 0; i < c.groups.back(); ++i) {
      MicroBatch& micro_batch = c.micro_batches.emplace_back();
      micro_batch.chunk = {g, i, c.groups.back(), 0};
      micro_batch.recompute_layers = pick(0, 3) == 0 ? pick(0, c.layers) : 0;
      c.tokens.push_back(pick(1, 100));
      c.gathered.push_back(2 * c.tokens.back());
    }
  }
  return c;
}

// What one layer of a micro-batch holds.
enum class What { activations, kv, gradient, softmax };
using Ledger = std::map<std::tuple<What, int, int>, double>;  // by micro-batch and layer

double sum(const Ledger& ledger) {
  double bytes = 0;
  for (const auto& [key, value] : ledger) bytes += value;
  return bytes;
}

// Books one stage's ops, layer by layer, and returns the most that is held.
double ledger_peak(const Models& models, const Case& c, const Schedule& schedule, int stage) {
  const MemoryModel& memory = models.memory;
  const LaneLoad load{c.micro_batches, c.tokens, c.gathered, c.layout.context, c.ahead};
  const int layers = memory.layers(stage);
  const OpKind releasing = splits_backward(schedule) ? OpKind::W : OpKind::B;
  Ledger ledger;
  double peak = 0;
  const auto chunk = [&](int j) { return c.micro_batches[static_cast<std::size_t>(j)].chunk; };
  const auto foot = [&](int j) { return memory.footprint(stage, load, static_cast<std::size_t>(j)); };
  const auto keep = [&](int j, int layer) {
    ledger[{What::activations, j, layer}] = foot(j).activations / layers;
  };
  const auto dropped = [&](int j) { return std::max(0, chunk(j).count - c.keep); };
  const bool ahead = c.ahead && c.layout.pipeline == 1;
  const auto begin = [&](const ScheduleOp& op) {
    const int j = op.micro_batch, first = j - chunk(j).index;
    if (op.kind == OpKind::B && ahead) {
      const int r = first + dropped(j) - (chunk(j).count - chunk(j).index);
      if (r >= first && chunk(j).count > 1)
        for (int l = 0; l < layers; ++l) {
          keep(r, l);
          ledger[{What::softmax, r, 0}] = foot(r).softmax;
        }
    }
    ledger.erase({What::softmax, j, 0});
  };
  const auto layer_of = [&](const ScheduleOp& op, int step) {
    return op.kind == OpKind::B || op.kind == OpKind::W ? layers - 1 - step : step;
  };
  const auto layer_begins = [&](const ScheduleOp& op, int step) {
    const int j = op.micro_batch, layer = layer_of(op, step);
    if (op.kind == OpKind::F || op.kind == OpKind::R) keep(j, layer);
    if (op.kind == OpKind::F || op.kind == OpKind::D) ledger[{What::kv, j, layer}] = foot(j).kv / layers;
    if (op.kind == OpKind::B && chunk(j).index + 1 == chunk(j).count)
      for (int i = j - chunk(j).index; i < j; ++i) ledger[{What::gradient, i, layer}] = foot(i).kv / layers;
  };
  const auto layer_ends = [&](const ScheduleOp& op, int step) {
    const int j = op.micro_batch, layer = layer_of(op, step);
    if (op.kind == releasing) ledger.erase({What::activations, j, layer});
    if (op.kind == OpKind::B) {
      ledger.erase({What::kv, j, layer});
      ledger.erase({What::gradient, j, layer});
    }
  };
  const std::vector<ScheduleOp>& ops = schedule.ops[static_cast<std::size_t>(stage)];
  for (std::size_t i = 0; i < ops.size();) {
    const std::size_t end = i + (ops[i].with_next ? 2 : 1);  // a pair runs layer next to layer
    double logits = 0, others = 0;
    for (std::size_t k = i; k < end; ++k) {
      const Footprint own = foot(ops[k].micro_batch);
      logits = std::max(logits, own.logits);
      others += own.gathered_kv + own.buffers;
      begin(ops[k]);
    }
    for (int step = 0; step < layers; ++step) {
      for (std::size_t k = i; k < end; ++k) layer_begins(ops[k], step);
      peak = std::max(peak, memory.fixed(stage).total() + sum(ledger) + logits + others);
      for (std::size_t k = i; k < end; ++k) layer_ends(ops[k], step);
    }
    for (; i < end; ++i)
      if (ops[i].kind == OpKind::F || ops[i].kind == OpKind::R)
        ledger[{What::softmax, ops[i].micro_batch, 0}] = foot(ops[i].micro_batch).softmax;
  }
  CHECK(std::abs(sum(ledger)) < 1e-6);  // nothing is left behind
  return peak;
}

}  // namespace

TEST_CASE("the peak of a lane is that of a ledger of every layer of every micro-batch") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    const Models models(model_of(c.layers), c.layout);
    const Schedule schedule =
        schedule_policy(c.schedule).make({c.layout.pipeline, 1, c.groups, c.keep, seed % 3 == 0, c.pairs});
    double worst = 0;
    for (int s = 0; s < c.layout.pipeline; ++s) worst = std::max(worst, ledger_peak(models, c, schedule, s));
    const MemoryPeak peak =
        models.memory.lane_peak(schedule, {c.micro_batches, c.tokens, c.gathered, c.layout.context, c.ahead});
    REQUIRE(peak.parts.total() == doctest::Approx(worst).epsilon(1e-12));
  }
}

TEST_CASE("a stage ends with what it began with, and no part is ever negative") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    const Models models(model_of(c.layers), c.layout);
    const Schedule schedule =
        schedule_policy(c.schedule).make({c.layout.pipeline, 1, c.groups, c.keep, false, c.pairs});
    const LaneLoad load{c.micro_batches, c.tokens, c.gathered, c.layout.context, c.ahead};
    for (int s = 0; s < c.layout.pipeline; ++s) {
      StageMemory memory(models.memory, load, s, splits_backward(schedule));
      MemoryParts left = models.memory.fixed(s);
      for (const ScheduleOp& op : schedule.ops[static_cast<std::size_t>(s)]) {
        const OpMemory& held = memory.next(op);
        for (const MemoryPartName& part : kMemoryParts)
          for (const MemoryParts* parts : {&held.first, &held.last, &held.after})
            REQUIRE(parts->*part.bytes > -1e-3);
        left = held.after;
      }
      for (const MemoryPartName& part : kMemoryParts)
        REQUIRE(left.*part.bytes == doctest::Approx(models.memory.fixed(s).*part.bytes));
    }
  }
}

TEST_CASE("a pair holds one micro-batch and a layer, not a second micro-batch") {
  Layout layout;
  layout.recompute = Recompute::none;
  const Models models(model_of(4), layout);
  // F1 F2&B1 F3&B2 B3: while F2 fills its first of four layers, all of the first micro-batch are there.
  const std::vector<std::int32_t> groups{1, 1, 1};
  const std::vector<MicroBatch> micro_batches(3);
  const std::vector<std::int64_t> tokens{100, 100, 100};
  const LaneLoad load{micro_batches, tokens, {}, 1, false};
  const Schedule schedule = schedule_policy("1f1b").make({.group_sizes = groups, .pairs = true});
  REQUIRE(schedule.ops[0][1].with_next);
  const Footprint own = models.memory.footprint(0, load, 0);
  const MemoryParts held = models.memory.lane_peak(schedule, load).parts;
  CHECK(held.activations == doctest::Approx(1.25 * own.activations));
  CHECK(held.buffers == doctest::Approx(models.memory.fixed(0).buffers + 2 * own.buffers));
  CHECK(held.logits == doctest::Approx(own.logits));
}
