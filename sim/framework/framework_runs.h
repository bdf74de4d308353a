// What training frameworks run by themselves: the one table for results (runs_in) and `export`.
//
// A loader can pack and cut micro-batches as a policy does: the one of the Python module (equipoise.loader)
// packs, one of the user's own cuts, too. It cannot give a framework a schedule, an attention or CP degrees
// that the framework does not have.
#pragma once

#include <cstdint>
#include <string_view>

#include "policies/base/index.h"
#include "sim/workload/context_comm.h"

namespace equipoise {

enum class RunsIn : std::uint8_t { yes, own_loader, no };
inline constexpr std::string_view kRunsInNames[] = {"yes", "own_loader", "no"};
constexpr std::string_view name_of(RunsIn runs_in) {
  return kRunsInNames[at(runs_in)];
}

// In the lists each name is followed by a space.
struct FrameworkRuns {
  std::string_view names;       // presets, and names that `export --for` takes
  std::string_view target;      // name for `export --for`; empty if it has no export
  std::string_view packs;       // policies that its own loader packs as
  std::string_view shards;      // rules by which its own loader cuts micro-batches over CP ranks
  std::string_view schedules;   // of a pipeline; empty if it has none
  std::string_view degrees;     // policies whose CP degrees per micro-batch it runs, without a pipeline
  ContextFrameworks forms = 0;  // forms of context parallelism
  bool takes_loader = false;    // it trains with equipoise.loader (tests/python/test_frameworks.py)
};

// Sharding rules that need only a loader that cuts by them, if attention takes any cut.
inline constexpr std::string_view kShardsOfLoaders =
    "per-sequence per-document contiguous adaptive static-best optimal ";

constexpr bool lists(std::string_view names, std::string_view name) {
  for (std::size_t begin = 0; begin < names.size(); begin = names.find(' ', begin) + 1)
    if (names.substr(begin, names.find(' ', begin) - begin) == name) return true;
  return false;
}

constexpr std::string_view first_of(std::string_view names) {
  return names.substr(0, names.find(' '));
}

// Null: nothing is known of it.
const FrameworkRuns* framework_runs(std::string_view name);

}  // namespace equipoise
