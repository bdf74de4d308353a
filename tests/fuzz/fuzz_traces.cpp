// Trace readers, by the format that the file's name stands for.
#include "tests/fuzz/law.h"
#include "tests/traces/formats.h"
#include "traces/trace.h"

using namespace equipoise;

namespace {

const std::vector<std::int64_t> kLong = {5, 1, 131072, 70, 2000000000, 8, 999, 12, 4096, 3, 1, 77};
const std::vector<std::int64_t> kShort = {5, 1, 13, 70, 21, 8};

void check_format(const std::string& name, const std::string& column, std::vector<std::string> seeds) {
  TraceReadOptions options;
  options.column = column;
  options.documents = 16;
  test::check_reader(column.empty() ? name : name + "-" + column, std::move(seeds),
                     [&](const std::string& bytes) {
                       const Trace trace = read_trace_bytes(bytes, name, options);
                       for (const std::int64_t length : trace.lengths)
                         if (length < 1 || length > kLongestDocument)
                           throw std::logic_error("a length that is none was read");
                     });
}

std::vector<std::string> seeds_of(const std::string& name) {
  std::vector<std::string> seeds;
  for (const auto& lengths : {kLong, kShort})
    for (const test::FormatFile& file : test::every_format(lengths))
      if (file.name == name) seeds.push_back(file.bytes);
  return seeds;
}

}  // namespace

TEST_CASE("Text is read or refused") {
  check_format("plain.txt", "", seeds_of("plain.txt"));
}
TEST_CASE("Gzip is read or refused") {
  check_format("plain.txt.gz", "", seeds_of("plain.txt.gz"));
}
TEST_CASE("Zstandard is read or refused") {
  check_format("plain.txt.zst", "", seeds_of("plain.txt.zst"));
}
TEST_CASE("CSV is read or refused, with a column and without") {
  check_format("table.csv", "", seeds_of("table.csv"));
  check_format("table.csv", "num_tokens", seeds_of("table.csv"));
}
TEST_CASE("JSONL is read or refused") {
  check_format("rows.jsonl", "meta.length", seeds_of("rows.jsonl"));
  check_format("rows.jsonl", "",
               {"{\"length\": 4, \"id\": 1}\n{\"length\": 5, \"id\": 2}\n",
                "{\"input_ids\": [3, 5, 8], \"id\": 7}\n", "3\n[1, 2]\n"});
}
TEST_CASE("NumPy arrays are read or refused") {
  check_format("array.npy", "", seeds_of("array.npy"));
}
TEST_CASE("Megatron-LM and datatrove indices are read or refused") {
  check_format("corpus.idx", "", seeds_of("corpus.idx"));
  check_format("corpus_modes.idx", "", seeds_of("corpus_modes.idx"));
  check_format("tokens.ds.index", "", seeds_of("tokens.ds.index"));
}
TEST_CASE("Megatron-LM mock lengths are read or refused") {
  check_format("mock.json", "",
               {R"({"mode": "distribution", "type": "lognormal", "min_seq_len": 1024, "max_seq_len": 8192,
                    "mean_seq_len": 4096, "lognormal_sigma": 1.1})"});
}
