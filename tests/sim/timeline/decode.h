// A protobuf decoder for tests, and a place for their files.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"

namespace equipoise::pftrace {

namespace fs = std::filesystem;

// A protobuf message, decoded without knowing its schema: the fields in order.
struct Field {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;
  std::uint64_t value = 0;
  std::string bytes;
};

inline std::vector<Field> decode(const std::string& message) {
  std::vector<Field> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at >= message.size()) FAIL("the message ends inside a number");
      const auto byte = static_cast<std::uint8_t>(message[at++]);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t tag = varint();
    Field field{static_cast<std::uint32_t>(tag >> 3), static_cast<std::uint32_t>(tag & 7), 0, {}};
    if (field.wire == 0) {
      field.value = varint();
    } else if (field.wire == 1) {
      REQUIRE(at + 8 <= message.size());
      std::memcpy(&field.value, message.data() + at, 8);
      at += 8;
    } else {
      REQUIRE(field.wire == 2);
      const std::uint64_t length = varint();
      REQUIRE(at + length <= message.size());
      field.bytes = message.substr(at, length);
      at += length;
    }
    fields.push_back(field);
  }
  return fields;
}

inline const Field* find(const std::vector<Field>& fields, std::uint32_t number) {
  for (const Field& f : fields)
    if (f.number == number) return &f;
  return nullptr;
}

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline fs::path scratch(const char* name) {
  static const test::Scratch folder;
  return folder.path(name);
}

}  // namespace equipoise::pftrace
