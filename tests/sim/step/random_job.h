// Random training jobs on a shipped profile: models, layouts, schedules and plans of very unequal documents.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/cost/check_layout.h"
#include "sim/step/step_simulator.h"

namespace equipoise::testing {

struct Job {
  ModelShape model;
  Layout layout;
  FrameworkOptions framework;
  ShardRule shard;
  StepOptions options;
  Step step;
  std::string text;
};

inline std::uint64_t below(SplitMix64& random, std::uint64_t n) {
  return random.next() % n;
}

// A few documents of very different lengths.
inline MicroBatch random_micro_batch(SplitMix64& random, std::int64_t& document) {
  MicroBatch micro_batch;
  const std::uint64_t documents = below(random, 6);  // sometimes none
  for (std::uint64_t d = 0; d < documents; ++d) {
    const std::int64_t length = static_cast<std::int64_t>(below(random, 1ULL << (6 + below(random, 9)))) + 1;
    micro_batch.slices.push_back({document++, 0, length});
  }
  return micro_batch;
}

// Some models slide, in all layers or in some; some count embedding and head as layers.
inline void vary_layers(std::uint64_t seed, Job& job) {
  constexpr std::uint64_t kOther = 0x9e3779b97f4a7c15;  // so that the rest of the job stays as it is
  SplitMix64 random(seed ^ kOther);
  job.layout.count_embedding_and_head = job.layout.pipeline > 1 && below(random, 2) == 0;
  const ContextComm form = job.layout.context_comm;
  if (form == ContextComm::ring || form == ContextComm::ulysses_ring || form == ContextComm::disaggregated ||
      below(random, 3) > 0)
    return;
  job.model.sliding_window = std::int64_t{1} << (5 + below(random, 8));
  constexpr int kMostLayers = 64;
  for (int i = 0; i < kMostLayers && job.layout.data > 1; ++i)
    job.model.sliding_layers.push_back(below(random, 2) == 0);
  job.model.chunked = seed % 2 == 0;
  job.text +=
      std::string(job.model.chunked ? ", chunk " : ", window ") + std::to_string(job.model.sliding_window);
}

// In some, layers are linear recurrences in place of attention, a few of them without an FFN, or next to it.
inline void vary_mixers(std::uint64_t seed, Job& job) {
  if (seed % 5 != 2 || job.layout.nano_batches > 1) return;
  SplitMix64 random(seed);
  RecurrentShape recurrence{.rule = kRecurrences[seed % std::size(kRecurrences)].rule,
                            .key_heads = 8,
                            .heads = 32,
                            .key_dim = 128,
                            .value_dim = 64,
                            .convolution = 4};
  recurrence.next_to_attention = !job.model.moe && seed % 2 == 0;
  for (int i = 0; i < job.model.layers; ++i) {
    recurrence.layers.push_back(below(random, 3) > 0);
    recurrence.without_ffn.push_back(below(random, 3) == 0);
  }
  job.model.recurrence = recurrence;
  job.text += ", " + std::string(recurrence.facts().name);
}

// Some freeze parts of their model, first layers whole, or train adapters next to it; some predict more than
// one token; some copy what they keep to the host.
inline void vary_training(std::uint64_t seed, Job& job) {
  Training& training = job.model.training;
  if (seed % 5 == 0) {  // slow enough that passes wait for their copies
    job.layout.activation_offload = 0.5;
    job.layout.host_link_GBps = 5;
  }
  if (seed % 4 == 1) job.model.mtp_layers = 1 + static_cast<int>(seed / 4 % 2);
  if (seed % 3 == 0) training.frozen = static_cast<WeightSet>(seed / 3) & kAllWeights;
  if (seed % 7 == 3 && seed % 6 != 0) {
    training.frozen |= bit_of(WeightKind::embedding);
    training.frozen_layers = static_cast<int>(seed / 7) % (job.model.layers + 1);
    job.text += ", " + std::to_string(training.frozen_layers) + " layers frozen";
  }
  if (seed % 6 != 0) return;
  training.lora_dim = 16;
  training.adapted = training.frozen & kAdaptable;
  job.text += ", lora";
}

// What hides the exchanges of experts: each in turn.
inline void vary_overlap(std::uint64_t seed, Job& job) {
  constexpr std::array kOverlaps = {ExpertOverlap::none, ExpertOverlap::shared_expert, ExpertOverlap::deepep,
                                    ExpertOverlap::dualpipe};
  job.framework.expert_overlap = kOverlaps[seed % kOverlaps.size()];
  job.framework.exchange_sms = static_cast<int>(seed / 4 % 3) * 33;  // none, a quarter, half of an H100's
  job.framework.exchange_sm_margin = seed % 5 != 0;
  job.options.pairs = seed % 7 == 0;  // pairs without experts, too
  job.text += ", overlap " + std::string(name_of(job.framework.expert_overlap)) + " on " +
              std::to_string(job.framework.exchange_sms) + " SMs";
}

// Some CP groups of four are two by two.
inline void nest(std::uint64_t seed, Job& job) {
  Layout& layout = job.layout;
  if (layout.context != 4 || job.model.moe || seed % 2 != 0) return;
  layout.context_comm =
      layout.context_comm == ContextComm::ring ? ContextComm::ulysses_ring : ContextComm::ulysses_all_gather;
  layout.context_inner = 2;
  if (seed % 4 == 0) layout.context_placement = ContextPlacement::outer_first;
}

// And some ranks of others send only what is needed, in blocks from 16 to 2,048 tokens, or attention away.
inline void cast(std::uint64_t seed, Job& job) {
  if (job.layout.context_comm != ContextComm::all_gather) return;
  if (seed % 3 == 1) {
    job.layout.context_comm = ContextComm::disaggregated;
    job.layout.nano_batches = job.model.moe ? 1 : 1 + static_cast<int>(seed / 3 % 2);
  }
  if (seed % 3 != 0) return;
  job.layout.context_comm = ContextComm::group_cast;
  job.layout.block = 16LL << (seed % 8);
  job.layout.cast_stages = 1 + static_cast<int>(seed / 3 % 4);
  job.layout.cast_once_per_node = seed / 2 % 2 == 0;
}

inline Job random_job(std::uint64_t seed) {
  SplitMix64 random(seed);
  Job job;
  job.model = builtin_model(below(random, 4) == 0 ? "deepseek-v2" : "llama2-7b");
  const bool moe = job.model.moe.has_value();
  job.model.layers = static_cast<int>(below(random, 6)) + 6;
  job.layout.tensor = 1 << below(random, 3);
  job.layout.context = 1 << below(random, 3);
  job.layout.pipeline = 1 << below(random, 3);
  job.layout.data = static_cast<int>(below(random, 3)) + 1;
  job.layout.zero = static_cast<int>(below(random, 2));
  job.layout.recompute = static_cast<Recompute>(below(random, 4));
  job.layout.recompute_layers = static_cast<int>(below(random, static_cast<std::uint64_t>(job.model.layers)));
  job.layout.context_comm = moe ? ContextComm::all_gather : static_cast<ContextComm>(below(random, 3));
  nest(seed, job);
  cast(seed, job);
  job.framework.tp_overlap_forward = below(random, 2) == 0;
  job.framework.fused_rope = seed % 4 != 0;  // else kernels by document, and the host is read to
  job.framework.host.seconds_per_launch = seed % 8 == 0 ? 2e-5 : 0;
  job.framework.early_stop = seed % 3 == 0;
  if (seed % 5 == 0)
    job.framework.linear_layers = seed % 2 == 0 ? LinearLayers::torch : LinearLayers::torch_eager;
  static const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved-1f1b", "state-aware-1f1b", "zb-h1"};
  const std::string schedule = kSchedules[below(random, 5)];
  job.options.schedule = &schedule_policy(schedule);
  job.options.blocking_sends = below(random, 3) == 0;
  std::uint64_t micro_batches = below(random, 5) + 1;
  if (schedule == "interleaved-1f1b" && job.layout.pipeline > 1) {
    job.layout.virtual_pipeline = 2;
    job.model.layers = 2 * job.layout.pipeline + static_cast<int>(below(random, 3));
    micro_batches = static_cast<std::uint64_t>(job.layout.pipeline) * (below(random, 2) + 1);
  }
  job.shard.fixed = &sharding_policy("per-document");
  job.shard.options.pad = Pad::tail;
  std::int64_t document = 0;
  for (int l = 0; l < job.layout.data; ++l) {
    Lane lane;
    lane.context = job.layout.context;
    for (std::uint64_t m = 0; m < micro_batches; ++m)
      lane.micro_batches.push_back(random_micro_batch(random, document));
    job.step.lanes.push_back(lane);
  }
  job.text = job.model.name + ", " + schedule + ", tp " + std::to_string(job.layout.tensor) + ", cp " +
             std::to_string(job.layout.context) + " " + std::string(name_of(job.layout.context_comm)) +
             ", pp " + std::to_string(job.layout.pipeline) + ", dp " + std::to_string(job.layout.data) +
             ", recompute " + std::string(name_of(job.layout.recompute));
  vary_layers(seed, job);
  vary_mixers(seed, job);
  vary_overlap(seed, job);
  vary_training(seed, job);
  return job;
}

inline const Profile& profile() {
  static const Profile loaded = Profile::load("h100-sxm");
  return loaded;
}

// The prices of a job.
struct Prices {
  explicit Prices(const Job& job, int gpus_per_node = 8)
      : grid(job.layout.order, parallel_sizes(job.layout), gpus_per_node),
        costs(job.model, job.layout, profile(), grid, {}, job.framework) {}
  Prices(const Prices&) = delete;
  Prices& operator=(const Prices&) = delete;
  RankGrid grid;
  LayerCosts costs;
};

}  // namespace equipoise::testing
