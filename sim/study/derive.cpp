#include "sim/study/derive.h"

#include <algorithm>
#include <utility>

#include "policies/base/error.h"
#include "policies/step_shape.h"
#include "sim/memory/derived_sizes.h"
#include "sim/study/hardware.h"

namespace equipoise {
namespace {

// The schedule of a row's lane of `micro_batches` micro-batches.
Schedule schedule_of(const Study& study, const RunModels& models, const PolicyRun& run,
                     std::int64_t micro_batches) {
  return lane_schedule(schedule_policy(run.schedule.empty() ? study.schedule : run.schedule), models.layout,
                       micro_batches, models.costs.pairs_micro_batches());
}

std::int64_t micro_batches_of_lane(const PackOptions& pack) {
  return (micro_batches_of_step(pack) + pack.lanes - 1) / pack.lanes;
}

std::string derive_max_tokens(const Study& study, const RunModels& models, PolicyRun& run,
                              std::vector<std::string>& notes) {
  std::int64_t& most = run.pack.max_tokens;
  most = 0;
  const std::int64_t wanted = max_tokens(run.pack);
  most = largest_micro_batch(models.memory, schedule_of(study, models, run, micro_batches_of_lane(run.pack)),
                             models.layout.context, wanted);
  if (most < 1) return "not even one token fits";
  if (most < wanted)
    notes.push_back(run.label + ": L_max is " + std::to_string(most) + " tokens, what memory allows");
  return "";
}

// Skrull's micro-batches are as many as its buckets ask for: enough of them to fill the pipeline.
std::string derive_bucket(const Study& study, const RunModels& models, PolicyRun& run,
                          std::vector<std::string>& notes) {
  const Schedule schedule = schedule_of(study, models, run, std::int64_t{2} * models.layout.pipeline);
  std::int64_t& bucket = run.pack.bucket_size;
  bucket = largest_bucket(models.memory, schedule, models.layout.context);
  if (bucket < 1) return "no bucket of a token fits";
  notes.push_back(run.label + ": BucketSize is " + std::to_string(bucket) +
                  " tokens a CP rank, from the memory model");
  return "";
}

// dacp shards by the bucket and the roll-back that the packing has.
void share_bucket(PolicyRun& run) {
  run.sharding.bucket_size = run.pack.bucket_size;
  run.sharding.rollback = run.pack.rollback;
}

// Groups are formed of the DP x CP ranks.
bool has_degree(const RunModels& models, int degree) {
  const Layout& layout = models.layout;
  if (layout.data * layout.context % degree != 0) return false;
  return layout.context_comm != ContextComm::ulysses ||
         models.costs.model().heads / layout.tensor % degree == 0;
}

}  // namespace

bool chooses_groups(const PolicyRun& run) {
  return run.policy().derives == Derives::groups && run.pack.groups.empty();
}

RunModels::RunModels(const Study& study, const Layout& l, const Profile& profile)
    : layout(l),
      grid(l.order, ParallelSizes{l.tensor, l.context, l.expert, l.data, l.pipeline, l.expert_tensor},
           gpus_per_node(study.cluster, profile)),
      costs(study.model, layout, profile, grid, study.cluster.network, study.framework.on(profile)),
      memory(study.model, layout, profile, study.framework.on(profile)) {
  check_communication(study, layout, profile);
  if (study.cluster.memory_GB > 0) memory.set_capacity(study.cluster.memory_GB * 1e9);
}

Layout layout_of(const Study& study, const PolicyRun& run) {
  Layout layout = study.layout;
  if (run.has_recompute) {
    layout.recompute = run.recompute;
    layout.recompute_layers = run.recompute_layers;
    layout.recompute_modules = run.recompute_modules;
  }
  // Of model chunks a schedule from both ends knows none: it refuses them by itself.
  const SchedulePolicy& schedule = schedule_policy(run.schedule.empty() ? study.schedule : run.schedule);
  layout.bidirectional = schedule.bidirectional && layout.virtual_pipeline == 1;
  return layout;
}

int layers_of_group(const Study& study, const RunModels& models, const PolicyRun& run, std::int64_t length,
                    int degree) {
  const std::int64_t lanes = std::max<std::int64_t>(1, grid_gpus(run.pack) / degree);
  const std::int64_t packs = packs_of_iteration(run.pack, length);
  return layers_to_checkpoint(models.memory, schedule_of(study, models, run, (packs + lanes - 1) / lanes),
                              tokens_of_rank(length, degree), degree);
}

std::function<int(std::int64_t length, int degree)> layers_of_groups(const Study& study,
                                                                     const RunModels& models,
                                                                     const PolicyRun& run) {
  return [&](std::int64_t length, int degree) {
    return has_degree(models, degree) ? layers_of_group(study, models, run, length, degree) : -1;
  };
}

std::string derive_options(const Study& study, const RunModels& models, PolicyRun& run,
                           std::vector<std::string>& notes) {
  const Derives derives = run.policy().derives;
  if (derives == Derives::max_tokens && !run.says("max_tokens"))
    if (std::string none = derive_max_tokens(study, models, run, notes); !none.empty()) return none;
  const bool buckets = derives == Derives::bucket_size || run.rule().places_documents;
  if (buckets && !run.says("bucket_size"))
    if (std::string none = derive_bucket(study, models, run, notes); !none.empty()) return none;
  share_bucket(run);
  const OptionSearch& search = run.policy().search;
  if (search.hopeless == nullptr || !search.is_open_in(run.pack)) return "";
  return search.hopeless(run.pack, {.layers = layers_of_groups(study, models, run)});
}

void derive_without_memory(const Study& study, PolicyRun& run) {
  PackOptions& pack = run.pack;
  if (!run.says("max_tokens")) pack.max_tokens = 2 * study.batch.context_window;
  if (!run.says("bucket_size"))
    pack.bucket_size = (study.batch.context_window + pack.context - 1) / pack.context + 1;
  share_bucket(run);
}

}  // namespace equipoise
