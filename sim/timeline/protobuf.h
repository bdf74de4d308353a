// Writing protobuf messages by hand: a message is a run of fields, a field a tag (number and wire type) and a
// value that is a varint, eight bytes or length-delimited bytes. No library is needed for that, nor a schema.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace equipoise::protobuf {

using Bytes = std::vector<std::uint8_t>;

inline void put_varint(Bytes& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(value));
}

inline void put_tag(Bytes& out, std::uint32_t number, std::uint32_t wire) {
  put_varint(out, (std::uint64_t{number} << 3) | wire);
}

inline void put_integer(Bytes& out, std::uint32_t number, std::uint64_t value) {
  put_tag(out, number, 0);
  put_varint(out, value);
}

inline void put_fixed64(Bytes& out, std::uint32_t number, std::uint64_t value) {
  put_tag(out, number, 1);
  for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<std::uint8_t>(value >> (8 * byte)));
}

inline void put_text(Bytes& out, std::uint32_t number, std::string_view text) {
  put_tag(out, number, 2);
  put_varint(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

inline void put_message(Bytes& out, std::uint32_t number, const Bytes& message) {
  put_tag(out, number, 2);
  put_varint(out, message.size());
  out.insert(out.end(), message.begin(), message.end());
}

}  // namespace equipoise::protobuf
