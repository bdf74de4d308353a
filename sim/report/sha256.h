// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace equipoise {

// Hashes bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view bytes);
  // The hash in hexadecimal digits, as sha256sum prints it. Nothing can be added afterwards.
  [[nodiscard]] std::string text();

 private:
  std::array<std::uint32_t, 8> state_;
  std::uint64_t size_ = 0;
  std::string rest_;  // added bytes, less than a block
};

std::string sha256(std::string_view bytes);

}  // namespace equipoise
