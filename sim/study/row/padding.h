// The padding of documents to 2 x CP tokens (`remainder: pad`), which counts in the limits of a policy.
//
// Policies know nothing of sharding rules. A policy and its search get padded documents, and the padding is
// taken off their plans before anybody prices, simulates or keeps them. The padding is that of the layout's
// CP degree. A document that fits into the policy's limit counts as that limit at most, so that it alone
// still fits. Where a window, the policy or `oversize` cuts documents, all are packed as they are, and a
// warning (padded_packs) says by how much the padding exceeds the limit.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/batches.h"
#include "policies/policy.h"
#include "sim/study/row/study_row.h"

namespace equipoise {

class DocumentPadding {
 public:
  // Refers to the row, whose limits a search may change.
  explicit DocumentPadding(const StudyRow& row);

  // The row's batches, with padding if its documents get any.
  [[nodiscard]] Batches batches() const;
  // The prices of plans of these batches.
  [[nodiscard]] PlanPrices prices(PlanPrices of_documents) const;
  // Throws UserError where a padded document is cut.
  void take_off(std::vector<Step>& steps) const;
  void take_off(std::vector<Slice>& slices) const;

 private:
  const StudyRow& row_;
  std::vector<std::int64_t> tokens_;  // by document; empty: none is padded
};

}  // namespace equipoise
