#include "sim/step/part_order.h"

namespace equipoise {
namespace {

// The parts in backward order, with their places among the buckets and layers from the last to the first.
std::vector<OrderedPart> parts_of(const std::vector<ModelPart>& buckets) {
  std::vector<OrderedPart> parts;
  int layer = static_cast<int>(std::count_if(buckets.begin(), buckets.end(), is_layer));
  for (const ModelPart part : buckets) {
    OrderedPart& added = parts.emplace_back();
    added.part = part;
    if (is_layer(part)) added.first = --layer;
    added.bucket = static_cast<int>(parts.size()) - 1;
  }
  return parts;
}

// Equal layers in a row become one run.
std::vector<OrderedPart> runs_of(const std::vector<OrderedPart>& parts) {
  std::vector<OrderedPart> runs;
  for (const OrderedPart& part : parts) {
    if (is_layer(part.part) && !runs.empty() && runs.back().part == part.part) {
      ++runs.back().layers;
      runs.back().first = std::min(runs.back().first, part.first);
      continue;
    }
    runs.push_back({part.part, 1, part.first, part.bucket, {}, false});
  }
  return runs;
}

PartOrder order_of(std::vector<OrderedPart> parts) {
  PartOrder order;
  order.runs = runs_of(parts);
  order.parts = std::move(parts);
  return order;
}

// Under each part the parameters of the next are gathered; nothing follows the last.
PartOrder forward_order(std::vector<OrderedPart> parts, bool gathers) {
  std::reverse(parts.begin(), parts.end());
  PartOrder order = order_of(std::move(parts));
  if (!gathers || order.parts.empty()) return order;
  order.gathered_first = order.parts.front().part;
  for (std::size_t i = 0; i + 1 < order.parts.size(); ++i) {
    order.parts[i].gathers = order.parts[i + 1].part;
    order.parts[i].waits = true;
  }
  return order;
}

// A backward does the same in reverse, and each part also waits for the reductions of earlier parts.
PartOrder backward_order(std::vector<OrderedPart> parts, bool gathers) {
  PartOrder order = order_of(std::move(parts));
  if (!gathers || order.parts.empty()) return order;
  order.gathered_first = order.parts.front().part;
  for (std::size_t i = 0; i < order.parts.size(); ++i) {
    order.parts[i].waits = true;
    if (i + 1 < order.parts.size() && order.parts[i + 1].part != ModelPart::embedding)
      order.parts[i].gathers = order.parts[i + 1].part;
  }
  return order;
}

// Runs the layers, then the ends, whose weight gradients the input half has already made.
PartOrder weights_order(std::vector<OrderedPart> parts, bool gathers) {
  std::stable_partition(parts.begin(), parts.end(), [](const OrderedPart& p) { return is_layer(p.part); });
  PartOrder order = order_of(std::move(parts));
  for (OrderedPart& part : order.parts) part.waits = gathers && is_layer(part.part);
  return order;
}

}  // namespace

PartOrders::PartOrders(const ModelShape& model, const Layout& layout)
    : buckets_(backward_parts(model, layout, model.training.frozen_layers)), recomputed_(model, layout) {
  const bool gathers = gathers_each_micro_batch(layout);
  const std::vector<std::vector<ModelPart>> all = backward_parts(model, layout);
  for (std::size_t v = 0; v < all.size(); ++v) {
    forward_.push_back(forward_order(parts_of(all[v]), gathers));
    backward_.push_back(backward_order(parts_of(buckets_[v]), gathers));
    weights_.push_back(weights_order(parts_of(buckets_[v]), gathers));
    const auto kind = std::ranges::find_if(kinds_, [&](const Kind& k) {
      return all[at(k.virtual_stage)] == all[v] && buckets_[at(k.virtual_stage)] == buckets_[v];
    });
    kind_of_stage_.push_back(at(kind - kinds_.begin()));
    if (kind == kinds_.end()) kinds_.push_back({static_cast<int>(kind_of_stage_.size()) - 1, 0});
    ++kinds_[kind_of_stage_.back()].count;
  }
}

}  // namespace equipoise
