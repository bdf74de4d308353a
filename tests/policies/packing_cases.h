// Short hands of the packing tests: problems from lengths, plans as lists of document ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/make_plan.h"
#include "policies/policy.h"

namespace equipoise {

using Ids = std::vector<std::int64_t>;

// One global batch of whole documents for each list of lengths; ids run on from batch to batch.
inline std::vector<GlobalBatch> document_batches(const std::vector<std::vector<std::int64_t>>& lengths) {
  std::vector<GlobalBatch> batches;
  std::int64_t id = 0;
  for (const std::vector<std::int64_t>& batch : lengths) {
    batches.emplace_back();
    for (const std::int64_t length : batch) batches.back().slices.push_back({id++, 0, length});
  }
  return batches;
}

inline Plan plan_of(std::string_view policy, const Batches& batches, const PackOptions& options) {
  const QuadraticWorkload quadratic;
  return make_plan(packing_policy(policy), {batches, options, quadratic});
}

// Document ids of each micro-batch of a step, lane by lane.
inline std::vector<Ids> ids_of(const Step& step) {
  std::vector<Ids> ids;
  for (const Lane& lane : step.lanes) {
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      ids.emplace_back();
      for (const Slice& slice : micro_batch.slices) ids.back().push_back(slice.document);
    }
  }
  return ids;
}

inline Ids carried_of(const Step& step) {
  Ids ids;
  for (const Slice& slice : step.carried) ids.push_back(slice.document);
  return ids;
}

}  // namespace equipoise
