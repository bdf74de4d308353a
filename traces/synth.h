// Synthetic traces drawn from published length distributions.
//
// Papers print bucket tables ("90.499 % of sequences below 1K tokens"), not lengths. A distribution here is a
// mixture of pieces: a table of (tokens, share of documents below) points joined by a stated rule, or a few
// fitted parameters. Each says what is published and what is this project's assumption. Lengths are drawn
// independently by inverse CDF from one SplitMix64 stream, so a name, a count and a seed give the same trace
// everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace equipoise {

struct Distribution {
  std::string_view name;        // as typed: `trace synth --distribution lmsys-chat-1m`
  std::string_view source;      // where the figures stand
  std::string_view summary;     // one line for `list traces`
  std::string_view assumption;  // what the source does not print
};

// All distributions, in help order.
std::span<const Distribution> distributions();

// Throws UserError with the nearest known name.
const Distribution& distribution(std::string_view name);

inline constexpr std::int64_t kMostDocuments = std::int64_t{1} << 28;  // 2 GiB of lengths

// `documents` lengths of the named distribution, at most kMostDocuments. O(documents).
Trace synthesize(std::string_view name, std::int64_t documents, std::uint64_t seed);

}  // namespace equipoise
