// Damaged copies of valid files: what transfers, editors and generators do to them, and numbers and words
// that someone might write to see what happens. One stream of random numbers, so that the n-th mutant is the
// same everywhere.
#pragma once

#include <array>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/random.h"

namespace equipoise::test {

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}

  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (std::size_t i = 0, count = 1 + below(3); i < count; ++i) mutate(bytes);
    return bytes;
  }

 private:
  static constexpr std::array<std::string_view, 26> kNumbers = {"0",
                                                                "-1",
                                                                "1",
                                                                "-0",
                                                                "2",
                                                                "0.5",
                                                                "127",
                                                                "65536",
                                                                "2147483647",
                                                                "2147483648",
                                                                "4294967296",
                                                                "9223372036854775807",
                                                                "9223372036854775808",
                                                                "-9223372036854775808",
                                                                "18446744073709551615",
                                                                "1e308",
                                                                "1e999",
                                                                "-1e999",
                                                                "1e-320",
                                                                "nan",
                                                                "inf",
                                                                "0x10",
                                                                "007",
                                                                "1e5",
                                                                "99999999999999999999999999",
                                                                ""};
  static constexpr std::array<std::string_view, 18> kWords = {
      "null",     "true",   "[]",          "{}",          "[[]]",     "{\"a\": 1}",
      "\"\"",     "\"x\"",  "\"\\u0000\"", "\"\\ud800\"", "\xff",     "\xef\xbb\xbf",
      "\x1b[31m", "\"\"\"", ",",           "\n",          "[1, [2]]", "//"};

  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_.next() % count); }
  std::size_t place(const std::string& bytes) { return bytes.empty() ? 0 : below(bytes.size()); }

  // A run of at most 64 bytes.
  std::string_view part(const std::string& bytes) {
    const std::size_t at = place(bytes);
    return std::string_view(bytes).substr(at, 1 + below(64));
  }

  // Replaces the first token from a random place on: a number by a hostile one, or a quoted text.
  void swap_number(std::string& bytes) {
    const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    std::size_t at = place(bytes);
    while (at < bytes.size() && !digit(bytes[at])) ++at;
    std::size_t end = at;
    while (end < bytes.size() && (digit(bytes[end]) || bytes[end] == '.' || bytes[end] == 'e')) ++end;
    bytes.replace(at, end - at, kNumbers[below(kNumbers.size())]);
  }
  void swap_text(std::string& bytes) {
    const std::size_t at = bytes.find('"', place(bytes));
    const std::size_t end = at == std::string::npos ? at : bytes.find('"', at + 1);
    if (end == std::string::npos) return swap_number(bytes);
    const bool of_file = below(2) == 0;  // a text of another place, or what is no text
    const std::size_t from = bytes.find('"', place(bytes)),
                      to = from == std::string::npos ? from : bytes.find('"', from + 1);
    const std::string other = of_file && to != std::string::npos ? bytes.substr(from, to - from + 1)
                                                                 : std::string(kWords[below(kWords.size())]);
    bytes.replace(at, end - at + 1, other);
  }

  void mutate(std::string& bytes) {
    switch (below(10)) {
      case 0:
        if (!bytes.empty()) bytes[place(bytes)] ^= static_cast<char>(1U << below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[place(bytes)] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.resize(place(bytes));
        break;
      case 3:
        bytes.erase(place(bytes), 1 + below(32));
        break;
      case 4: {
        const std::string copy(part(bytes));
        bytes.insert(place(bytes), copy);
        break;
      }
      case 5: {
        const std::string other(part(seeds_[below(seeds_.size())]));
        bytes.replace(place(bytes), below(32), other);
        break;
      }
      case 6:
        bytes.insert(place(bytes), kWords[below(kWords.size())]);
        break;
      case 7:
        swap_text(bytes);
        break;
      default:
        swap_number(bytes);
    }
  }

  std::vector<std::string> seeds_;
  SplitMix64 random_;
};

}  // namespace equipoise::test
