// The flows of one contended step, for other simulators, and what ours takes for the step:
//
//   flow_trace GPUS CONTEXT FILE
//
// prints one line of JSON: counts, CPU seconds of the step (from the op program to every op's time), of its
// flows alone, and, with a file, of every GPU's flows over all links. FILE gets the flows of every GPU over
// all links that they share, as text: links (bytes per second), routes (link times, ...), flows (start in
// seconds, route, most bytes per second, bytes, end in seconds). "-": no file.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>

#include "tests/bench/contention_job.h"
#include "tests/bench/cpu_seconds.h"

namespace equipoise {
namespace {

// The ends of flows that start at given times.
std::vector<Picoseconds> replay(const RouteTable& routes, const std::vector<StartedFlow>& flows) {
  FlowNetwork network(routes);
  std::vector<Picoseconds> ends(flows.size(), 0);
  std::size_t next = 0;
  for (;;) {
    const Picoseconds now =
        std::min(network.next_end(), next < flows.size() ? flows[next].at : FlowNetwork::kNever);
    if (now == FlowNetwork::kNever) return ends;
    while (network.next_end() == now) ends[network.pop().first] = now;
    for (; next < flows.size() && flows[next].at == now; ++next)
      network.start(flows[next].route, flows[next].cap, flows[next].limit, flows[next].alone,
                    {0, static_cast<std::uint32_t>(next), 0}, now);
    network.settle(now);
  }
}

void write(const std::string& file, const RouteTable& routes, const std::vector<StartedFlow>& flows,
           const std::vector<Picoseconds>& ends) {
  std::ofstream out(file);
  out << std::setprecision(17) << routes.capacities.size() << ' ' << routes.routes() << ' ' << flows.size()
      << '\n';
  for (const double capacity : routes.capacities) out << capacity << '\n';
  for (RouteId r = 0; r < routes.routes(); ++r) {
    out << routes.of(r).size();
    for (const LinkUse& use : routes.of(r)) out << ' ' << use.link << ' ' << use.times;
    out << '\n';
  }
  for (std::size_t f = 0; f < flows.size(); ++f)
    out << to_seconds(flows[f].at) << ' ' << flows[f].route << ' ' << std::min(flows[f].cap, flows[f].limit)
        << ' ' << flows[f].cap * to_seconds(flows[f].alone) << ' ' << to_seconds(ends[f]) << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

struct Traced {
  NetworkRoutes routes;
  ContendedTimes times;
  double cpu = 0;
};

Traced trace(const ContentionJob& job, bool fold, bool reduce) {
  const OpProgram program = StepExpander(job.costs, job.shard, job.options, fold).expand(job.step);
  const OpResult alone = run(program, {});
  const double before = cpu_seconds();
  ContendedOptions how;
  how.keep_flows = true;
  NetworkRoutes routes(program, job.grid, job.fabric, reduce);
  ContendedTimes times = run_contended(program, {}, alone, routes, how);
  Traced traced{std::move(routes), std::move(times), cpu_seconds() - before};
  std::stable_sort(traced.times.flows.begin(), traced.times.flows.end(),
                   [](const StartedFlow& a, const StartedFlow& b) { return a.at < b.at; });
  return traced;
}

// CPU seconds that our solver takes for flows that start when they did.
double replay_cpu(const Traced& traced) {
  const double before = cpu_seconds();
  replay(traced.routes.table(), traced.times.flows);
  return cpu_seconds() - before;
}

void show(int gpus, int context, const std::string& file) {
  const ContentionJob job(gpus, context);
  const Traced folded = trace(job, true, true);
  const double flows_cpu = replay_cpu(folded);
  double all_cpu = 0;
  if (file != "-") {
    const Traced all = trace(job, false, false);
    if (all.times.result.makespan != folded.times.result.makespan)
      throw std::logic_error("folding TP changed the step");
    all_cpu = replay_cpu(all);
    write(file, all.routes.table(), all.times.flows, replay(all.routes.table(), all.times.flows));
  }
  const FlowNetwork::Counts& counts = folded.times.counts;
  std::printf(
      "{\"gpus\": %d, \"flows\": %lld, \"links\": %zu, \"routes\": %zu, \"most_at_once\": %zu, "
      "\"solves\": %lld, \"flows_per_solve\": %.2f, \"step_seconds\": %.6f, \"step_cpu\": %.4f, "
      "\"flows_cpu\": %.4f, \"all_flows_cpu\": %.4f}\n",
      gpus, static_cast<long long>(counts.flows), folded.routes.table().capacities.size(),
      folded.routes.table().routes(), counts.most_flows, static_cast<long long>(counts.solves),
      static_cast<double>(counts.solved_flows) / static_cast<double>(counts.solves),
      to_seconds(folded.times.result.makespan), folded.cpu, flows_cpu, all_cpu);
}

}  // namespace
}  // namespace equipoise

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "flow_trace GPUS CONTEXT FILE (- for none)\n");
    return 2;
  }
  equipoise::show(std::atoi(arguments[1]), std::atoi(arguments[2]), arguments[3]);
}
