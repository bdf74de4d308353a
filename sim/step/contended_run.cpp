#include "sim/step/contended_run.h"

#include <memory>
#include <utility>

#include "policies/base/parallel.h"
#include "sim/step/contended_state.h"
#include "sim/step/lane_set.h"

namespace equipoise {
namespace {

using contended::LaneSet;
using contended::State;

std::vector<std::unique_ptr<LaneSet>> make_lane_sets(State& state) {
  const std::vector<int>& set_of = state.routes.lane_sets();
  std::vector<std::vector<std::size_t>> lanes(set_of.size());
  for (std::size_t l = 0; l < set_of.size(); ++l) lanes[at(set_of[l])].push_back(l);
  std::vector<std::unique_ptr<LaneSet>> sets;
  for (auto& of_set : lanes)
    if (!of_set.empty()) sets.push_back(std::make_unique<LaneSet>(state, std::move(of_set)));
  return sets;
}

}  // namespace

ContendedTimes run_contended(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                             const NetworkRoutes& routes, const ContendedOptions& how) {
  State state(program, options, alone, routes, how);
  ContendedTimes times;
  std::vector<std::unique_ptr<LaneSet>> sets = make_lane_sets(state);
  if (!sets.empty()) {
    parallel_for(how.threads, sets.size(), [&](int worker, std::size_t i) {
      sets[i]->begin();
      sets[i]->run(worker == 0);  // reports
    });
    LaneSet& all = *sets.front();
    for (std::size_t i = 1; i < sets.size(); ++i) {
      all.absorb(*sets[i]);
      sets[i].reset();
    }
    all.join_ends();
    all.run(true);
    times.exposed = std::move(all.exposed());
    times.flows = std::move(all.flows());
    times.counts = all.network().counts();
  }
  times.result = state.take_result();
  return times;
}

}  // namespace equipoise
