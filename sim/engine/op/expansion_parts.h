// Where the expander puts the blocks of a lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/engine/stage/stage_walk.h"

namespace equipoise::expansion {

// The blocks of one micro-batch, in this order in OpLane::blocks; by layer kind where there are several.
enum Part : std::size_t {
  kEmbedForward,
  kEmbedBackward,
  kHeadForward,
  kHeadBackward,
  kForward,
  kBackward = kForward + kLayerKinds,
  kInputGradient = kBackward + kLayerKinds,
  kWeightGradient = kInputGradient + kLayerKinds,
  kNothing = kWeightGradient + kLayerKinds,  // no ops: marks a point in time
  kParts
};

// The blocks behind those of all micro-batches of a lane that meets others.
enum Shared : std::uint32_t {
  kGather,  // by ModelPart
  kReduce = kGather + kModelParts,
  kWait = kReduce + kModelParts
};
inline std::uint32_t gather_of(ModelPart part) {
  return kGather + static_cast<std::uint32_t>(part);
}
inline std::uint32_t reduce_of(ModelPart part) {
  return kReduce + static_cast<std::uint32_t>(part);
}
inline Part forward_of(ModelPart part) {
  if (is_layer(part)) return static_cast<Part>(kForward + index_of(part));
  return part == ModelPart::head ? kHeadForward : kEmbedForward;
}

// `entry`: the micro-batch, or its place among those that meet otherwise (LaneArrivals).
inline std::uint32_t block_of(std::size_t entry, std::size_t part) {
  return static_cast<std::uint32_t>(entry * kParts + part);
}

}  // namespace equipoise::expansion
