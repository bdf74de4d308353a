#include "profiler/fit/collective_fit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {
namespace {

NodeParameters node_from(std::span<const double> p, double switch_from_ranks) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], switch_from_ranks, p[8], p[9], p[10], p[11], p[12]};
}

NetworkParameters network_from(std::span<const double> p) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]};
}

struct Gathered {
  SampleTimes times;
  CoveredTransfers covered;
  double fastest_GBps = 0;
  double fewest_us = 1e300;
};

Gathered gather(std::span<const CollectiveSample* const> samples, FitProblem& problem) {
  Gathered all;
  for (const CollectiveSample* sample : samples) {
    const double nodes = nodes_of(sample->group);
    problem.shapes.push_back(
        {sample->bytes, static_cast<double>(sample->group.ranks), nodes, static_cast<double>(sample->kind)});
    all.times.add(sample->labels, sample->seconds);
    all.covered.add(sample->bytes, nodes);
    all.fewest_us = std::min(all.fewest_us, sample->seconds * 1e6);
    all.fastest_GBps =
        std::max(all.fastest_GBps,
                 sample->bytes * bus_factor(sample->kind, sample->group.ranks) * 1e-9 / sample->seconds);
  }
  return all;
}

FittedTable transfer_table(const char* form, TableParameters parameters, const CoveredTransfers& covered,
                           double least_nodes, const GroupFit& fit, const SampleTimes& times,
                           Provenance kind) {
  return fitted_table(
      {form, std::move(parameters), covered.ranges(least_nodes), {covered.large, covered.small}}, fit, times,
      kind);
}

// Sizes an octave apart, from the least to the most bytes that the samples' busiest links carry.
std::vector<double> octaves(std::span<const CollectiveSample* const> samples) {
  Covered link;
  for (const CollectiveSample* sample : samples)
    link.add(sample->bytes * bus_factor(sample->kind, sample->group.ranks));
  std::vector<double> sizes{link.low};
  while (sizes.back() < link.high) sizes.push_back(2 * sizes.back());
  return sizes;
}

// The fitted vector is the first time, what each further size adds to it, and what each further rank adds, so
// that times never fall with size. For sizes without samples the prior shares the growth in proportion to
// bytes.
SizeTable table_from(const std::vector<double>& sizes, std::span<const double> p) {
  SizeTable table{sizes, {}, p.back()};
  double us = 0;
  for (const double more : p.first(sizes.size())) table.us.push_back(us += more);
  return table;
}

SizeTable rounded_table(SizeTable table) {
  for (std::vector<double>* numbers : {&table.bytes, &table.us})
    for (double& number : *numbers) number = significant(number);
  return table;
}

MessageParameters messages_from(std::span<const double> p) {
  return {p[0], p[1]};
}

ForwardingParameters forwarding_from(std::span<const double> p) {
  return {p[0], p[1], p[2]};
}

}  // namespace

FittedTable fit_size_table(std::span<const CollectiveSample* const> samples) {
  constexpr double kTrust = 1.5;  // for a start made of the shortest time and the highest bandwidth
  FitProblem problem;
  const Gathered all = gather(samples, problem);
  const std::vector<double> sizes = octaves(samples);
  double before = 0;
  for (const double size : sizes) {
    const double start_us = (before == 0 ? all.fewest_us : 0) + 1e-3 * (size - before) / all.fastest_GBps;
    problem.parameters.push_back({"us up to " + std::to_string(size), start_us, kTrust});
    before = size;
  }
  problem.parameters.push_back({"rank_us", all.fewest_us, kTrust});
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const CollectiveSample& sample = *samples[i];
    return std::log(table_seconds(table_from(sizes, p), sample.kind, sample.bytes, sample.group.ranks) /
                    sample.seconds);
  };
  const GroupFit fit = fit_group(problem);
  return transfer_table(kSizeTable, rounded_table(table_from(sizes, rounded_parameters(fit))), all.covered, 0,
                        fit, all.times, Provenance::measured);
}

FittedTable fit_node_collective(std::span<const CollectiveSample* const> samples, double switch_from_ranks,
                                Provenance kind) {
  FitProblem problem;
  const Gathered all = gather(samples, problem);
  const auto switched = [&](const CollectiveSample* sample) {
    return sample->kind == Collective::all_reduce && switch_from_ranks > 0 &&
           sample->group.ranks >= switch_from_ranks;
  };
  const bool by_switch = std::ranges::any_of(samples, switched);
  // The few rows of send_recv cannot separate two protocols.
  const bool two = samples.front()->kind != Collective::send_recv;
  const double ring =
      by_switch && !std::ranges::all_of(samples, switched) ? all.fastest_GBps * 0.8 : all.fastest_GBps;
  problem.parameters = {{"launch_us", 0.5 * all.fewest_us, 1},
                        {"rank_us", 1, 1},
                        {"ramp_us", two ? 10.0 : 20.0, 1.5},
                        {"ramp_rank_us", two ? 0.5 : 4.0, 1.5},
                        {"ramp_MB", two ? 50.0 : 100.0, 1},
                        {"pair_loss", 0.05, 1},
                        {"bus_GBps", ring, 0.5},
                        {"switch_bus_GBps", by_switch ? all.fastest_GBps : 0, 0.5},
                        {"message_us", two ? 0.3 * all.fewest_us : 0, 1},
                        {"message_KB", two ? 10.0 : 0.0, 1},
                        {"short_GBps", two ? 0.5 * all.fastest_GBps : 0, 0.5},
                        {"short_pair_loss", two ? 0.5 : 0.0, 1},
                        {"long_us", two ? 30.0 : 0.0, 1}};
  const double from_ranks = by_switch ? switch_from_ranks : 0;
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const CollectiveSample& sample = *samples[i];
    return std::log(node_seconds(node_from(p, from_ranks), sample.kind, sample.bytes, sample.group.ranks) /
                    sample.seconds);
  };
  const GroupFit fit = fit_group(problem);
  return transfer_table("latency-ramp-bus", node_from(rounded_parameters(fit), from_ranks), all.covered, 0,
                        fit, all.times, kind);
}

FittedTable fit_network(std::span<const CollectiveSample* const> samples,
                        std::span<const NodeParameters> node, double nic_GBps, Provenance kind) {
  FitProblem problem;
  const Gathered all = gather(samples, problem);
  // Latencies start at those of the shortest send_recv and of the shortest other collective.
  double pair_us = 1e300;
  double group_us = 1e300;
  for (const CollectiveSample* sample : samples) {
    double& shortest = sample->kind == Collective::send_recv ? pair_us : group_us;
    shortest = std::min(shortest, sample->seconds * 1e6);
  }
  if (pair_us > 1e200) pair_us = 0.3 * group_us;
  if (group_us > 1e200) group_us = 3 * pair_us;
  problem.parameters = {{"launch_us", 0.7 * group_us, 0.5}, {"step_us", 0.2 * group_us, 0.5},
                        {"pair_launch_us", pair_us, 0.5},   {"ramp_us", 100, 1},
                        {"reduce_ramp_us", 300, 1},         {"ramp_MB", 4, 1.5},
                        {"efficiency", 0.85, 0.2},          {"pair_efficiency", 0.75, 0.2}};
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const CollectiveSample& sample = *samples[i];
    const double predicted = network_seconds(network_from(p), node[at(sample.kind)], sample.kind,
                                             sample.bytes, sample.group, nic_GBps);
    return std::log(predicted / sample.seconds);
  };
  const GroupFit fit = fit_group(problem);
  FittedTable table = transfer_table("steps-ramp-nic", network_from(rounded_parameters(fit)), all.covered, 2,
                                     fit, all.times, kind);
  table.fitted_at.nic = nic_GBps;
  return table;
}

// Message streams hold out one size at a time; DeepEP's kernels hold out all rows of one number of GPUs.
FittedTable fit_exchange(std::span<const ExchangeSample* const> samples, LinkRates links, Provenance kind) {
  FitProblem problem;
  SampleTimes times;
  CoveredTransfers covered;
  for (const ExchangeSample* sample : samples) {
    problem.shapes.push_back(sample->shape);
    times.add(sample->labels, sample->seconds);
    covered.add(sample->load.node_bytes + sample->load.network_bytes, nodes_of(sample->group));
  }
  if (samples.front()->streams) {
    problem.parameters = {{"message_us", 0.5, 1}, {"network_efficiency", 0.8, 0.5}};
    problem.log_error = [&](std::span<const double> p, std::size_t i) {
      const double predicted = messages_seconds(messages_from(p), samples[i]->load, 1, links.nic);
      return std::log(predicted / samples[i]->seconds);
    };
    const GroupFit fit = fit_group(problem);
    FittedTable table =
        transfer_table(kMessagesNic, messages_from(rounded_parameters(fit)), covered, 1, fit, times, kind);
    table.fitted_at.nic = links.nic;
    return table;
  }
  // The search starts at known rates. A write over NVLink between two GPUs reaches 371 to 377 of 450 GB/s
  // (github.com/NVIDIA/nccl, issue 1264), a NIC of 400 Gbit/s 46 to 48 of 50 (github.com/NVIDIA/nccl-tests,
  // issue 290).
  problem.parameters = {
      {"launch_us", 20, 1}, {"nvlink_efficiency", 0.83, 0.2}, {"network_efficiency", 0.94, 0.1}};
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const double predicted = forwarding_seconds(forwarding_from(p), samples[i]->load, links);
    return std::log(predicted / samples[i]->seconds);
  };
  const GroupFit fit = fit_group(problem);
  FittedTable table =
      transfer_table(kForwarding, forwarding_from(rounded_parameters(fit)), covered, 1, fit, times, kind);
  table.fitted_at = links;
  return table;
}

}  // namespace equipoise
