// Bytes of every format that carries the given lengths, written independently of the readers.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "policies/base/files.h"
#include "traces/formats/arrays.h"
#include "traces/formats/bytes.h"
#include "traces/formats/lines.h"

namespace equipoise::test {

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Megatron-LM .idx in which document i is cut into 1 + i % 3 sequences (fewer where it is shorter than that).
inline std::string megatron_idx(const std::vector<std::int64_t>& documents, bool with_modes = false) {
  std::vector<std::int32_t> sequences;
  std::vector<std::int64_t> doc_index = {0};
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::int64_t left = documents[i];
    for (std::size_t cut = 0; cut < i % 3 && left > 1; ++cut) {
      sequences.push_back(static_cast<std::int32_t>(left / 2));
      left -= left / 2;
    }
    sequences.push_back(static_cast<std::int32_t>(left));
    doc_index.push_back(static_cast<std::int64_t>(sequences.size()));
  }
  std::string out("MMIDIDX\0\0", 9);
  append<std::uint64_t>(out, 1);
  append<std::uint8_t>(out, 4);
  append<std::uint64_t>(out, sequences.size());
  append<std::uint64_t>(out, doc_index.size());
  for (const std::int32_t tokens : sequences) append(out, tokens);
  std::int64_t offset = 0;
  for (const std::int32_t tokens : sequences) {
    append(out, offset);
    offset += std::int64_t{4} * tokens;
  }
  for (const std::int64_t entry : doc_index) append(out, entry);
  if (with_modes) out.append(sequences.size(), '\0');
  return out;
}

inline std::string datatrove_index(const std::vector<std::int64_t>& documents) {
  std::string out;
  std::uint64_t end = 0;
  for (const std::int64_t length : documents) append(out, end += static_cast<std::uint64_t>(length));
  return out;
}

inline std::string csv(const std::vector<std::int64_t>& documents) {
  std::string out = "id,title,num_tokens\r\n";
  for (std::size_t i = 0; i < documents.size(); ++i)
    out += std::to_string(i) + ",\"a, \"\"b\"\"\nc\"," + std::to_string(documents[i]) + "\r\n";
  return out;
}

inline std::string jsonl(const std::vector<std::int64_t>& documents) {
  std::string out;
  for (const std::int64_t length : documents)
    out += R"({"text": "x", "meta": {"source": 1, "length": )" + std::to_string(length) + "}}\n";
  return out;
}

// A whole file of each format, by the name under which `automatic` recognises it.
struct FormatFile {
  std::string name;
  std::string bytes;
  std::string column;
};

inline std::vector<FormatFile> every_format(const std::vector<std::int64_t>& lengths) {
  const std::string text = formats::text_bytes(lengths);
  return {{"plain.txt", text, ""},
          {"plain.txt.gz", formats::compress(text, formats::Compression::gzip), ""},
          {"plain.txt.zst", formats::compress(text, formats::Compression::zstd), ""},
          {"table.csv", csv(lengths), ""},
          {"table.csv.gz", formats::compress(csv(lengths), formats::Compression::gzip), "num_tokens"},
          {"rows.jsonl", jsonl(lengths), "meta.length"},
          {"array.npy", npy_bytes(std::array{static_cast<std::int64_t>(lengths.size())}, lengths), ""},
          {"corpus.idx", megatron_idx(lengths), ""},
          {"corpus_modes.idx", megatron_idx(lengths, true), ""},
          {"tokens.ds.index", datatrove_index(lengths), ""}};
}

}  // namespace equipoise::test
