// A document that a policy cannot place: an error if the policy runs alone, a row of its own in a comparison.
#pragma once

#include <cstdint>
#include <string>

#include "policies/base/error.h"

namespace equipoise {

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

}  // namespace equipoise
