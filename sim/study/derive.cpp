#include "sim/study/derive.h"

#include <algorithm>

#include "policies/error.h"
#include "sim/engine/stage/lane_engine.h"

namespace equipoise {
namespace {

// Time of one micro-batch of one document of `length` tokens on `degree` ranks, forward and backward through
// all stages, with `recompute_layers` of the model checkpointed.
double micro_batch_seconds(const RunModels& models, std::int64_t length, int degree, int recompute_layers) {
  ShardRule rule;
  rule.fixed = &sharding_policy("per-document");
  rule.options.pad = Pad::tail;
  MicroBatchCoster coster(models.costs, rule);
  MicroBatch micro_batch;
  micro_batch.slices.push_back({0, 0, length});
  micro_batch.recompute_layers = recompute_layers;
  MicroBatchCost cost;
  coster.cost(micro_batch, degree, cost);
  LaneEngine engine(models.costs.model(), models.layout);
  Picoseconds total = 0;
  for (int v = 0; v < models.layout.virtual_stages(); ++v)
    total += engine.alone(OpKind::F, v, micro_batch, cost) + engine.alone(OpKind::B, v, micro_batch, cost);
  return to_seconds(total) / models.layout.pipeline;
}

// The best strategy of one pack length (HBP Algorithm 1, inner loop), at equal global tokens.
bool best_candidate(const RunModels& models, std::int64_t length, std::int64_t global_tokens,
                    GroupCandidate& best) {
  const int replicas = models.layout.data * models.layout.context;
  best = GroupCandidate{};
  best.length = length;
  for (int degree = 1; degree <= replicas; degree *= 2) {
    if (replicas % degree != 0) continue;
    if (models.layout.context_comm == ContextComm::ulysses &&
        (models.costs.model().heads / models.layout.tensor) % degree != 0)
      continue;
    const std::int64_t rank_tokens = (length + degree - 1) / degree;
    const int layers = models.memory.checkpointed_layers(rank_tokens, degree);
    if (layers < 0) continue;
    const double packs = static_cast<double>(global_tokens) / static_cast<double>(length);
    const double seconds = micro_batch_seconds(models, length, degree, layers) * packs * degree / replicas;
    if (best.seconds > 0 && seconds >= best.seconds) continue;
    best.context = degree;
    best.recompute_layers = layers;
    best.recompute_layers_alone = std::max(0, models.memory.checkpointed_layers(rank_tokens, 1));
    best.seconds = seconds;
  }
  return best.seconds > 0;
}

void derive_candidates(const Study& study, const RunModels& models, PolicyRun& run,
                       std::vector<std::string>& notes) {
  std::vector<std::int64_t> lengths = run.candidates;
  if (lengths.empty())
    for (std::int64_t l = 8192; l <= study.batch.context_window; l *= 2) lengths.push_back(l);
  const std::int64_t global = run.pack.global_tokens > 0
                                  ? run.pack.global_tokens
                                  : study.batch.context_window * study.batch.sequences_per_step;
  for (const std::int64_t length : lengths) {
    GroupCandidate candidate;
    if (!best_candidate(models, length, global, candidate)) {
      notes.push_back("hbp: no CP degree fits packs of " + std::to_string(length) + " tokens into memory");
      continue;
    }
    run.pack.candidates.push_back(candidate);
  }
}

}  // namespace

RunModels::RunModels(const Study& study, const Layout& l, const Profile& profile)
    : layout(l),
      placement(l.order, ParallelSizes{l.tensor, l.context, l.expert, l.data, l.pipeline},
                study.cluster.gpus_per_node),
      costs(study.model, layout, profile, placement, study.cluster.network, study.framework.on(profile)),
      memory(study.model, layout, profile, study.framework.on(profile)) {
  if (study.cluster.memory_GB > 0) memory.set_capacity(study.cluster.memory_GB * 1e9);
}

Layout layout_of(const Study& study, const PolicyRun& run) {
  Layout layout = study.layout;
  if (run.has_recompute) {
    layout.recompute = run.recompute;
    layout.recompute_layers = run.recompute_layers;
  }
  return layout;
}

std::string derive_options(const Study& study, const RunModels& models, PolicyRun& run,
                           std::vector<std::string>& notes) {
  const bool packs_freely = run.name == "wlb" || run.name == "varlen-solver";
  if (packs_freely && !run.has_max_tokens) {
    const std::int64_t fits = models.memory.largest_micro_batch(models.layout.context);
    const std::int64_t wanted = 2 * study.batch.context_window;
    run.pack.max_tokens = std::min(wanted, fits);
    if (run.pack.max_tokens < 1) return "not even one token fits";
    if (fits < wanted)
      notes.push_back(run.label + ": L_max is " + std::to_string(run.pack.max_tokens) +
                      " tokens, what memory allows");
  }
  const bool buckets =
      run.name == "skrull" || run.name == "gds" || run.name == "round-robin" || run.shard == "dacp";
  if (buckets && !run.has_bucket_size) {
    run.pack.bucket_size = models.memory.bucket_size();
    if (run.pack.bucket_size < 1) return "no bucket of a token fits";
    notes.push_back(run.label + ": BucketSize is " + std::to_string(run.pack.bucket_size) +
                    " tokens a CP rank, from the memory model");
  }
  run.sharding.bucket_size = run.pack.bucket_size;
  run.sharding.rollback = run.pack.rollback;
  if (run.name == "hbp" && run.pack.groups.empty()) {
    derive_candidates(study, models, run, notes);
    if (run.pack.candidates.empty()) return "no pack length fits at any CP degree";
  }
  return "";
}

void derive_without_memory(const Study& study, PolicyRun& run) {
  PackOptions& pack = run.pack;
  if (!run.has_max_tokens) pack.max_tokens = 2 * study.batch.context_window;
  if (!run.has_bucket_size)
    pack.bucket_size = (study.batch.context_window + pack.context - 1) / pack.context + 1;
  run.sharding.bucket_size = pack.bucket_size;
}

}  // namespace equipoise
