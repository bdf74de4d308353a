#include "sim/topology/fabric.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <cassert>
#include <limits>
#include <map>
#include <string>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {
namespace {

constexpr double kBytesPerGB = 1e9;

void require(bool holds, const std::string& key, const std::string& expected, double found) {
  if (!holds)
    throw UserError("cluster.network.", key, ": expected ", expected, ", found ", std::to_string(found));
}

using RatedGraph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, double,
                                                      boost::no_property, std::uint32_t, std::uint32_t>;

}  // namespace

struct Fabric::Graph {
  RatedGraph links;  // an edge's property is its bytes per second
};

Fabric::Fabric(const FabricOptions& options) : options_(options) {
  require(options.gpus >= 1, "gpus", "at least 1", options.gpus);
  require(options.gpus_per_node >= 1, "gpus_per_node", "at least 1", options.gpus_per_node);
  const bool shares_nodes = std::min(options.gpus, options.gpus_per_node) > 1;
  require(options.nvlink_GBps > 0 || !shares_nodes, "nvlink_GBps", "a rate > 0", options.nvlink_GBps);
  require(options.nic_GBps > 0 || options.gpus <= options.gpus_per_node, "nic_GBps", "a rate > 0",
          options.nic_GBps);
  require(options.oversubscription >= 1, "oversubscription", "a factor >= 1", options.oversubscription);
  require(options.nodes_per_pod >= 1, "nodes_per_pod", "at least 1", options.nodes_per_pod);
  require(options.spines >= 1, "spines", "at least 1", options.spines);
  const int per_node = options.gpus_per_node;
  nodes_ = (options.gpus + per_node - 1) / per_node;
  leaves_ = leaf_number(options.gpus - 1) + 1;
  if (options.wiring == Wiring::rail)
    leaves_ = (nodes_ + options.nodes_per_pod - 1) / options.nodes_per_pod * per_node;

  std::vector<std::pair<Vertex, Vertex>> edges;
  std::vector<double> rates;
  const auto cable = [&](Vertex a, Vertex b, double bytes_per_second) {
    edges.emplace_back(a, b);
    edges.emplace_back(b, a);
    rates.insert(rates.end(), 2, bytes_per_second);
  };
  std::vector<int> nics_of_leaf(at(leaves_), 0);
  for (int g = 0; g < options.gpus; ++g) {
    cable(gpu(g), nvswitch(g), options.nvlink_GBps * kBytesPerGB);
    cable(gpu(g), nic(g), options.nic_GBps * kBytesPerGB);
    cable(nic(g), leaf(leaf_number(g)), options.nic_GBps * kBytesPerGB);
    ++nics_of_leaf[at(leaf_number(g))];
  }
  for (int l = 0; l < leaves_; ++l)
    for (int s = 0; s < options.spines; ++s)
      cable(leaf(l), spine(s),
            std::max(1, nics_of_leaf[at(l)]) * options.nic_GBps * kBytesPerGB / options.oversubscription /
                options.spines);
  graph_ = std::make_shared<const Graph>(
      Graph{RatedGraph(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(), rates.begin(),
                       spine(options.spines))});
}

int Fabric::leaf_number(int gpu) const {
  const int per_node = options_.gpus_per_node;
  if (options_.wiring == Wiring::rail)
    return gpu / per_node / options_.nodes_per_pod * per_node + gpu % per_node;
  return gpu / std::max(1, options_.nodes_per_pod);  // as many NICs as a rail's leaf has
}

std::size_t Fabric::links() const {
  return boost::num_edges(graph_->links);
}

Fabric::Link Fabric::link(LinkId id) const {
  const auto edge = boost::edge_from_index(id, graph_->links);
  return {boost::source(edge, graph_->links), boost::target(edge, graph_->links), graph_->links[edge]};
}

LinkId Fabric::link_between(Vertex from, Vertex to) const {
  const RatedGraph& graph = graph_->links;
  for (auto [edge, end] = boost::out_edges(from, graph); edge != end; ++edge)
    if (boost::target(*edge, graph) == to) return boost::get(boost::edge_index, graph, *edge);
  assert(false && "neighbours have a link");
  return 0;
}

std::vector<double> Fabric::capacities() const {
  std::vector<double> rates;
  for (LinkId id = 0; id < links(); ++id) rates.push_back(link(id).bytes_per_second);
  return rates;
}

std::vector<LinkId> Fabric::route(int from, int to) const {
  assert(from >= 0 && from < options_.gpus && to >= 0 && to < options_.gpus);
  std::vector<Vertex> path = {gpu(from)};
  if (from == to) return {};
  const int per_node = options_.gpus_per_node;
  if (from / per_node == to / per_node) {
    path.insert(path.end(), {nvswitch(from), gpu(to)});
  } else {
    int leaves_at = from;  // the GPU whose NIC is used
    if (options_.wiring == Wiring::rail && from % per_node != to % per_node) {
      const int on_rail = from / per_node * per_node + to % per_node;
      if (on_rail < options_.gpus) {
        leaves_at = on_rail;
        path.insert(path.end(), {nvswitch(from), gpu(on_rail)});
      }
    }
    path.insert(path.end(), {nic(leaves_at), leaf(leaf_number(leaves_at))});
    if (leaf_number(leaves_at) != leaf_number(to))
      path.insert(path.end(), {spine((from + to) % options_.spines), leaf(leaf_number(to))});
    path.insert(path.end(), {nic(to), gpu(to)});
  }
  std::vector<LinkId> route;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) route.push_back(link_between(path[i], path[i + 1]));
  return route;
}

std::vector<LinkUse> Fabric::uses(const std::vector<LinkId>& route) const {
  std::map<LinkId, std::int32_t> times;
  for (const LinkId l : route) ++times[l];
  std::vector<LinkUse> uses;
  for (const auto& [l, n] : times) uses.push_back({l, n});
  return uses;
}

std::vector<LinkUse> Fabric::ring(const std::vector<int>& gpus) const {
  std::vector<LinkId> all;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const std::vector<LinkId> hop = route(gpus[i], gpus[(i + 1) % gpus.size()]);
    all.insert(all.end(), hop.begin(), hop.end());
  }
  return uses(all);
}

double Fabric::alone(const std::vector<LinkUse>& uses) const {
  double rate = std::numeric_limits<double>::infinity();
  for (const LinkUse& use : uses) rate = std::min(rate, link(use.link).bytes_per_second / use.times);
  return rate;
}

void FairShare::share(std::span<Flow* const> flows) {
  used_.clear();
  for (const Flow* flow : flows)
    for (const LinkUse& use : flow->links) claims_[use.link] = 0;
  for (const Flow* flow : flows)
    for (const LinkUse& use : flow->links) {
      if (claims_[use.link] == 0) {
        used_.push_back(use.link);
        left_[use.link] = capacity_[use.link];
      }
      claims_[use.link] += use.times;
    }
  stopped_.assign(flows.size(), 0);

  std::size_t growing = flows.size();
  while (growing > 0) {
    // The next level at which links fill or flows reach their cap.
    double level = std::numeric_limits<double>::infinity();
    for (const LinkId link : used_)
      if (claims_[link] > 0) level = std::min(level, left_[link] / as_double(claims_[link]));
    for (std::size_t f = 0; f < flows.size(); ++f)
      if (stopped_[f] == 0) level = std::min(level, flows[f]->cap);
    for (const LinkId link : used_)
      tight_[link] = claims_[link] > 0 && left_[link] / as_double(claims_[link]) == level;
    // Flows stop at the level; what they use together is subtracted once from each link.
    for (std::size_t f = 0; f < flows.size(); ++f) {
      const auto is_tight = [&](const LinkUse& use) { return tight_[use.link] != 0; };
      if (stopped_[f] != 0 || (flows[f]->cap > level && std::ranges::none_of(flows[f]->links, is_tight)))
        continue;
      flows[f]->rate = level;
      stopped_[f] = 1;
      --growing;
      for (const LinkUse& use : flows[f]->links) given_[use.link] += use.times;
    }
    for (const LinkId link : used_) {
      if (given_[link] == 0) continue;
      left_[link] = std::max(0.0, left_[link] - level * as_double(given_[link]));
      claims_[link] -= given_[link];
      given_[link] = 0;
    }
  }
}

}  // namespace equipoise
