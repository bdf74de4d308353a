#include "sim/engine/stage/stage_walk.h"

#include <algorithm>

namespace equipoise {
namespace {

// In backward order: places among the buckets, layers from the last to the first.
std::vector<WalkPart> parts_of(const std::vector<ModelPart>& buckets) {
  std::vector<WalkPart> parts;
  int layer = static_cast<int>(std::count_if(buckets.begin(), buckets.end(), is_layer));
  for (const ModelPart part : buckets) {
    WalkPart& added = parts.emplace_back();
    added.part = part;
    if (is_layer(part)) added.first = --layer;
    added.bucket = static_cast<int>(parts.size()) - 1;
  }
  return parts;
}

// Equal layers in a row become one run.
std::vector<WalkPart> runs_of(const std::vector<WalkPart>& parts) {
  std::vector<WalkPart> runs;
  for (const WalkPart& part : parts) {
    if (is_layer(part.part) && !runs.empty() && runs.back().part == part.part) {
      ++runs.back().layers;
      runs.back().first = std::min(runs.back().first, part.first);
      continue;
    }
    runs.push_back({part.part, 1, part.first, part.bucket, {}, false});
  }
  return runs;
}

StageWalk walk_of(std::vector<WalkPart> parts) {
  StageWalk walk;
  walk.runs = runs_of(parts);
  walk.parts = std::move(parts);
  return walk;
}

// What is gathered under each part is the next one; the last has nothing to wait for.
StageWalk forward_walk(std::vector<WalkPart> parts, bool gathers) {
  std::reverse(parts.begin(), parts.end());
  StageWalk walk = walk_of(std::move(parts));
  if (!gathers || walk.parts.empty()) return walk;
  walk.gathered_first = walk.parts.front().part;
  for (std::size_t i = 0; i + 1 < walk.parts.size(); ++i) {
    walk.parts[i].gathers = walk.parts[i + 1].part;
    walk.parts[i].waits = true;
  }
  return walk;
}

// The same the other way; each part also waits for the reductions of the ones before it.
StageWalk backward_walk(std::vector<WalkPart> parts, bool gathers) {
  StageWalk walk = walk_of(std::move(parts));
  if (!gathers || walk.parts.empty()) return walk;
  walk.gathered_first = walk.parts.front().part;
  for (std::size_t i = 0; i < walk.parts.size(); ++i) {
    walk.parts[i].waits = true;
    if (i + 1 < walk.parts.size() && walk.parts[i + 1].part != ModelPart::embedding)
      walk.parts[i].gathers = walk.parts[i + 1].part;
  }
  return walk;
}

// The layers; then the ends, whose weight gradients the input half has made.
StageWalk weights_walk(std::vector<WalkPart> parts, bool gathers) {
  std::stable_partition(parts.begin(), parts.end(), [](const WalkPart& p) { return is_layer(p.part); });
  StageWalk walk = walk_of(std::move(parts));
  for (WalkPart& part : walk.parts) part.waits = gathers && is_layer(part.part);
  return walk;
}

}  // namespace

StageWalks::StageWalks(const ModelShape& model, const Layout& layout)
    : buckets_(backward_parts(model, layout)), recomputed_(model, layout) {
  const bool gathers = gathers_each_micro_batch(layout);
  for (const std::vector<ModelPart>& buckets : buckets_) {
    const std::vector<WalkPart> parts = parts_of(buckets);
    forward_.push_back(forward_walk(parts, gathers));
    backward_.push_back(backward_walk(parts, gathers));
    weights_.push_back(weights_walk(parts, gathers));
    const auto kind = std::find_if(kinds_.begin(), kinds_.end(),
                                   [&](const Kind& k) { return buckets_[at(k.virtual_stage)] == buckets; });
    kind_of_stage_.push_back(static_cast<std::size_t>(kind - kinds_.begin()));
    if (kind == kinds_.end()) kinds_.push_back({static_cast<int>(kind_of_stage_.size()) - 1, 0});
    ++kinds_[kind_of_stage_.back()].count;
  }
}

}  // namespace equipoise
