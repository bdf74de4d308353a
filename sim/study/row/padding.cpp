#include "sim/study/row/padding.h"

#include <algorithm>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/rounding.h"
#include "policies/loader.h"
#include "sim/study/plan_facts.h"

namespace equipoise {

static bool packs_with_padding(const StudyRow& row) {
  const PolicyRun& run = row.run;
  return !run.has_plan_file() && fills_documents(run, run.pack.context) &&
         !run.policy().cuts_documents(run.pack) && !cut_by_windows(row.documents.batches);
}

DocumentPadding::DocumentPadding(const StudyRow& row) : row_(row) {
  if (!packs_with_padding(row)) return;
  tokens_.resize(at(row.documents.documents));
  for (const GlobalBatch& batch : row.documents.batches)
    for (const Slice& slice : batch.slices) tokens_[at(slice.document)] = slice.end;
}

Batches DocumentPadding::batches() const {
  const Batches& given = row_.documents.batches;
  if (tokens_.empty()) return given;
  return {given.size(), [this, given](std::size_t k) {
            const PackOptions& pack = row_.run.pack;
            const auto hard_limit = row_.run.policy().hard_limit;
            const std::int64_t limit = hard_limit == nullptr ? 0 : hard_limit(pack);
            GlobalBatch batch = given[k];
            for (Slice& slice : batch.slices) {
              const std::int64_t padded = rounded_up(slice.end, 2 * pack.context);
              slice.end = limit > 0 ? std::min(padded, std::max(limit, slice.end)) : padded;
            }
            return batch;
          }};
}

PlanPrices DocumentPadding::prices(PlanPrices of_documents) const {
  if (tokens_.empty()) return of_documents;
  const auto take_off_first = [this](auto& price) {
    if (!price) return;
    price = [this, price](const Plan& padded) {
      Plan plan = padded;
      take_off(plan.steps);
      return price(plan);
    };
  };
  take_off_first(of_documents.seconds);
  take_off_first(of_documents.seconds_that_fit);
  take_off_first(of_documents.steps_that_fit);
  return of_documents;
}

void DocumentPadding::take_off(std::vector<Step>& steps) const {
  for (Step& step : steps) {
    take_off(step.carried);
    for (Lane& lane : step.lanes)
      for (MicroBatch& micro_batch : lane.micro_batches) take_off(micro_batch.slices);
  }
}

void DocumentPadding::take_off(std::vector<Slice>& slices) const {
  if (tokens_.empty()) return;
  for (Slice& slice : slices) {
    if (slice.begin > 0) throw UserError("remainder: pad fills whole documents, and this plan cuts them");
    slice.end = std::min(slice.end, tokens_[at(slice.document)]);
  }
}

}  // namespace equipoise
