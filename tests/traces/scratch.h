// Files for tests: a folder of their own that disappears with them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "policies/error.h"
#include "policies/random.h"

namespace equipoise::test {

class Scratch {
 public:
  Scratch() {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("equipoise-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

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
