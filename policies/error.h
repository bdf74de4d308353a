// The one error a user can cause: bad input. The program prints it as one line and exits with 2.
#pragma once

#include <stdexcept>
#include <string>

namespace equipoise {

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace equipoise
