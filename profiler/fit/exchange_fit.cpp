// Fits exchanges of tokens between experts. What is left out at a time: messages of one size, or all rows of
// one number of GPUs.
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/fit/table_fits.h"

namespace equipoise {
namespace {

constexpr double kMostExchangeBytes = 1e13;
constexpr double kMostExchangeNodes = 65536;
constexpr double kLargeExchange = 1024 * 1024;

struct GatheredExchange {
  SampleTimes times;
  ErrorGroup large{"above 1 MiB", {}};
  ErrorGroup small{"up to 1 MiB", {}};
  Covered bytes;
  Covered nodes;
};

GatheredExchange gather(std::span<const ExchangeSample* const> samples, FitProblem& problem) {
  GatheredExchange all;
  for (const ExchangeSample* sample : samples) {
    const double bytes = sample->load.node_bytes + sample->load.network_bytes;
    problem.shapes.push_back(sample->shape);
    all.times.add(sample->labels, sample->seconds);
    all.large.holds.push_back(bytes > kLargeExchange);
    all.small.holds.push_back(bytes <= kLargeExchange);
    all.bytes.add(bytes);
    all.nodes.add(std::ceil(static_cast<double>(sample->group.ranks) / sample->group.ranks_per_node));
  }
  return all;
}

nlohmann::json table_of(const char* form, nlohmann::json parameters, const GatheredExchange& all,
                        const GroupFit& fit, Provenance kind) {
  return table_json({form,
                     std::move(parameters),
                     {{"bytes", range_json(all.bytes, 0, kMostExchangeBytes)},
                      {"nodes", range_json(all.nodes, 1, kMostExchangeNodes)}},
                     {all.large, all.small}},
                    fit, all.times, kind);
}

MessageParameters messages_from(std::span<const double> p) {
  return {p[0], p[1]};
}

ForwardingParameters forwarding_from(std::span<const double> p) {
  return {p[0], p[1], p[2]};
}

}  // namespace

nlohmann::json fit_exchange(std::span<const ExchangeSample* const> samples, LinkRates links,
                            Provenance kind) {
  FitProblem problem;
  const GatheredExchange all = gather(samples, problem);
  if (samples.front()->streams) {
    problem.parameters = {{"message_us", 0.5, 1}, {"network_efficiency", 0.8, 0.5}};
    problem.log_error = [&](std::span<const double> p, std::size_t i) {
      const double predicted = messages_seconds(messages_from(p), samples[i]->load, 1, links.nic);
      return std::log(predicted / samples[i]->seconds);
    };
    const GroupFit fit = fit_group(problem);
    nlohmann::json table = table_of(kMessagesNic, to_json(messages_from(kept(fit))), all, fit, kind);
    table["fitted_at_nic_GBps"] = links.nic;
    return table;
  }
  // Starts: a write over NVLink between two GPUs reaches 371 to 377 of 450 GB/s (github.com/NVIDIA/nccl,
  // issue 1264), a NIC of 400 Gbit/s 46 to 48 of 50 (github.com/NVIDIA/nccl-tests, issue 290).
  problem.parameters = {
      {"launch_us", 20, 1}, {"nvlink_efficiency", 0.83, 0.2}, {"network_efficiency", 0.94, 0.1}};
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const double predicted = forwarding_seconds(forwarding_from(p), samples[i]->load, links);
    return std::log(predicted / samples[i]->seconds);
  };
  const GroupFit fit = fit_group(problem);
  nlohmann::json table = table_of(kForwarding, to_json(forwarding_from(kept(fit))), all, fit, kind);
  table["fitted_at_nvlink_GBps"] = links.nvlink;
  table["fitted_at_nic_GBps"] = links.nic;
  return table;
}

}  // namespace equipoise
