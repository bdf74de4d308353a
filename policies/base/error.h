// The two ways in which a run ends early.
#pragma once

#include <stdexcept>
#include <string>

namespace equipoise {

// Bad input, the one error that a user can cause. The program prints it as one line and exits with 2.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// A fault inside a simulation (exit 3): a stall, a receive without its send, a size mismatch. Never the
// user's input.
class EngineError : public std::runtime_error {
 public:
  explicit EngineError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace equipoise
