#include "policies/micro_batch_order.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/length_order.h"

namespace equipoise {
namespace {

double workload_of(const MicroBatch& micro_batch, const Workload& workload) {
  double sum = 0;
  for (const double w : work_of(micro_batch.slices, workload)) sum += w;
  return sum;
}

std::vector<std::uint32_t> bell(const std::vector<std::uint32_t>& descending) {
  std::vector<std::uint32_t> order;
  order.reserve(descending.size());
  const std::size_t even = (descending.size() + 1) / 2;
  for (std::size_t i = even; i-- > 0;) order.push_back(descending[2 * i]);
  for (std::size_t i = 1; i < descending.size(); i += 2) order.push_back(descending[i]);
  return order;
}

void order_lane(Lane& lane, Order order, const Workload& workload) {
  std::vector<std::size_t> places;  // of the micro-batches that may move
  std::vector<double> work;
  for (std::size_t i = 0; i < lane.micro_batches.size(); ++i) {
    if (lane.micro_batches[i].chunk.count > 1) continue;
    places.push_back(i);
    work.push_back(workload_of(lane.micro_batches[i], workload));
  }
  std::vector<std::uint32_t> ranks = heaviest_first(work);
  if (order == Order::bell) ranks = bell(ranks);
  std::vector<MicroBatch> moved;
  moved.reserve(ranks.size());
  for (const std::uint32_t r : ranks) moved.push_back(std::move(lane.micro_batches[places[r]]));
  for (std::size_t i = 0; i < places.size(); ++i) lane.micro_batches[places[i]] = std::move(moved[i]);
}

}  // namespace

void order_micro_batches(Plan& plan, Order order, const Workload& workload) {
  if (order == Order::as_packed) return;
  for (Step& step : plan.steps) {
    for (Lane& lane : step.lanes) order_lane(lane, order, workload);
  }
}

}  // namespace equipoise
