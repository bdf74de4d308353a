// The one table of schedules, in help order.
#include <array>
#include <string>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "sim/schedule/generators.h"

namespace equipoise {
namespace {

template <void (*MakeInto)(const ScheduleInput&, Schedule&)>
Schedule make(const ScheduleInput& input) {
  Schedule out;
  MakeInto(input, out);
  return out;
}

template <void (*MakeInto)(const ScheduleInput&, Schedule&)>
constexpr SchedulePolicy row(std::string_view name, std::string_view paper, std::string_view summary,
                             bool pairs = false, bool bidirectional = false) {
  return {name, paper, summary, make<MakeInto>, MakeInto, pairs, bidirectional};
}
constexpr bool kPairs = true, kBidirectional = true;

constexpr std::array kSchedules = {
    row<make_gpipe>("gpipe", "arXiv 1811.06965", "All forwards, then all backwards in reverse order"),
    row<make_1f1b>("1f1b", "arXiv 2006.09503",
                   "P-1-s forwards on stage s, then one forward and one backward in turn", kPairs),
    row<make_interleaved_1f1b>("interleaved-1f1b", "arXiv 2104.04473",
                               "1F1B over V model chunks a rank, as in Megatron-LM: the bubble shrinks by V",
                               kPairs),
    row<make_state_aware_1f1b>("state-aware-1f1b", "arXiv 2503.02356",
                               "ChunkFlow: 1F1B over dependent chunks, of which K keep activations"),
    row<make_zb_h1>("zb-h1", "arXiv 2401.10241",
                    "Zero bubble H1: weight gradients fill bubbles within 1F1B's peak memory"),
    row<make_dualpipe>("dualpipe", "arXiv 2412.19437",
                       "DeepSeek's DualPipe: from both ends, a forward and a backward issued together", false,
                       kBidirectional),
};

}  // namespace

std::span<const SchedulePolicy> schedule_policies() {
  return kSchedules;
}

const SchedulePolicy& schedule_policy(std::string_view name) {
  return find_named(kSchedules, name, "schedule");
}

const SchedulePolicy& one_way_schedule(std::string_view name) {
  const SchedulePolicy& policy = schedule_policy(name);
  if (policy.bidirectional)
    throw UserError(
        "schedule " + std::string(name) +
        ": runs in studies and is drawn; here ranks hold one copy of each layer, and it needs two");
  return policy;
}

}  // namespace equipoise
