// Plans that several candidates share. What a policy packs follows from the documents, its options with the
// sizes derived from memory, and the prices of documents; not from how many stages, model chunks or
// recomputed layers a layout has. So candidates that differ in those alone are planned once, as long as the
// plan is kept: the ones that were asked for least recently go first.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "policies/workload.h"
#include "sim/cost/least_costs.h"
#include "sim/study/models.h"
#include "sim/study/read/study.h"
#include "sim/study/row/plan_row.h"
#include "sim/tune/candidates.h"

namespace equipoise {

// A plan, and the models that priced its documents.
struct PackedRow {
  std::shared_ptr<const RunModels> models;
  std::shared_ptr<const Workload> workload;
  PlannedRow planned;
};

class PlanCache {
 public:
  // The plan of the first candidate with this key; `plan` makes it where there is none. Its models and its
  // workload are of another layout, but price documents alike. Threads that ask for the same key wait for
  // one of them. What `plan` throws is not kept.
  std::shared_ptr<const PackedRow> find(const std::string& key,
                                        const std::function<std::shared_ptr<const PackedRow>()>& plan);

 private:
  struct Slot {
    std::mutex planning;
    std::shared_ptr<const PackedRow> row;  // guarded by `planning`
    std::int64_t slices = 0;               // guarded by the cache's mutex, as are all below
    std::list<std::string>::iterator turn;
  };
  void make_room();

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;
  std::list<std::string> turns_;  // least recently asked for first
  std::int64_t slices_ = 0;
};

// The keys of a layout that price documents: not the pipeline's, and not recompute, which plan_key has by
// row.
std::string priced_alike(const LayoutChoice& layout);

// What two candidates must have in common to share a plan: `alike`, the keys of the layout that price
// documents, and the row as it was derived. Empty where a plan is the candidate's own: one from a file, or
// one that follows from simulated steps.
std::string plan_key(const std::string& alike, const RunModels& models, const PolicyRun& row);

// Where a candidate finds what it shares with others; its own if null.
struct Shared {
  PlanCache* plans = nullptr;
  std::string alike = {};  // what makes prices of documents equal (plan_key)
  SharedLeastCosts* least = nullptr;
};

}  // namespace equipoise
