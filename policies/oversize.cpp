#include "policies/oversize.h"

#include <algorithm>
#include <string>

#include "policies/unplaceable.h"

namespace equipoise {
namespace {

void append(const Slice& slice, std::int64_t limit, Oversize oversize, std::vector<Slice>& kept,
            std::vector<Slice>& dropped) {
  if (slice.tokens() <= limit) {
    kept.push_back(slice);
  } else if (oversize == Oversize::drop) {
    dropped.push_back(slice);
  } else if (oversize == Oversize::truncate) {
    kept.push_back({slice.document, slice.begin, slice.begin + limit});
    dropped.push_back({slice.document, slice.begin + limit, slice.end});
  } else {
    for (std::int64_t begin = slice.begin; begin < slice.end; begin += limit) {
      kept.push_back({slice.document, begin, std::min(begin + limit, slice.end)});
    }
  }
}

}  // namespace

std::optional<std::vector<GlobalBatch>> without_oversize(std::span<const GlobalBatch> batches,
                                                         std::int64_t limit, Oversize oversize,
                                                         std::string_view policy,
                                                         std::vector<Slice>& dropped) {
  const auto too_long = [limit](const Slice& slice) { return slice.tokens() > limit; };
  bool any = false;
  for (const GlobalBatch& batch : batches) {
    const auto found = std::find_if(batch.slices.begin(), batch.slices.end(), too_long);
    if (found == batch.slices.end()) continue;
    if (oversize == Oversize::error) {
      throw UnplaceableDocument("document " + std::to_string(found->document) + ": " +
                                    std::to_string(found->tokens()) + " tokens, policy " +
                                    std::string(policy) + " places at most " + std::to_string(limit) +
                                    "; raise that limit or set oversize to drop, truncate or split",
                                found->document, found->tokens(), limit);
    }
    any = true;
    break;
  }
  if (!any) return std::nullopt;

  std::vector<GlobalBatch> result(batches.size());
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const GlobalBatch& from = batches[b];
    GlobalBatch& to = result[b];
    to.slices.reserve(from.slices.size());
    std::size_t window = 0;
    for (std::size_t i = 0; i <= from.slices.size(); ++i) {
      for (; window < from.window_begin.size() && from.window_begin[window] == i; ++window) {
        to.window_begin.push_back(to.slices.size());
      }
      if (i < from.slices.size()) append(from.slices[i], limit, oversize, to.slices, dropped);
    }
  }
  return result;
}

}  // namespace equipoise
