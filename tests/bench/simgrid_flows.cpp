// The flows of a file of flow_trace in SimGrid's flow model (CM02: max-min fair rates, no latencies, no
// TCP effects): built and run by against_simgrid.py, not by CMake.
//
//   simgrid_flows FILE
//
// prints one line of JSON: the largest and the mean difference of a flow's completion time from the file's,
// as a share of the time it takes, and CPU seconds of the simulation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cpu_seconds.h"

namespace sg = simgrid::s4u;

namespace {

struct Flow {
  double start = 0;
  std::size_t route = 0;
  double rate = 0, bytes = 0, end = 0;
  std::size_t pair = 0;  // of hosts
};

}  // namespace

int main(int count, char** arguments) {
  sg::Engine engine(&count, arguments);
  for (const char* option : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0",
                             "network/optim:Lazy", "maxmin/precision:1e-9"})
    sg::Engine::set_config(option);
  if (count != 2) return 2;
  std::ifstream in(arguments[1]);
  std::size_t links = 0, routes = 0, flows = 0;
  in >> links >> routes >> flows;
  auto* zone = sg::create_full_zone("net");
  std::vector<sg::Link*> link(links);
  for (std::size_t l = 0; l < links; ++l) {
    double capacity = 0;
    in >> capacity;
    link[l] = zone->create_link("l" + std::to_string(l), capacity)->set_latency(0);
    link[l]->seal();
  }
  std::vector<std::vector<sg::LinkInRoute>> path(routes);
  for (auto& of_route : path) {
    std::size_t uses = 0;
    in >> uses;
    for (std::size_t u = 0; u < uses; ++u) {
      std::size_t number = 0;
      int times = 0;
      in >> number >> times;
      for (int t = 0; t < times; ++t) of_route.emplace_back(link[number]);
    }
  }
  std::vector<Flow> all(flows);
  for (Flow& f : all) in >> f.start >> f.route >> f.rate >> f.bytes >> f.end;
  if (!in) return 2;

  // A flow's own pace is a link that only flows of this route and pace cross: SimGrid 3.32 takes no notice of
  // Comm::set_rate between hosts. Every route with such a link is that between two hosts of its own; n hosts
  // have n (n - 1) / 2 pairs.
  std::map<std::pair<std::size_t, double>, std::size_t> paced;
  for (Flow& f : all) f.pair = paced.try_emplace({f.route, f.rate}, paced.size()).first->second;
  std::size_t hosts = 2;
  while (hosts * (hosts - 1) / 2 < paced.size()) ++hosts;
  std::vector<sg::Host*> host(hosts);
  for (std::size_t h = 0; h < hosts; ++h) {
    host[h] = zone->create_host("h" + std::to_string(h), 1e9);
    host[h]->seal();
  }
  std::vector<std::pair<std::size_t, std::size_t>> ends_of;
  for (std::size_t a = 0; a < hosts; ++a)
    for (std::size_t b = a + 1; b < hosts && ends_of.size() < paced.size(); ++b) ends_of.emplace_back(a, b);
  for (const auto& [key, pair] : paced) {
    // Two flows of one route at one time must not share the link of their pace.
    sg::Link* pace = zone->create_link("p" + std::to_string(pair), key.second);
    pace->set_latency(0)->set_sharing_policy(sg::Link::SharingPolicy::FATPIPE)->seal();
    std::vector<sg::LinkInRoute> whole = path[key.first];
    whole.emplace_back(pace);
    zone->add_route(host[ends_of[pair].first]->get_netpoint(), host[ends_of[pair].second]->get_netpoint(),
                    nullptr, nullptr, whole, false);
  }
  zone->seal();

  std::vector<double> finish(flows, 0);
  sg::Actor::create("driver", host[0], [&] {
    std::vector<sg::CommPtr> sent;
    for (const Flow& f : all) {
      if (f.start > sg::Engine::get_clock()) sg::this_actor::sleep_until(f.start);
      sg::CommPtr comm = sg::Comm::sendto_init();  // it starts when it has both hosts
      comm->set_payload_size(static_cast<std::uint64_t>(f.bytes));
      comm->set_source(host[ends_of[f.pair].first]);
      comm->set_destination(host[ends_of[f.pair].second]);
      sent.push_back(comm);
    }
    for (const sg::CommPtr& comm : sent) comm->wait();
    for (std::size_t i = 0; i < flows; ++i) finish[i] = sent[i]->get_finish_time();
  });
  const double before = cpu_seconds();
  engine.run();
  const double cpu = cpu_seconds() - before;
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < flows; ++i) {
    const double off = std::abs(finish[i] - all[i].end) / (all[i].end - all[i].start);
    worst = std::max(worst, off);
    sum += off;
  }
  std::printf("{\"flows\": %zu, \"worst\": %.3e, \"mean\": %.3e, \"cpu\": %.4f}\n", flows, worst,
              sum / static_cast<double>(flows), cpu);
  return 0;
}
