#include "traces/formats/arrays.h"

#include <algorithm>

#include "policies/base/error.h"
#include "traces/formats/bytes.h"

namespace equipoise::formats {

// A NumPy .npy file holds one 1-D integer array: magic "\x93NUMPY", version, header length (u16 in version 1,
// u32 later), a Python dict {'descr': '<i4', 'fortran_order': False, 'shape': (n,), } padded with spaces,
// then the values.

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// The text after `key` in the header's dict, up to the comma or bracket that ends the value. `key` includes
// its quotes.
std::string_view value_of(std::string_view dict, std::string_view key, const std::string& name) {
  const std::size_t at = dict.find(key);
  const std::size_t colon = at == std::string_view::npos ? at : dict.find(':', at);
  if (colon == std::string_view::npos) throw UserError(name, ": .npy header has no ", key, ": ", shown(dict));
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
    throw UserError(name, ": .npy array of type ", shown(descr),
                    "; expected integers (i1, i2, i4, i8, u1, u2, u4 or u8)");
  type.size = static_cast<std::size_t>(size - '0');
  type.is_signed = kind == 'i';
  type.big_endian = order == '>';
  return type;
}

// Clamps values that do not fit to one that is_length refuses.
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
    throw UserError(name, ": byte 0: expected the .npy magic \\x93NUMPY, found ", shown(bytes.substr(0, 6)));
  const auto truncated = [&](std::size_t needed) {
    return UserError(name, ": byte ", bytes.size(), ": the .npy file ends here; expected ", needed, " bytes");
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
  if (!one_dimension) throw UserError(name, ": .npy shape ", shown(whole_shape), "); expected one dimension");
  const std::size_t data = start + header;
  if ((bytes.size() - data) / type.size < count) throw truncated(data + count * type.size);
  if (bytes.size() - data != count * type.size)
    throw UserError(name, ": byte ", data + count * type.size, ": ", bytes.size() - data - count * type.size,
                    " bytes after the array");

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

// The indexes of tokenised corpora (Megatron-LM's .idx, datatrove's .ds.index) record the end of each
// document, so lengths can be read without the tokens.
//
// Megatron-LM .idx, little-endian, unaligned: "MMIDIDX\0\0" | u64 version = 1 | u8 dtype | u64 n sequences |
// u64 d entries | i32 lengths[n] | i64 byte offsets[n] | i64 doc_index[d] | optional i8 modes[n].
// Document k is sequences [doc_index[k], doc_index[k + 1]); its length, the sum of theirs, includes an
// end-of-document token where the corpus was made with one.

namespace {

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::size_t kMegatronHeader = 34;

// The first byte of each array of an .idx.
struct IdxLayout {
  std::size_t sequences = 0;
  std::size_t entries = 0;
  std::size_t lengths = kMegatronHeader;
  std::size_t doc_index = 0;
};

IdxLayout idx_layout(std::string_view bytes, const std::string& name) {
  if (bytes.substr(0, kMegatronMagic.size()) != kMegatronMagic)
    throw UserError(name, ": byte 0: expected the Megatron-LM index magic MMIDIDX, found ",
                    shown(bytes.substr(0, 9)));
  if (bytes.size() < kMegatronHeader)
    throw UserError(name, ": byte ", bytes.size(), ": the index ends inside its header of ", kMegatronHeader,
                    " bytes");
  if (const auto version = load<std::uint64_t>(bytes, 9); version != 1)
    throw UserError(name, ": byte 9: index version ", version, "; expected 1");
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto entries = load<std::uint64_t>(bytes, 26);
  // Each sequence takes 12 bytes and each entry 8. The check divides, so that a damaged count cannot
  // overflow.
  const std::size_t body = bytes.size() - kMegatronHeader;
  if (sequences > body / 12 || entries > (body - sequences * 12) / 8)
    throw UserError(name, ": byte ", bytes.size(), ": the index ends here; its header promises ", sequences,
                    " sequences and ", entries, " document entries");
  const std::size_t extra = body - sequences * 12 - entries * 8;
  if (extra != 0 && extra != sequences)
    throw UserError(name, ": byte ", bytes.size() - extra, ": ", extra,
                    " bytes after the index; expected none, or one mode byte a sequence (", sequences, ")");
  IdxLayout layout;
  layout.sequences = sequences;
  layout.entries = entries;
  layout.doc_index = kMegatronHeader + sequences * 12;
  return layout;
}

}  // namespace

Lengths read_megatron_idx(std::string_view bytes, const std::string& name) {
  const IdxLayout layout = idx_layout(bytes, name);
  Lengths lengths;
  lengths.reserve(layout.entries);
  std::uint64_t sequence = 0;
  for (std::size_t entry = 0; entry < layout.entries; ++entry) {
    const std::size_t at = layout.doc_index + entry * 8;
    const auto end = load<std::int64_t>(bytes, at);
    if (end < static_cast<std::int64_t>(sequence) || end > static_cast<std::int64_t>(layout.sequences) ||
        (entry == 0 && end != 0))
      throw UserError(
          name, ": byte ", at, ": document entry ", entry, " is ", end, "; expected ",
          (entry == 0 ? "0" : std::to_string(sequence) + " to " + std::to_string(layout.sequences)));
    std::int64_t tokens = 0;
    for (; sequence < static_cast<std::uint64_t>(end); ++sequence) {
      const std::size_t offset = layout.lengths + sequence * 4;
      const auto length = load<std::int32_t>(bytes, offset);
      if (length < 0)
        refuse_length(
            name + ": sequence " + std::to_string(sequence) + " (byte " + std::to_string(offset) + ")",
            std::to_string(length));
      tokens += length;
    }
    if (entry == 0) continue;
    if (!is_length(tokens))
      refuse_length(name + ": document " + std::to_string(entry - 1), std::to_string(tokens));
    lengths.push_back(tokens);
  }
  if (sequence != layout.sequences)
    throw UserError(name, ": byte ", layout.doc_index + layout.entries * 8,
                    ": the last document ends at sequence ", sequence, "; expected ", layout.sequences);
  return lengths;
}

// The index of datatrove and nanotron has no header; it lists the rising ends of documents in tokens as u64.
Lengths read_datatrove_index(std::string_view bytes, const std::string& name) {
  if (bytes.size() % 8 != 0)
    throw UserError(name, ": byte ", bytes.size(),
                    ": the index ends inside an entry; expected a multiple of 8 bytes");
  Lengths lengths(bytes.size() / 8);
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto end = load<std::uint64_t>(bytes, i * 8);
    if (end <= begin || end - begin > static_cast<std::uint64_t>(kLongestDocument))
      throw UserError(name, ": byte ", i * 8, ": document ", i, " ends at token ", end,
                      " after one that ends at ", begin, "; expected 1 to ", kLongestDocument,
                      " tokens more");
    lengths[i] = static_cast<std::int64_t>(end - begin);
    begin = end;
  }
  return lengths;
}

}  // namespace equipoise::formats
