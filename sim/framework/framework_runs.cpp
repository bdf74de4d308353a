#include "sim/framework/framework_runs.h"

#include <algorithm>

namespace equipoise {
namespace {

constexpr FrameworkRuns kFrameworks[] = {
    {"megatron megatron-eager megatron-2022 nemo ", "megatron", "plain hybrid-cp ", "per-document ",
     "1f1b interleaved-1f1b ", "hybrid-cp ", kByMegatron, true},
    {"deepspeed ", "deepspeed", "plain ", "per-sequence per-document ", "1f1b ", "", kByDeepspeed, true},
    {"torchtitan ", "torchtitan", "plain ", "per-sequence ", "1f1b gpipe interleaved-1f1b ", "",
     kByTorchtitan, true},
    {"fsdp ", "torchtitan", "plain ", "per-sequence ", "", "", kByTorchtitan, true},
    {"verl ", "verl", "karmarkar-karp padded ", "per-document ", "1f1b ", "", kByVerlFsdp | kByVerlMegatron},
    {"nanotron ", "", "plain ", "per-sequence ", "1f1b gpipe ", "", 0},
};

}  // namespace

const FrameworkRuns* framework_runs(std::string_view name) {
  const auto found =
      std::ranges::find_if(kFrameworks, [&](const FrameworkRuns& one) { return lists(one.names, name); });
  return found == std::end(kFrameworks) ? nullptr : found;
}

}  // namespace equipoise
