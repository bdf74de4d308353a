// The loader turns a trace into global batches, each of which a policy gets for one optimizer step.
//
// Window batches (documents_per_step = 0): the trace is concatenated and cut into windows; a batch is
// sequences_per_step consecutive windows. A document that a border cuts becomes slices of the same id; its
// rest is carried into the next window, or dropped (WLB-LLM's loader). Document batches: that many whole
// documents. A study fixes its set once (the first `steps` batches), and every policy of the study gets
// exactly this set. Documents above max_length are truncated or dropped first, for all policies alike.
// O(documents + slices).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/options.h"
#include "policies/policy.h"

namespace equipoise {

struct LoadOptions {
  std::int64_t steps =
      0;  // full global batches in the set; 0: the whole trace, whose last batch may be short
  LoaderTail tail = LoaderTail::carry;
  bool repeat =
      false;  // whether a trace that ends too early is read again from the start, with continuing ids
};

// The tokens that the loader keeps of a document of `tokens` tokens; 0 drops it.
constexpr std::int64_t loaded_length(std::int64_t length, const PackOptions& shape) {
  if (shape.max_length == 0 || length <= shape.max_length) return length;
  return shape.longer == LongerThan::drop ? 0 : shape.max_length;
}

struct DocumentSet {
  Batches batches;                  // made from a copy of the lengths
  std::int64_t recorded = 0;        // documents of the trace
  std::int64_t documents = 0;       // documents read from it, also repeatedly; ids are below this
  std::int64_t tokens = 0;          // tokens in the batches
  std::int64_t dropped_tokens = 0;  // tokens that LoaderTail::drop discarded at window borders
  std::int64_t cut_documents = 0;   // documents above max_length, truncated or dropped
  std::int64_t cut_tokens = 0;      // tokens that these documents lost
};

// Throws UserError for an empty trace, a length below 1, a shape that makes no batch, and a trace too short.
DocumentSet load_documents(std::span<const std::int64_t> lengths, const PackOptions& shape,
                           const LoadOptions& options);

// What max_length, by the name `key` that its user knows, removed from the documents; none where it removed
// nothing.
std::optional<Note> cut_note(const DocumentSet& documents, const PackOptions& shape, std::string_view key);

// A document that a policy cannot place. It is an error if the policy runs alone, and a row of the table in a
// comparison.
class UnplaceableDocument : public UserError {
 public:
  UnplaceableDocument(const std::string& message, std::int64_t document, std::int64_t tokens,
                      std::int64_t limit)
      : UserError(message), document_(document), tokens_(tokens), limit_(limit) {}

  // Names the slice, the policy, its limit and what the user can do.
  UnplaceableDocument(const Slice& slice, std::string_view policy, std::int64_t limit);

  // A copy of the error with `where` before the message.
  [[nodiscard]] UnplaceableDocument in(const std::string& where) const {
    return {where + ": " + what(), document_, tokens_, limit_};
  }

  [[nodiscard]] std::int64_t document() const { return document_; }  // index in the trace
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }      // tokens of its slice
  [[nodiscard]] std::int64_t limit() const { return limit_; }        // the most tokens that the policy places

 private:
  std::int64_t document_;
  std::int64_t tokens_;
  std::int64_t limit_;
};

// Whether a window's end cuts a document of the batches.
bool cut_by_windows(const Batches& batches);

// Applies --oversize to documents above a policy's hard limit, before the policy sees them. Returns the
// batches with every slice of more than `limit` tokens dropped, truncated to `limit` or split into pieces of
// `limit` tokens, each of which is then a document of its own. Lost tokens are appended to `dropped`. Returns
// nothing if no slice is that long. Oversize::error throws UserError that names the document. O(slices).
std::optional<Batches> without_oversize(const Batches& batches, std::int64_t limit, Oversize oversize,
                                        std::string_view policy, std::vector<Slice>& dropped);

}  // namespace equipoise
