#include "sim/report/sha256.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace equipoise {

namespace {

// The fractional parts of a root of the first primes, multiplied by 2^32 and cut to integers.
std::array<std::uint32_t, 64> fractions_of_primes(double (*root)(double)) {
  std::array<std::uint32_t, 64> parts{};
  std::size_t found = 0;
  for (int n = 2; found < parts.size(); ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const double value = root(n);
    parts[found++] = static_cast<std::uint32_t>((value - std::floor(value)) * 0x1p32);
  }
  return parts;
}

void add_block(const unsigned char* block, std::array<std::uint32_t, 8>& state) {
  static const std::array<std::uint32_t, 64> kRounds =
      fractions_of_primes([](double n) { return std::cbrt(n); });
  const auto mixed = [](std::uint32_t x, int a, int b, int c) {
    return std::rotr(x, a) ^ std::rotr(x, b) ^ std::rotr(x, c);
  };
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t byte = 0; byte < 4; ++byte) w[i] = w[i] << 8U | block[4 * i + byte];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first = h + mixed(e, 6, 11, 25) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second = mixed(a, 2, 13, 22) + ((a & b) ^ (a & c) ^ (b & c));
    h = std::exchange(g, std::exchange(f, std::exchange(e, d + first)));
    d = std::exchange(c, std::exchange(b, std::exchange(a, first + second)));
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

constexpr std::size_t kBlock = 64;

Sha256::Sha256() {
  static const std::array<std::uint32_t, 64> kStart =
      fractions_of_primes([](double n) { return std::sqrt(n); });
  std::copy_n(kStart.begin(), state_.size(), state_.begin());
}

void Sha256::add(std::string_view bytes) {
  size_ += bytes.size();
  const auto add_blocks = [this](std::string_view whole) {
    for (std::size_t at = 0; at < whole.size(); at += kBlock)
      add_block(reinterpret_cast<const unsigned char*>(whole.data()) + at, state_);
  };
  if (!rest_.empty()) {
    const std::size_t taken = std::min(bytes.size(), kBlock - rest_.size());
    rest_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (rest_.size() < kBlock) return;
    add_blocks(rest_);
    rest_.clear();
  }
  const std::size_t whole = bytes.size() / kBlock * kBlock;
  add_blocks(bytes.substr(0, whole));
  rest_ = bytes.substr(whole);
}

std::string Sha256::text() {
  const std::uint64_t bits = size_ * 8;
  std::string end = "\x80";  // zeros up to 8 bytes before the end of a block, then the number of bits
  end.resize((rest_.size() + end.size() + 8 + kBlock - 1) / kBlock * kBlock - 8 - rest_.size());
  for (int shift = 56; shift >= 0; shift -= 8) end += static_cast<char>(bits >> shift & 0xff);
  add(end);
  std::string text;
  for (const std::uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.text();
}

}  // namespace equipoise
