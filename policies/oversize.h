// --oversize: what happens to a document above a policy's hard limit, before the policy sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "policies/policy.h"

namespace equipoise {

// The batches with every slice of more than `limit` tokens dropped, truncated to `limit` or split into pieces
// of `limit` tokens (each a document of its own from then on); what is lost is appended to `dropped`.
// Nothing if no slice is that long. Oversize::error throws UserError naming the document. O(slices).
std::optional<std::vector<GlobalBatch>> without_oversize(std::span<const GlobalBatch> batches,
                                                         std::int64_t limit, Oversize oversize,
                                                         std::string_view policy,
                                                         std::vector<Slice>& dropped);

}  // namespace equipoise
