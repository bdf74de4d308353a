// Sizes that follow from memory: what they say fits, and no more would.
#include <doctest/doctest.h>

#include <algorithm>

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
