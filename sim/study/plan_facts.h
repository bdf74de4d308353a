// What a row's notes say of its plan, gathered step by step, since the plan of a long study is never whole in
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "policies/plan.h"
#include "sim/study/read/policy_run.h"
#include "sim/workload/layout.h"

namespace equipoise {

// Whether the row's sharding rule fills each document up to a multiple of 2 x `context` tokens.
bool fills_documents(const PolicyRun& run, int context);

struct PlanFacts {
  std::size_t steps = 0;
  double micro_batches = 0, rank_tokens = 0;  // of all micro-batches: their number, and tokens of a rank
  MicroBatch largest;                         // the first that has the most tokens
  std::int64_t largest_tokens = -1;
  int largest_context = 1;  // its lane's CP degree
  std::set<int> degrees;    // of lanes that have documents
  bool has_chunks = false;  // that depend on others
  bool has_local = false;   // documents that stay on one CP rank
  bool pads = false;        // some documents, to the longest of their micro-batch
  bool all_alone = true;    // whether no micro-batch has two documents

  // Full steps with fewer filled micro-batches than lanes; sums over them.
  struct Idle {
    double full = 0, steps = 0, micro_batches = 0, lanes = 0, share = 0;
  } idle;
  // Steps in which lanes of a barrier group differ in their number of micro-batches; the widest such pair.
  struct Unequal {
    std::int64_t steps = 0, most = 0, least = 0;
  } unequal;
  // Micro-batches that exceed their limit once each document is padded to 2 x CP tokens, and the longest.
  struct PaddedPacks {
    std::int64_t count = 0, longest = 0, length = 0, multiple = 0;
  } padded_packs;

  void add(const Step& step, const PolicyRun& run);
  // The fewest and the most layers that a micro-batch recomputes, of the model's `layers`.
  [[nodiscard]] std::pair<int, int> recomputed_layers(const Layout& layout, int layers) const;

 private:
  void add_lane(const Lane& lane, const PolicyRun& run);
  void add_padded(const MicroBatch& micro_batch, int context, const PolicyRun& run);
  void add_idle(const Step& step);
  void add_unequal(const Step& step);
  void add_recomputed(const MicroBatch& micro_batch);

  bool as_layout_ = false;    // whether some recompute as the layout states
  std::set<int> recomputed_;  // layers of the others
};

}  // namespace equipoise
