// The forms of context parallelism: how the ranks of a CP group attend to keys on other ranks.
//
// A form is described in two places: here by facts, which keys, notes, memory, export and execution read, and
// in a file of sim/cost/context_exchange by what it exchanges, computes and holds (ContextForm).
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "policies/base/index.h"

namespace equipoise {

enum class ContextComm {
  all_gather,
  ring,
  ulysses,
  ulysses_ring,
  ulysses_all_gather,
  group_cast,
  disaggregated
};

// How real ranks run a form.
enum class ContextRun : std::uint8_t {
  gathered,  // gathers K and V, then attends to them
  blocks,    // attends to block after block, while the next one travels
  cast,      // attends to the rank's own keys while others arrive
  tasks      // runs planned tasks on any rank
};

// Frameworks with an export that run a form with the priced exchanges.
using ContextFrameworks = std::uint8_t;
inline constexpr ContextFrameworks kByMegatron = 1, kByDeepspeed = 2, kByTorchtitan = 4, kByVerlFsdp = 8,
                                   kByVerlMegatron = 16;

struct ContextCommFacts {
  ContextComm form{};
  std::string_view name;  // as a study spells it
  std::string_view help;
  ContextRun run = ContextRun::gathered;
  // An all-to-all inside groups of `context_inner` ranks, and the form `across` them.
  bool nested = false;
  ContextComm across = ContextComm::all_gather;
  bool brings_keys = false;        // whether a rank gathers the keys of others before it attends to them
  bool keeps_brought = false;      // whether framework.keep_gathered_kv has an effect
  bool goes_in_ring = false;       // whether framework.ring_merges has an effect
  bool by_blocks = false;          // whether attention takes the keys rank by rank during the exchanges
  bool takes_windows = true;       // whether it can price layers whose queries see only a window of keys
  bool casts = false;              // whether block, cast_stages and cast_once_per_node have an effect
  bool plans_tasks = false;        // whether epsilon, nano_batches and pools of stages have an effect
  std::string_view megatron = "";  // cp_comm_type of Megatron-LM: the form itself or the nearest one
  ContextFrameworks run_by = 0;
};

inline constexpr ContextCommFacts kContextComms[] = {
    {.form = ContextComm::all_gather,
     .name = "all-gather",
     .help = "a rank gathers those of all before it attends",
     .brings_keys = true,
     .keeps_brought = true,
     .megatron = "all_gather",
     .run_by = kByMegatron | kByTorchtitan},
    {.form = ContextComm::ring,
     .name = "ring",
     .help = "they go round",
     .run = ContextRun::blocks,
     .goes_in_ring = true,
     .by_blocks = true,
     .takes_windows = false,
     .megatron = "p2p",
     .run_by = kByMegatron | kByVerlMegatron},
    {.form = ContextComm::ulysses,
     .name = "ulysses",
     .help = "an all-to-all gives a rank all tokens of some heads",
     .megatron = "a2a",
     .run_by = kByMegatron | kByDeepspeed | kByVerlFsdp},
    {.form = ContextComm::ulysses_ring,
     .name = "ulysses-ring",
     .help = "ulysses inside groups of context_inner ranks, a ring across them",
     .run = ContextRun::blocks,
     .nested = true,
     .across = ContextComm::ring,
     .goes_in_ring = true,
     .by_blocks = true,
     .takes_windows = false,
     .megatron = "a2a+p2p",
     .run_by = kByMegatron},
    {.form = ContextComm::ulysses_all_gather,
     .name = "ulysses-all-gather",
     .help = "the same with a gather across",
     .nested = true,
     .brings_keys = true,
     .keeps_brought = true,
     .megatron = "a2a+p2p"},
    {.form = ContextComm::group_cast,
     .name = "group-cast",
     .help = "a rank gets only the blocks that its queries see",
     .run = ContextRun::cast,
     .brings_keys = true,
     .keeps_brought = true,
     .casts = true,
     .megatron = "all_gather"},
    {.form = ContextComm::disaggregated,
     .name = "disaggregated",
     .help = "attention may run on any rank (DistCA)",
     .run = ContextRun::tasks,
     .keeps_brought = true,
     .takes_windows = false,
     .plans_tasks = true,
     .megatron = "all_gather"},
};
static_assert(
    [] {
      std::size_t place = 0;
      for (const ContextCommFacts& facts : kContextComms)
        if (at(facts.form) != place++) return false;
      return true;
    }(),
    "the forms are in the order of their enumerators");

constexpr const ContextCommFacts& facts_of(ContextComm form) {
  return kContextComms[at(form)];
}
constexpr std::string_view name_of(ContextComm form) {
  return facts_of(form).name;
}
inline constexpr auto kContextCommNames = [] {
  std::array<std::string_view, std::size(kContextComms)> names{};
  for (const ContextCommFacts& facts : kContextComms) names[at(facts.form)] = facts.name;
  return names;
}();

}  // namespace equipoise
