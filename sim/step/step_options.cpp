#include "sim/step/step_options.h"

#include <string>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {

static void check_both_ends(const Layout& layout, const StepOptions& options) {
  const std::string name(options.schedule->name);
  if (layout.virtual_pipeline > 1) return;  // the schedule itself refuses it
  if (!layout.bidirectional) (void)one_way_schedule(name);
  if (layout.zero > 1)
    throw UserError("schedule ", name, ": expected parallel.zero 0 or 1, found ", layout.zero,
                    ": the copies of a layer add up their gradients once per step");
  if (layout.expert > 1 && !options.pairs)
    throw UserError("schedule ", name,
                    ": expected framework.expert_overlap dualpipe: its pairs hide each other's exchanges");
}

ScheduleInput schedule_input(std::span<const MicroBatch> micro_batches, const Layout& layout,
                             const StepOptions& options, std::vector<std::int32_t>& sizes) {
  sizes.clear();
  for (std::size_t j = 0; j < micro_batches.size(); j += at(sizes.back()))
    sizes.push_back(micro_batches[j].chunk.count);
  if (options.schedule->bidirectional) check_both_ends(layout, options);
  const bool in_step = layout.evens_out_stages();
  if (in_step && options.schedule->name != "seq1f1b")
    throw UserError("stage_attention_exchange: true with schedule ", options.schedule->name,
                    "; allowed: seq1f1b, or false");
  return {layout.pipeline,     layout.virtual_pipeline, sizes,  options.keep,
          options.strict_keep, options.pairs,           in_step};
}

Schedule schedule_of(std::span<const MicroBatch> micro_batches, const Layout& layout,
                     const StepOptions& options) {
  std::vector<std::int32_t> sizes;
  return options.schedule->make(schedule_input(micro_batches, layout, options, sizes));
}

}  // namespace equipoise
