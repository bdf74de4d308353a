// Indexes of tokenised corpora: Megatron-LM's .idx and datatrove's .ds.index. Both say where each document
// ends, so lengths come without touching the tokens.
//
// Megatron-LM .idx, little-endian, unaligned: "MMIDIDX\0\0" | u64 version = 1 | u8 dtype | u64 n sequences |
// u64 d entries | i32 lengths[n] | i64 byte offsets[n] | i64 doc_index[d] | optional i8 modes[n].
// Document k is sequences [doc_index[k], doc_index[k + 1]); its length, the sum of theirs, includes an
// end-of-document token where the corpus was made with one.
#include "policies/base/error.h"
#include "traces/formats/bytes.h"
#include "traces/formats/formats.h"

namespace equipoise::formats {
namespace {

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::size_t kMegatronHeader = 34;

// First byte of each array of an .idx.
struct IdxLayout {
  std::size_t sequences = 0;
  std::size_t entries = 0;
  std::size_t lengths = kMegatronHeader;
  std::size_t doc_index = 0;
};

IdxLayout idx_layout(std::string_view bytes, const std::string& name) {
  if (bytes.substr(0, kMegatronMagic.size()) != kMegatronMagic)
    throw UserError(name + ": byte 0: expected the Megatron-LM index magic MMIDIDX, found " +
                    shown(bytes.substr(0, 9)));
  if (bytes.size() < kMegatronHeader)
    throw UserError(name + ": byte " + std::to_string(bytes.size()) +
                    ": the index ends inside its header of " + std::to_string(kMegatronHeader) + " bytes");
  if (const auto version = load<std::uint64_t>(bytes, 9); version != 1)
    throw UserError(name + ": byte 9: index version " + std::to_string(version) + "; expected 1");
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto entries = load<std::uint64_t>(bytes, 26);
  // Each sequence takes 12 bytes and each entry 8; compared by division so that a damaged count cannot
  // overflow.
  const std::size_t body = bytes.size() - kMegatronHeader;
  if (sequences > body / 12 || entries > (body - sequences * 12) / 8)
    throw UserError(name + ": byte " + std::to_string(bytes.size()) +
                    ": the index ends here; its header promises " + std::to_string(sequences) +
                    " sequences and " + std::to_string(entries) + " document entries");
  const std::size_t extra = body - sequences * 12 - entries * 8;
  if (extra != 0 && extra != sequences)
    throw UserError(name + ": byte " + std::to_string(bytes.size() - extra) + ": " + std::to_string(extra) +
                    " bytes after the index; expected none, or one mode byte a sequence (" +
                    std::to_string(sequences) + ")");
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
          name + ": byte " + std::to_string(at) + ": document entry " + std::to_string(entry) + " is " +
          std::to_string(end) + "; expected " +
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
    throw UserError(name + ": byte " + std::to_string(layout.doc_index + layout.entries * 8) +
                    ": the last document ends at sequence " + std::to_string(sequence) + "; expected " +
                    std::to_string(layout.sequences));
  return lengths;
}

// datatrove / nanotron: no header, u64 ends of the documents in tokens, rising.
Lengths read_datatrove_index(std::string_view bytes, const std::string& name) {
  if (bytes.size() % 8 != 0)
    throw UserError(name + ": byte " + std::to_string(bytes.size()) +
                    ": the index ends inside an entry; expected a multiple of 8 bytes");
  Lengths lengths(bytes.size() / 8);
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto end = load<std::uint64_t>(bytes, i * 8);
    if (end <= begin || end - begin > static_cast<std::uint64_t>(kLongestDocument))
      throw UserError(name + ": byte " + std::to_string(i * 8) + ": document " + std::to_string(i) +
                      " ends at token " + std::to_string(end) + " after one that ends at " +
                      std::to_string(begin) + "; expected 1 to " + std::to_string(kLongestDocument) +
                      " tokens more");
    lengths[i] = static_cast<std::int64_t>(end - begin);
    begin = end;
  }
  return lengths;
}

}  // namespace equipoise::formats
