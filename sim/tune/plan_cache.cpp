#include "sim/tune/plan_cache.h"

#include <iterator>
#include <sstream>

#include "policies/policy.h"
#include "sim/study/read/policy_run.h"

namespace equipoise {
namespace {

constexpr std::int64_t kMostSlices = 4'000'000;  // about 100 MB

std::int64_t slices_of(const Plan& plan) {
  std::size_t slices = 0;
  for (const Step& step : plan.steps) {
    slices += step.carried.size();
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches) slices += micro_batch.slices.size() + 4;
  }
  return static_cast<std::int64_t>(slices);
}

}  // namespace

std::shared_ptr<const PackedRow> PlanCache::find(
    const std::string& key, const std::function<std::shared_ptr<const PackedRow>()>& plan) {
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Slot>& known = slots_[key];
    if (!known) {
      known = std::make_shared<Slot>();
      known->turn = turns_.insert(turns_.end(), key);
    } else {
      turns_.splice(turns_.end(), turns_, known->turn);
    }
    slot = known;
  }
  const std::lock_guard planning(slot->planning);
  if (slot->row) return slot->row;
  slot->row = plan();
  const std::lock_guard lock(mutex_);
  const auto kept = slots_.find(key);
  if (kept != slots_.end() && kept->second == slot) {
    slot->slices = slices_of(slot->row->planned.plan);
    slices_ += slot->slices;
    make_room();
  }
  return slot->row;
}

void PlanCache::make_room() {
  while (slices_ > kMostSlices && turns_.size() > 1) {
    const auto oldest = slots_.find(turns_.front());
    slices_ -= oldest->second->slices;
    slots_.erase(oldest);
    turns_.pop_front();
  }
}

std::string priced_alike(const LayoutChoice& layout) {
  nlohmann::json keys = layout.keys;
  for (const char* key :
       {"parallel.pipeline", "parallel.virtual_pipeline", "parallel.data", "parallel.recompute", "schedule"})
    keys.erase(key);
  return keys.dump();
}

std::string plan_key(const std::string& alike, const RunModels& models, const PolicyRun& row) {
  if (row.policy().search.is_open_in(row.pack) || row.has_plan_file() || row.recompute_by_stage) return "";
  const PackOptions& pack = row.pack;
  std::ostringstream key;
  key << alike << '|' << row.label;
  for (const std::int64_t size :
       {pack.context_window, pack.sequences_per_step, pack.documents_per_step, pack.micro_batch_size,
        pack.micro_batches, std::int64_t{pack.lanes}, std::int64_t{pack.context}, pack.global_tokens,
        pack.gpus, std::int64_t{pack.stages}, std::int64_t{pack.lane_round}, pack.max_tokens,
        pack.bucket_size})
    key << ' ' << size;
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    key << (models.layout.repeats(static_cast<RecomputeModule>(m)) ? '+' : '-');
  return key.str();
}

}  // namespace equipoise
