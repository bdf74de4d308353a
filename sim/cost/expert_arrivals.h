// What arrives at the experts of a rank.
//
// The ranks of an expert-parallel group send the tokens that they hold, each to `active` experts; the experts
// lie evenly on the ranks, so that of all copies every rank gets as many, whatever it sent itself. Packs are
// unequal: a rank whose micro-batch is short, or that has none, works for the others.
//
// Example, 2 ranks, 1,000 and 3,000 tokens, 8 experts a token: each sends 8 copies of its own and gets
// 16,000.
#pragma once

#include <cstddef>
#include <cstdint>

namespace equipoise {

struct ExpertArrivals {
  // Mean of the group, in tokens that its ranks sent, each of which stands for `active` copies: gathered over
  // the expert's tensor-parallel ranks, and of each of these.
  double tokens = 0, rows = 0;
  double load = 1;  // of the busiest rank over the mean, beside framework.expert_imbalance
  friend bool operator==(const ExpertArrivals&, const ExpertArrivals&) = default;
};

// Where a memo of `slots` slots keeps a rank that holds `tokens`. Where as many arrive as it sends the tokens
// alone say it.
inline std::size_t memo_slot(std::int64_t tokens, const ExpertArrivals& arriving, std::size_t slots) {
  const std::int64_t from_others = static_cast<std::int64_t>(arriving.tokens) - tokens;
  return (static_cast<std::size_t>(tokens) + 31 * static_cast<std::size_t>(from_others)) % slots;
}

}  // namespace equipoise
