#include "sim/engine/op/contended_run.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>

#include "policies/base/index.h"
#include "sim/engine/op/contended_part.h"

namespace equipoise {
namespace {

using contended::Part;
using contended::State;

std::vector<std::unique_ptr<Part>> make_parts(State& state) {
  const std::vector<int>& part_of = state.routes.parts();
  std::vector<std::vector<std::size_t>> lanes(part_of.size());
  for (std::size_t l = 0; l < part_of.size(); ++l) lanes[at(part_of[l])].push_back(l);
  std::vector<std::unique_ptr<Part>> parts;
  for (auto& of_part : lanes)
    if (!of_part.empty()) parts.push_back(std::make_unique<Part>(state, std::move(of_part)));
  return parts;
}

// Each by itself, over the threads. The first fault by lane number is the one reported.
void run_apart(std::vector<std::unique_ptr<Part>>& parts, int threads) {
  std::vector<std::exception_ptr> faults(parts.size());
  std::atomic<std::size_t> taken{0};
  const auto work = [&](bool reports) {
    for (std::size_t i = taken++; i < parts.size(); i = taken++) {
      try {
        parts[i]->begin();
        parts[i]->run(reports);
      } catch (...) {
        faults[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted = std::min(parts.size(), static_cast<std::size_t>(std::max(1, threads)));
  for (std::size_t t = 1; t < wanted; ++t) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
}

}  // namespace

ContendedTimes run_contended(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                             const NetworkRoutes& routes, const ContendedOptions& how) {
  State state(program, options, alone, routes, how);
  ContendedTimes times;
  std::vector<std::unique_ptr<Part>> parts = make_parts(state);
  if (!parts.empty()) {
    run_apart(parts, how.threads);
    Part& all = *parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      all.absorb(*parts[i]);
      parts[i].reset();
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
