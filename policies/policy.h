// What a packing policy is, and the one table of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/workload.h"

namespace equipoise {

// What the loader hands to a policy for one optimizer step (policies/loader.h makes it).
struct GlobalBatch {
  std::vector<Slice> slices;              // in arrival order
  std::vector<std::size_t> window_begin;  // window batches: first slice of each window, and slices.size()
};

struct PackingProblem {
  std::span<const GlobalBatch> batches;
  const PackOptions& options;
  const Workload& workload;
};

enum class BatchKind { windows, documents };  // what the loader gives by default; both are accepted

struct Policy {
  std::string_view name;     // as typed after --policy
  std::string_view paper;    // where it comes from
  std::string_view summary;  // one line for `list policies`
  BatchKind batches;
  bool sees_whole_set;                  // packs the whole document set at once: token delay is null
  Plan (*plan)(const PackingProblem&);  // the bare algorithm; call make_plan, which adds what all share
  // Keys of a study's entry that mean something to it, beside those that concern every policy; and of
  // `batch`: context_window and sequences_per_step where global batches are of documents.
  std::span<const std::string_view> keys;
  // Most tokens of one document that the policy can place, for --oversize; null or 0: any length.
  std::int64_t (*hard_limit)(const PackOptions&) = nullptr;
};

// All packing policies, in help order.
std::span<const Policy> packing_policies();

// The policy of that name. Throws UserError with the nearest known name.
const Policy& packing_policy(std::string_view name);

// Runs the policy with what all policies share: documents above its hard limit go the way of
// options.oversize (UserError by default), lanes are put into options.order, the time is measured into
// Step::pack_ms, and in debug builds or with options.verify the validator checks the plan.
Plan make_plan(const Policy& policy, const PackingProblem& problem);

}  // namespace equipoise
