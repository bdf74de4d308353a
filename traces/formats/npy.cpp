// NumPy .npy holding one 1-D integer array: magic "\x93NUMPY", version, header length (u16 in version 1, u32
// later), a Python dict {'descr': '<i4', 'fortran_order': False, 'shape': (n,), } padded with spaces, then
// the values.
#include <algorithm>

#include "policies/base/error.h"
#include "traces/formats/bytes.h"
#include "traces/formats/formats.h"

namespace equipoise::formats {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// The text after `key`, given with its quotes, in the header's dict, up to the comma or bracket that ends the
// value.
std::string_view value_of(std::string_view dict, std::string_view key, const std::string& name) {
  const std::size_t at = dict.find(key);
  const std::size_t colon = at == std::string_view::npos ? at : dict.find(':', at);
  if (colon == std::string_view::npos)
    throw UserError(name + ": .npy header has no " + std::string(key) + ": " + shown(dict));
  std::string_view value = trimmed(dict.substr(colon + 1));
  const std::size_t end = value.substr(0, 1) == "(" ? value.find(')') : value.find_first_of(",}");
  return value.substr(0, end);
}

struct ElementType {
  std::size_t size = 0;
  bool is_signed = false;
  bool big_endian = false;
};

ElementType element_type(std::string_view descr, const std::string& name) {
  ElementType type;
  const bool quoted = descr.size() == 5 && descr.front() == '\'' && descr.back() == '\'';
  const char order = quoted ? descr[1] : ' ';
  const char kind = quoted ? descr[2] : ' ';
  const char size = quoted ? descr[3] : ' ';
  if ((order != '<' && order != '>' && order != '|') || (kind != 'i' && kind != 'u') ||
      (size != '1' && size != '2' && size != '4' && size != '8'))
    throw UserError(name + ": .npy array of type " + shown(descr) +
                    "; expected integers (i1, i2, i4, i8, u1, u2, u4 or u8)");
  type.size = static_cast<std::size_t>(size - '0');
  type.is_signed = kind == 'i';
  type.big_endian = order == '>';
  return type;
}

// Values that do not fit are clamped to one that is_length refuses.
std::int64_t element(std::string_view bytes, std::size_t offset, ElementType type) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < type.size; ++i) {
    const std::size_t at = offset + (type.big_endian ? type.size - 1 - i : i);
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at])) << (8 * i);
  }
  const bool negative = type.is_signed && (value >> (8 * type.size - 1)) != 0;
  if (negative) return -1;
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(value, static_cast<std::uint64_t>(kLongestDocument) + 1));
}

}  // namespace

Lengths read_npy(std::string_view bytes, const std::string& name) {
  if (bytes.substr(0, kMagic.size()) != kMagic)
    throw UserError(name + ": byte 0: expected the .npy magic \\x93NUMPY, found " +
                    shown(bytes.substr(0, 6)));
  const auto truncated = [&](std::size_t needed) {
    return UserError(name + ": byte " + std::to_string(bytes.size()) +
                     ": the .npy file ends here; expected " + std::to_string(needed) + " bytes");
  };
  if (bytes.size() < 12) throw truncated(12);
  const bool version_1 = bytes[6] == 1;
  const std::size_t start = version_1 ? 10 : 12;
  const std::size_t header = version_1 ? load<std::uint16_t>(bytes, 8) : load<std::uint32_t>(bytes, 8);
  if (bytes.size() < start + header) throw truncated(start + header);
  const std::string_view dict = bytes.substr(start, header);
  const ElementType type = element_type(value_of(dict, "'descr'", name), name);

  std::string_view shape = value_of(dict, "'shape'", name);
  const std::string_view whole_shape = shape;
  if (!shape.empty() && shape.front() == '(') shape.remove_prefix(1);
  if (!shape.empty() && shape.back() == ',') shape.remove_suffix(1);
  shape = trimmed(shape);
  std::uint64_t count = 0;
  const bool one_dimension =
      !shape.empty() && shape.find_first_not_of("0123456789") == std::string_view::npos;
  for (const char c : one_dimension ? shape : std::string_view())
    count = std::min<std::uint64_t>(count * 10 + static_cast<std::uint64_t>(c - '0'), std::uint64_t{1} << 56);
  if (!one_dimension)
    throw UserError(name + ": .npy shape " + shown(whole_shape) + "); expected one dimension");
  const std::size_t data = start + header;
  if ((bytes.size() - data) / type.size < count) throw truncated(data + count * type.size);
  if (bytes.size() - data != count * type.size)
    throw UserError(name + ": byte " + std::to_string(data + count * type.size) + ": " +
                    std::to_string(bytes.size() - data - count * type.size) + " bytes after the array");

  Lengths lengths(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = data + i * type.size;
    lengths[i] = element(bytes, offset, type);
    if (!is_length(lengths[i]))
      refuse_length(name + ": element " + std::to_string(i) + " (byte " + std::to_string(offset) + ")",
                    lengths[i] < 0    ? "a negative number"
                    : lengths[i] == 0 ? "0"
                                      : "a number above 2^31");
  }
  return lengths;
}

}  // namespace equipoise::formats
