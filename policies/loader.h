// The loader: turns a trace into global batches, what a policy gets for one optimizer step.
//
// Window batches (documents_per_step = 0): the trace is concatenated and cut into windows; a batch is
// sequences_per_step consecutive windows. A document cut at a border becomes slices of the same id; the rest
// is carried into the next window, or dropped (WLB-LLM's loader). Document batches: that many whole
// documents. A study fixes its set once (the first `steps` batches), and every policy of the study gets
// exactly that. Documents above max_length are truncated or left out first, for all policies alike.
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
  bool repeat = false;  // a trace that ends too early is read again from the start, ids continuing
};

// What the loader makes of a document of so many tokens: 0 leaves it out.
constexpr std::int64_t loaded_length(std::int64_t length, const PackOptions& shape) {
  if (shape.max_length == 0 || length <= shape.max_length) return length;
  return shape.longer == LongerThan::drop ? 0 : shape.max_length;
}

struct DocumentSet {
  std::vector<GlobalBatch> batches;
  std::int64_t documents = 0;       // read from the trace; ids are below this
  std::int64_t tokens = 0;          // in the batches
  std::int64_t dropped_tokens = 0;  // thrown away at window borders by LoaderTail::drop
  std::int64_t cut_documents = 0;   // longer than the shape's max_length: truncated or left out
  std::int64_t cut_tokens = 0;      // what they lost
};

// Throws UserError for an empty trace, a length below 1, a shape that makes no batch, and a trace too short.
DocumentSet load_documents(std::span<const std::int64_t> lengths, const PackOptions& shape,
                           const LoadOptions& options);

// What max_length took from the documents, one line; empty where it took nothing.
std::string cut_note(const DocumentSet& documents, const PackOptions& shape);

// A document that a policy cannot place: an error if the policy runs alone, a row of the table in a
// comparison.
class UnplaceableDocument : public UserError {
 public:
  UnplaceableDocument(const std::string& message, std::int64_t document, std::int64_t tokens,
                      std::int64_t limit)
      : UserError(message), document_(document), tokens_(tokens), limit_(limit) {}

  // The same with `where` in front of the message.
  [[nodiscard]] UnplaceableDocument in(const std::string& where) const {
    return {where + ": " + what(), document_, tokens_, limit_};
  }

  [[nodiscard]] std::int64_t document() const { return document_; }  // index in the trace
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }      // of its slice
  [[nodiscard]] std::int64_t limit() const { return limit_; }        // most tokens that the policy places

 private:
  std::int64_t document_;
  std::int64_t tokens_;
  std::int64_t limit_;
};

// --oversize: what happens to a document above a policy's hard limit, before the policy sees it.
// The batches with every slice of more than `limit` tokens dropped, truncated to `limit` or split into pieces
// of `limit` tokens (each a document of its own from then on); what is lost is appended to `dropped`.
// Nothing if no slice is that long. Oversize::error throws UserError naming the document. O(slices).
std::optional<std::vector<GlobalBatch>> without_oversize(std::span<const GlobalBatch> batches,
                                                         std::int64_t limit, Oversize oversize,
                                                         std::string_view policy,
                                                         std::vector<Slice>& dropped);

}  // namespace equipoise
