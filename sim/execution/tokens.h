// The synthetic text that real execution trains on. A trace has lengths only, so a token is a hash of seed,
// document and position: any rank can make any token. Ids are 1 .. vocab - 1; 0 ends a document and is only
// ever a target, so every token has a target and a document of n tokens has n losses.
#pragma once

#include <cstdint>

#include "sim/execution/counter_hash.h"

namespace equipoise::execution {

inline constexpr std::int64_t kEndOfDocument = 0;

inline std::int64_t token_at(std::uint64_t seed, std::int64_t document, std::int64_t position,
                             std::int64_t vocab) {
  constexpr std::uint64_t kStream = 0x746f6b656e73ULL;  // apart from the streams of the weights
  const std::uint64_t key = counter_hash(seed ^ kStream, static_cast<std::uint64_t>(document));
  const std::uint64_t value = counter_hash(key, static_cast<std::uint64_t>(position));
  return 1 + static_cast<std::int64_t>(value % static_cast<std::uint64_t>(vocab - 1));
}

// The token after it, also where a slice ends inside the document.
inline std::int64_t target_at(std::uint64_t seed, std::int64_t document, std::int64_t position,
                              std::int64_t document_tokens, std::int64_t vocab) {
  if (position + 1 >= document_tokens) return kEndOfDocument;
  return token_at(seed, document, position + 1, vocab);
}

}  // namespace equipoise::execution
