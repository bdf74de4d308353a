// What the tests of traces share: scratch files, errors, lengths of every size.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "tests/scratch_folder.h"

namespace equipoise::test {

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What the function's UserError says; empty if it throws none.
template <class Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

inline std::vector<std::int64_t> random_lengths(std::uint64_t seed, std::size_t count) {
  SplitMix64 random(seed);
  std::vector<std::int64_t> lengths(count);
  for (std::int64_t& length : lengths)  // every size of number, up to 2^31
    length = static_cast<std::int64_t>(1 + random.next() % (std::uint64_t{1} << (1 + random.next() % 31)));
  return lengths;
}

}  // namespace equipoise::test
