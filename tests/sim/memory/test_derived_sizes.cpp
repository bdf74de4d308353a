// Sizes that follow from memory: what they say fits, and no more would.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "policies/base/random.h"
#include "sim/memory/derived_sizes.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;

Layout split_in(int tensor, int context, int pipeline, int virtual_pipeline = 1) {
  Layout layout;
  layout.tensor = tensor;
  layout.context = context;
  layout.pipeline = pipeline;
  layout.virtual_pipeline = virtual_pipeline;
  layout.recompute = Recompute::none;
  return layout;
}

// Peak of a lane of equal micro-batches, written out.
double need(const Models& models, const char* schedule, int micro_batches, std::int64_t rank_tokens,
            int recompute_layers = kStudyRecompute) {
  const auto count = static_cast<std::size_t>(micro_batches);
  MicroBatch like;
  like.recompute_layers = recompute_layers;
  const std::vector<MicroBatch> all(count, like);
  const std::vector<std::int64_t> tokens(count, rank_tokens);
  const std::vector<std::int64_t> gathered(count, rank_tokens * models.layout.context);
  const std::vector<std::int32_t> groups(count, 1);
  const Schedule made =
      schedule_policy(schedule).make({models.layout.pipeline, models.layout.virtual_pipeline, groups});
  return models.memory.lane_peak(made, {all, tokens, gathered, models.layout.context}).parts.total();
}

Schedule schedule_of(const Models& models, const char* name, std::int64_t micro_batches) {
  return lane_schedule(schedule_policy(name), models.layout, micro_batches);
}

}  // namespace

TEST_CASE("L_max fits as every micro-batch, and 1 % more does not, in each schedule") {
  const struct {
    const char* schedule;
    int virtual_pipeline, micro_batches;
  } cases[] = {{"1f1b", 1, 16},
               {"1f1b", 1, 1},
               {"gpipe", 1, 16},
               {"interleaved-1f1b", 4, 16},
               {"interleaved-1f1b", 4, 4},
               {"zb-h1", 1, 16}};
  for (const auto& c : cases)
    for (const int context : {1, 2}) {
      CAPTURE(c.schedule);
      CAPTURE(c.micro_batches);
      CAPTURE(context);
      const Models models(builtin_model("llama2-7b"), split_in(8, context, 4, c.virtual_pipeline));
      const Schedule schedule = schedule_of(models, c.schedule, c.micro_batches);
      const std::int64_t most = largest_micro_batch(models.memory, schedule, context, kMost);
      REQUIRE(most > 0);
      const std::int64_t rank = tokens_of_rank(most, context);
      CHECK(need(models, c.schedule, c.micro_batches, rank) <= models.memory.capacity_bytes());
      CHECK(need(models, c.schedule, c.micro_batches, rank + rank / 100) > models.memory.capacity_bytes());
      CHECK(std::abs(largest_bucket(models.memory, schedule, context) - rank) <= 1);
      CHECK(largest_micro_batch(models.memory, schedule, context, most / 2) == most / 2);
    }
}

TEST_CASE("L_max counts each virtual stage's own layers: 126 of them over 16 stages of 4 are 1 or 2") {
  // A stage has at most 8 layers in its 4 chunks. As if all its chunks were as large as its largest, a stage
  // of 1, 2, 2 and 2 would hold an eighth more than it does.
  Layout layout = split_in(8, 16, 16, 4);
  layout.recompute = Recompute::layers;
  layout.recompute_layers = 60;
  const Models models(builtin_model("llama3.1-405b"), layout);
  const int count = 16;
  const Schedule schedule = schedule_of(models, "interleaved-1f1b", count);
  const std::int64_t most = largest_micro_batch(models.memory, schedule, 16, kMost);
  CHECK(need(models, "interleaved-1f1b", count, tokens_of_rank(most, 16)) <= models.memory.capacity_bytes());
  CHECK(need(models, "interleaved-1f1b", count, tokens_of_rank(most, 16) + 2) >
        models.memory.capacity_bytes());
  CHECK(most > 131072);
}

TEST_CASE("L_max sees what is in flight: one micro-batch leaves more room than a full pipeline") {
  const Models models(builtin_model("llama2-7b"), split_in(8, 1, 4));
  const auto most = [&](const char* name, int micro_batches) {
    return largest_micro_batch(models.memory, schedule_of(models, name, micro_batches), 1, kMost);
  };
  CHECK(most("1f1b", 1) > most("1f1b", 4));
  CHECK(most("1f1b", 4) == most("1f1b", 1000));  // 1F1B keeps 4
  CHECK(most("gpipe", 4) > most("gpipe", 64));   // gpipe all
  const Models interleaved(builtin_model("llama2-7b"), split_in(8, 1, 4, 4));
  CHECK(largest_micro_batch(interleaved.memory, schedule_of(interleaved, "interleaved-1f1b", 64), 1, kMost) <
        most("1f1b", 64));
}

TEST_CASE("A model whose states fill the GPU leaves room for nothing") {
  const Models models(builtin_model("llama3.1-405b"), split_in(1, 1, 1));
  const Schedule schedule = schedule_of(models, "1f1b", 1);
  CHECK(largest_micro_batch(models.memory, schedule, 1, kMost) == 0);
  CHECK(largest_bucket(models.memory, schedule, 1) == 0);
  CHECK(layers_to_checkpoint(models.memory, schedule, 1024, 1) == -1);
}

TEST_CASE("Checkpointed layers (HBP Algorithm 4): enough to fit, and not one too many") {
  for (const int pipeline : {1, 4}) {
    CAPTURE(pipeline);
    const Models models(builtin_model("llama2-7b"), split_in(8, 1, pipeline));
    const int count = 2 * pipeline;
    const Schedule schedule = schedule_of(models, "1f1b", count);
    const auto fits = [&](std::int64_t tokens, int layers) {
      return need(models, "1f1b", count, tokens, layers) <= models.memory.capacity_bytes();
    };
    int last = 0, partly = 0;
    for (std::int64_t tokens = 8192; tokens <= 4 << 20; tokens += 8192) {
      const int layers = layers_to_checkpoint(models.memory, schedule, tokens, 1);
      CAPTURE(tokens);
      if (layers < 0) {
        REQUIRE(!fits(tokens, 32));
        last = 33;
        continue;
      }
      REQUIRE(layers >= last);  // more tokens never need fewer
      last = layers;
      REQUIRE(fits(tokens, layers));
      if (layers > 0) REQUIRE(!fits(tokens, layers - 1));
      partly += layers > 0 && layers < 32;
    }
    CHECK(partly > 10);
    CHECK(last == 33);
  }
}

TEST_CASE("checkpointed layers follow from two memory probes") {
  // 0 layers leave -10 free, 10 layers leave 10: 2 a layer, 5 layers to reach 0.
  CHECK(layers_between_probes(0, -10, 10, 10, 32) == 5);
  // 3 a layer: 10 - 10 / 3 = 6.67, rounded up.
  CHECK(layers_between_probes(0, -20, 10, 10, 32) == 7);
  CHECK(layers_between_probes(0, 4, 10, 24, 32) == 0);       // fits without
  CHECK(layers_between_probes(0, -100, 10, -80, 32) == 32);  // does not fit at all: clipped
}

namespace {

// A lane of dependent chunks: groups of so many, each of so many tokens.
struct Slices {
  std::vector<MicroBatch> micro_batches;
  std::vector<std::int64_t> tokens, gathered;
  std::vector<std::int32_t> groups;

  void add(const std::vector<std::int64_t>& group) {
    for (std::size_t i = 0; i < group.size(); ++i)
      micro_batches.emplace_back().chunk = {static_cast<std::int64_t>(groups.size()), static_cast<int>(i),
                                            static_cast<int>(group.size()), 0};
    tokens.insert(tokens.end(), group.begin(), group.end());
    gathered.assign(tokens.size(), 0);
    groups.push_back(static_cast<std::int32_t>(group.size()));
  }
  // On every stage the k-th backward of the last stage, the k-1st of the one before ... recompute C[k].
  void set(const Schedule& schedule, const std::vector<int>& layers) {
    for (MicroBatch& m : micro_batches)
      m.recompute_by_stage.assign(static_cast<std::size_t>(schedule.stages), 0);
    for (int s = 0; s < schedule.stages; ++s) {
      auto next = layers.begin() + schedule.stages - 1 - s;
      for (const ScheduleOp& op : schedule.ops[static_cast<std::size_t>(s)])
        if (op.kind == OpKind::B)
          micro_batches[static_cast<std::size_t>(op.micro_batch)]
              .recompute_by_stage[static_cast<std::size_t>(s)] = static_cast<std::int16_t>(*next++);
    }
  }
  [[nodiscard]] double peak(const Models& models, const Schedule& schedule) const {
    return models.memory.lane_peak(schedule, {micro_batches, tokens, gathered, 1}).parts.total();
  }
  // Layers of the stage that the lane recomputes.
  [[nodiscard]] int recomputed(int stage) const {
    int sum = 0;
    for (const MicroBatch& m : micro_batches) sum += m.recompute_by_stage[static_cast<std::size_t>(stage)];
    return sum;
  }
};

}  // namespace

TEST_CASE("Checkpoints by stage and slice fit with nearly the least that any numbers C recompute") {
  // Two stages of two layers, documents of three and two slices: C has 5 + 1 numbers of 0 to 2, 729 choices.
  Models models(model_of(4), split_in(1, 1, 2));
  SplitMix64 random(3);
  int chosen = 0, least = 0, partly = 0;
  for (int round = 0; round < 60; ++round) {
    Slices lane;
    const auto pick = [&] { return static_cast<std::int64_t>(2000 + random.next() % 8000); };
    lane.add({pick(), pick(), pick()});
    lane.add({pick(), pick()});
    const Schedule schedule = schedule_policy("seq1f1b").make({.stages = 2, .group_sizes = lane.groups});
    lane.set(schedule, {0, 0, 0, 0, 0, 0});
    const double none = lane.peak(models, schedule);
    lane.set(schedule, {2, 2, 2, 2, 2, 2});
    const double all = lane.peak(models, schedule);
    models.memory.set_capacity(all + (none - all) * static_cast<double>(random.next() % 1000) / 1000);
    int best = 100;
    for (int choice = 0; choice < 729; ++choice) {
      std::vector<int> layers;
      for (int rest = choice; layers.size() < 6; rest /= 3) layers.push_back(rest % 3);
      const int sum = std::accumulate(layers.begin(), layers.end(), 0);
      if (sum >= best) continue;
      lane.set(schedule, layers);
      if (lane.peak(models, schedule) <= models.memory.capacity_bytes()) best = sum;
    }
    checkpoint_by_stage(models.memory, schedule, lane.tokens, 1, lane.micro_batches);
    CAPTURE(round);
    REQUIRE(lane.peak(models, schedule) <= models.memory.capacity_bytes());
    // Each C once: five are stage 1's, and the last is of stage 0's last backward.
    const ScheduleOp& last = schedule.ops[0].back();
    const int sum = lane.recomputed(1) +
                    lane.micro_batches[static_cast<std::size_t>(last.micro_batch)].recompute_by_stage[0];
    CHECK(sum >= best);
    CHECK(sum <= best + 3);
    chosen += sum;
    least += best;
    partly += best > 0 && best < 12;
  }
  CHECK(partly > 40);
  CHECK(chosen <= least * 1.15);  // 13 % above, where each number is one of three
}

TEST_CASE("With enough memory no stage recomputes, with none all do, and between the first recomputes most") {
  Models models(model_of(8), split_in(1, 1, 4));
  Slices lane;
  for (int d = 0; d < 6; ++d) lane.add({5000, 3000, 2000, 1000});
  const Schedule schedule = schedule_policy("seq1f1b").make({.stages = 4, .group_sizes = lane.groups});
  const auto choose = [&] {
    checkpoint_by_stage(models.memory, schedule, lane.tokens, 1, lane.micro_batches);
  };
  models.memory.set_capacity(1e15);
  choose();
  for (int s = 0; s < 4; ++s) CHECK(lane.recomputed(s) == 0);
  const double none = lane.peak(models, schedule);
  models.memory.set_capacity(1);
  choose();
  for (int s = 0; s < 4; ++s) CHECK(lane.recomputed(s) == 24 * 2);
  const double all = lane.peak(models, schedule);
  models.memory.set_capacity((none + all) / 2);
  choose();
  CHECK(lane.peak(models, schedule) <= models.memory.capacity_bytes());
  CHECK(lane.recomputed(0) > 0);
  CHECK(lane.recomputed(0) < 24 * 2);
}
