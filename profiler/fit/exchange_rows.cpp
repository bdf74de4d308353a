#include "profiler/fit/exchange_rows.h"

#include <string_view>

namespace equipoise {
namespace {

constexpr double kHidden = 7168;
constexpr double kDispatchBytes = 1 + 4.0 / 128;  // of an element: FP8 and its share of a scale
constexpr double kCombineBytes = 2;
constexpr double kNormalTokens = 4096;
constexpr double kLowLatencyTokens = 128;
constexpr int kExperts = 256;
constexpr int kActive = 8;
constexpr int kNodesOfToken = 4;

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ExchangeSample message_stream(double bytes, double GBps) {
  ExchangeSample sample;
  sample.load = {0, bytes, 1};
  sample.shape = {bytes};
  sample.seconds = GBps > 0 ? bytes * 1e-9 / GBps : 0;
  return sample;
}

ExchangeSample deepep_normal(GroupShape group, double element_bytes, double GBps) {
  const double bytes = kNormalTokens * kHidden * element_bytes;
  const RoutedToken token =
      routed_token({kExperts, kActive, group, static_cast<int>(nodes_of(group)), kNodesOfToken});
  ExchangeSample sample;
  sample.load = forwarded_load(token, group, bytes);
  const double counted = bytes * (group.ranks > group.ranks_per_node ? token.nodes : token.ranks);
  sample.seconds = GBps > 0 ? counted * 1e-9 / GBps : 0;
  return sample;
}

ExchangeSample deepep_low_latency(GroupShape group, double element_bytes, double seconds) {
  ExchangeSample sample;
  sample.load = direct_load(routed_token({kExperts, kActive, group}), group,
                            kLowLatencyTokens * kHidden * element_bytes);
  sample.seconds = seconds;
  return sample;
}

}  // namespace

std::optional<ExchangeSample> exchange_row(const CsvTable& table, std::size_t row, std::string& reason) {
  const std::string_view op = table.text(row, "op");
  const bool messages = has(op, "point-to-point RDMA");
  const bool low_latency = has(op, "low latency");
  if (!has(op, "alltoall") || !(messages || low_latency || has(op, "EP "))) return std::nullopt;
  const bool dispatch = has(op, "dispatch");
  if (!messages && !dispatch && !has(op, "combine")) {
    reason = "neither dispatch nor combine: " + std::string(op);
    return std::nullopt;
  }
  GroupShape group;
  group.ranks = static_cast<int>(count_cell(table, row, "n_gpus", 0));
  group.ranks_per_node = static_cast<int>(count_cell(table, row, "gpus_per_node", 0));
  const double bytes = table.number(row, "size_bytes").value_or(0);
  if (group.ranks < 2 || group.ranks_per_node < 1 || (messages && !(bytes > 0))) {
    reason = "no size or no group";
    return std::nullopt;
  }
  const double rate = table.number(row, "algbw_GBps").value_or(0);
  const double element_bytes = dispatch ? kDispatchBytes : kCombineBytes;
  ExchangeSample sample = messages      ? message_stream(bytes, rate)
                          : low_latency ? deepep_low_latency(group, element_bytes,
                                                             1e-6 * table.number(row, "time_us").value_or(0))
                                        : deepep_normal(group, element_bytes, rate);
  sample.group = group;
  sample.streams = messages;
  if (!messages) sample.shape = {static_cast<double>(group.ranks)};
  for (std::size_t i = 0; i < table.header().size(); ++i)
    sample.labels[table.header()[i]] = table.row(row)[i];
  return sample;
}

}  // namespace equipoise
