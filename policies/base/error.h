// The two errors that end a run. Their constructors join the parts of a message: text, letters and whole
// numbers.
#pragma once

#include <stdexcept>
#include <string>

#include "policies/base/text.h"

namespace equipoise {

// Bad input, the only error that a user can cause. The program prints it as one line and exits with 2.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const auto&... parts) : std::runtime_error(concatenated(parts...)) {}
};

// A fault inside a simulation (exit 3): a stall, a receive without its send, a size mismatch. A user's input
// never causes it.
class EngineError : public std::runtime_error {
 public:
  explicit EngineError(const auto&... parts) : std::runtime_error(concatenated(parts...)) {}
};

}  // namespace equipoise
