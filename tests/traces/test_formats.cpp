#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "policies/base/files.h"
#include "tests/traces/formats.h"
#include "tests/traces/scratch.h"
#include "traces/trace.h"

using equipoise::read_trace;
using equipoise::read_trace_bytes;
using equipoise::Trace;
using equipoise::TraceFormat;
using equipoise::TraceReadOptions;
using equipoise::UserError;
using equipoise::test::append;
using equipoise::test::error_of;
using equipoise::test::every_format;
using equipoise::test::FormatFile;
using equipoise::test::Scratch;
using Lengths = std::vector<std::int64_t>;

namespace {

Lengths lengths_of(std::string_view bytes, const std::string& name, const std::string& column = "") {
  TraceReadOptions options;
  options.column = column;
  return read_trace_bytes(bytes, name, options).lengths;
}

bool contains(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

std::string refusal(std::string_view bytes, const std::string& name, const std::string& column = "") {
  return error_of([&] { lengths_of(bytes, name, column); });
}

}  // namespace

TEST_CASE("plain text: one integer a line, blank lines, comments, CRLF and a missing last newline") {
  CHECK(lengths_of("1\n22\n333\n", "a.txt") == Lengths{1, 22, 333});
  CHECK(lengths_of("# tokens\r\n 7 \r\n\r\n8", "a.txt") == Lengths{7, 8});
  CHECK(lengths_of("2147483648\n", "a") == Lengths{std::int64_t{1} << 31});
}

TEST_CASE("a byte order mark before text or CSV is no part of it") {
  CHECK(lengths_of("\xef\xbb\xbf"
                   "5\r\n6\r\n",
                   "t.txt") == Lengths{5, 6});
  CHECK(lengths_of("\xef\xbb\xbflength,x\r\n5,1\r\n", "t.csv") == Lengths{5});
  CHECK_FALSE(refusal("5\n\xef\xbb\xbf"
                      "6\n",
                      "t.txt")
                  .empty());
}

TEST_CASE("a length that is zero, negative, not an integer or above 2^31 is refused with its line") {
  for (const char* bad :
       {"0", "-5", "2147483649", "1e3", "12.0", "abc", "+4", "99999999999999999999999", "1 2", "0x10"}) {
    CAPTURE(bad);
    const std::string message = refusal("5\n6\n" + std::string(bad) + "\n7\n", "lengths.txt");
    CHECK(contains(message, "lengths.txt:3: found '" + std::string(bad)));
    CHECK(contains(message, "from 1 to 2147483648"));
  }
}

TEST_CASE("a device is refused at once, and a file or what it unpacks to above the limit of inputs") {
  CHECK(contains(error_of([&] { read_trace("/dev/zero"); }), "/dev/zero: cannot be read: found a device"));
  const Scratch scratch;
  const std::string path = scratch.path("equal.txt.gz");
  Trace equal;
  equal.lengths.assign(400'000, 1);  // 800 kB as text, some hundred bytes packed
  equipoise::write_trace(equal, path);
  CHECK(read_trace(path).lengths.size() == 400'000);
  const equipoise::InputLimit before = equipoise::input_limit();
  equipoise::set_input_limit({500e3, true});
  CHECK(contains(error_of([&] { read_trace(path); }), "unpacks to more than fits"));
  equipoise::set_input_limit({100, true});
  CHECK(contains(error_of([&] { read_trace(path); }), "found a file of 0 MB, the limit of an input is 0 MB"));
  equipoise::set_input_limit({900e3, true});
  CHECK(read_trace(path).lengths.size() == 400'000);
  equipoise::set_input_limit(before);
}

TEST_CASE("an empty trace, a missing file and a folder are refused") {
  CHECK(contains(refusal("", "a.txt"), "a.txt: the trace is empty"));
  CHECK(contains(refusal("# only words\n\n", "a.txt"), "the trace is empty"));
  CHECK(contains(refusal("length\n", "a.csv"), "the trace is empty"));
  const Scratch scratch;
  const std::string missing = scratch.path("missing.txt");
  CHECK(contains(error_of([&] { read_trace(missing); }), missing + ": cannot be read: No such file"));
  CHECK(contains(error_of([&] { read_trace(scratch.folder().string()); }), "found a folder"));
}

TEST_CASE("CSV: the column by name, by index, the obvious one, or the only one") {
  const std::string table = "id,note,n_tokens\n1,\"a,b\",10\n2,\"say \"\"x\"\"\",20\n";
  CHECK(lengths_of(table, "t.csv") == Lengths{10, 20});
  CHECK(lengths_of(table, "t.csv", "n_tokens") == Lengths{10, 20});
  CHECK(lengths_of(table, "t.csv", "id") == Lengths{1, 2});
  CHECK(lengths_of(table, "t.csv", "2") == Lengths{10, 20});
  CHECK(lengths_of("5\n6\n", "t.csv") == Lengths{5, 6});            // no header, one column
  CHECK(lengths_of("whatever\n5\n6\n", "t.csv") == Lengths{5, 6});  // a header that says nothing, one column
  CHECK(lengths_of("a\tlength\n1\t9\n", "t.tsv") == Lengths{9});
  CHECK(lengths_of("1,9\n2,8\n", "t.csv", "1") == Lengths{9, 8});
}

TEST_CASE("CSV errors name the row's first line and the columns there are") {
  CHECK(contains(refusal("a,b\n1,2\n", "t.csv"), "name it (--column): a, b"));
  CHECK(contains(refusal("a,b\n1,2\n", "t.csv", "c"), "no column 'c'; the file has columns a, b"));
  CHECK(contains(refusal("1,2\n", "t.csv", "2"), "2 columns without names"));
  CHECK(contains(refusal("x,length\n\"two\nlines\",3\n1\n", "t.csv"), "t.csv:4: found 1 columns"));
  CHECK(contains(refusal("length\n3\nmany\n", "t.csv"), "t.csv:3: found 'many'"));
  CHECK(contains(refusal("length\n\"3\n", "t.csv"), "has no end"));
  CHECK(contains(refusal("x,length\n1,3\nfour, five,6\n", "t.csv"),
                 "t.csv:3: found 3 fields; expected at most 2"));
}

TEST_CASE("JSONL: an integer field, the size of a token array, nested fields, bare integers") {
  CHECK(lengths_of("{\"id\": \"a\", \"length\": 4}\n\n{\"length\": 5, \"id\": \"b\"}\n", "r.jsonl") ==
        Lengths{4, 5});
  CHECK(lengths_of("{\"input_ids\": [9, 9, 9], \"id\": 1}\n", "r.jsonl") == Lengths{3});
  CHECK(lengths_of("{\"a\": {\"b\": 7}, \"x\": 1}\n", "r.jsonl", "a.b") == Lengths{7});
  CHECK(lengths_of("{\"a.b\": 8, \"x\": 1}\n", "r.jsonl", "a.b") == Lengths{8});
  CHECK(lengths_of("3\n[1, 2]\n", "r.jsonl") == Lengths{3, 2});
}

TEST_CASE("JSONL errors name the line, the field and the fields there are") {
  CHECK(contains(refusal("{\"length\": 4}\n{\"length\": 0}\n", "r.jsonl"), "r.jsonl:2: found '0'"));
  CHECK(contains(refusal("{\"length\": 4}\n{\"len\": 1}\n", "r.jsonl"),
                 "r.jsonl:2: no field 'length'; the object has len"));
  CHECK(contains(refusal("{\"length\": 4.5}\n", "r.jsonl"), "found '4.5'"));
  CHECK(contains(refusal("{\"length\": -4}\n", "r.jsonl"), "found '-4'"));
  CHECK(contains(refusal("{\"length\": \"4\"}\n", "r.jsonl"), "r.jsonl:1: found"));
  CHECK(contains(refusal("{\"length\": 4}\n{\"length\": \n", "r.jsonl"),
                 "r.jsonl:2: not JSON, near \"{\"length\":\""));
  CHECK(contains(refusal("{\"a\": 1, \"b\": 2}\n", "r.jsonl"),
                 "or its name by --column (trace.column of a study); found a, b"));
  CHECK(contains(refusal("{\"id\": 1, \"meta\": {\"tokens\": 5, \"of\": {}}}\n", "r.jsonl"),
                 "found id, meta.of, meta.tokens"));
  // The only number of an object may mean anything.
  CHECK(contains(refusal("{\"id\": 6, \"name\": \"x\"}\n", "r.jsonl"), "r.jsonl:1: cannot tell which field"));
  CHECK(contains(refusal("{\"text\": \"some words\"}\n", "r.jsonl"),
                 "`equipoise trace record` counts its tokens"));
  CHECK(!contains(refusal("{\"id\": 6}\n", "r.jsonl"), "trace record"));
  CHECK(contains(refusal("{\"length\": \"some words\"}\n", "r.jsonl"),
                 "`equipoise trace record` counts its tokens"));
  CHECK(contains(refusal("{\"meta\": {\"length\": 6}}\n", "r.jsonl"), "found meta"));
  CHECK(lengths_of("{\"id\": 6}\n", "r.jsonl", "id") == Lengths{6});
  CHECK(contains(refusal("{\"input_ids\": [[1, 2], [3]]}\n", "r.jsonl"),
                 "r.jsonl:1: found [[1,2],[3]]; expected a length, or one flat array of token ids"));
  CHECK(contains(refusal("{\"input_ids\": []}\n", "r.jsonl"), "an empty array"));
}

TEST_CASE("JSONL: a row that is a pack gives its documents, in every library's form") {
  const Lengths three_and_five{3, 5};
  const std::string ids = "\"input_ids\": [5, 6, 7, 8, 9, 10, 11, 12]";
  for (const std::string more :
       {"\"seq_lengths\": [3, 5]", "\"seq_lens\": [3, 5]", "\"document_lengths\": [3, 5]",
        "\"cu_seqlens\": [0, 3, 8]", "\"cu_seqlens_q\": [0, 3, 8, -1, -1]", "\"cu_seq_lens_q\": [0, 3, 8, 8]",
        "\"seq_start_id\": [0, 3]", "\"position_ids\": [0, 1, 2, 0, 1, 2, 3, 4]",
        "\"seq_idx\": [0, 0, 0, 1, 1, 1, 1, 1]", "\"segment_ids\": [1, 1, 1, 2, 2, 2, 2, 2]",
        "\"attention_mask\": [1, 1, 1, 2, 2, 2, 2, 2]",
        "\"position_ids\": [0, 1, 2, 0, 1, 2, 3, 4], \"attention_mask\": [1, 1, 1, 1, 1, 1, 1, 1]",
        "\"seq_lengths\": [3, 5], \"num_tokens\": 8", "\"doc_ids\": [4, 9], \"seq_start_id\": [0, 3]"}) {
    CAPTURE(more);
    CHECK(lengths_of("{" + ids + ", " + more + "}\n", "r.jsonl") == three_and_five);
    CHECK(lengths_of("{" + ids + ", " + more + "}\n", "r.jsonl", "input_ids") == three_and_five);
  }
  // Padding is no text, in front or behind, with what else the row says.
  for (const std::string more :
       {"\"attention_mask\": [1, 1, 1, 1, 1, 0, 0, 0]", "\"attention_mask\": [0, 0, 0, 1, 1, 1, 1, 1]",
        "\"attention_mask\": [true, true, true, true, true, false, false, false]",
        "\"segment_ids\": [1, 1, 1, 1, 1, 0, 0, 0]", "\"seq_lengths\": [5]", "\"cu_seqlens\": [0, 5]",
        "\"position_ids\": [0, 1, 2, 3, 4, 0, 0, 0], \"attention_mask\": [1, 1, 1, 1, 1, 0, 0, 0]",
        "\"segment_ids\": [0, 0, 0, 1, 1, 1, 1, 1], \"attention_mask\": [0, 0, 0, 1, 1, 1, 1, 1]",
        "\"attention_mask\": [1, 1, 1, 1, 1, 0, 0, 0], \"length\": 8"}) {
    CAPTURE(more);
    CHECK(lengths_of("{" + ids + ", " + more + "}\n", "r.jsonl") == Lengths{5});
  }
  // A field alone, by name or as the only one.
  CHECK(lengths_of("{\"seq_lengths\": [3, 5], \"x\": 1}\n", "r.jsonl") == three_and_five);
  CHECK(lengths_of("{\"seq_lengths\": [3, 5]}\n", "r.jsonl", "seq_lengths") == three_and_five);
  CHECK(lengths_of("{\"pack\": {\"cu_seqlens\": [0, 3, 8]}}\n", "r.jsonl", "pack.cu_seqlens") ==
        three_and_five);
  CHECK(lengths_of("{\"doc_lens\": [3, 5]}\n", "r.jsonl", "doc_lens") == three_and_five);
  CHECK(lengths_of("{\"prompt_tokens\": [3, 5, 7]}\n", "r.jsonl", "prompt_tokens") == Lengths{3});
}

TEST_CASE("JSONL: fields that disagree, and lists that may be anything, are refused") {
  const std::string ids = "{\"input_ids\": [5, 6, 7, 8], ";
  CHECK(contains(refusal(ids + "\"seq_lengths\": [3, 5]}\n", "r.jsonl"),
                 "r.jsonl:1: seq_lengths: expected at most the 4 tokens of input_ids, found 8"));
  CHECK(
      contains(refusal(ids + "\"seq_lengths\": [-1]}\n", "r.jsonl"), "seq_lengths: expected lengths from 0"));
  CHECK(contains(refusal(ids + "\"cu_seqlens\": [1, 4]}\n", "r.jsonl"),
                 "cu_seqlens: expected numbers that rise from 0"));
  CHECK(contains(refusal(ids + "\"position_ids\": [0, 1]}\n", "r.jsonl"), "expected as many numbers as"));
  CHECK(contains(refusal(ids + "\"attention_mask\": [0, 0, 0, 0]}\n", "r.jsonl"), "a row of padding"));
  CHECK(contains(refusal("{\"seq_start_id\": [0, 3]}\n", "r.jsonl", "seq_start_id"), "expected token ids"));
  CHECK(contains(refusal(ids + "\"cu_seqlens\": [0, 2.5, 4]}\n", "r.jsonl"),
                 "r.jsonl:1: cu_seqlens: found [0,2.5,4]; expected a list of integers"));
  CHECK(contains(refusal(ids + "\"attention_mask\": [1.0, 1.0, 0.0, 0.0]}\n", "r.jsonl"),
                 "attention_mask: found"));
  CHECK(contains(refusal(ids + "\"segment_ids\": [0, 0, 1, 2]}\n", "r.jsonl"),
                 "segment_ids: expected an attention_mask next to it, since the row begins with 2 zeros"));
  CHECK(lengths_of(ids + "\"segment_ids\": [0, 1, 2, 0]}\n", "r.jsonl") == Lengths{1, 1});
  CHECK(lengths_of(ids + "\"position_ids\": [[0, 1, 2, 3]], \"doc_ids\": \"a\"}\n", "r.jsonl") == Lengths{4});
  CHECK(contains(refusal("{\"challenge\": [3, 5]}\n", "r.jsonl", "challenge"), "expected a length"));
  CHECK(contains(refusal("{\"scores\": [3, 5]}\n", "r.jsonl", "scores"),
                 "r.jsonl:1: scores: found [3,5]; expected a length"));
  CHECK(contains(refusal("{\"input_ids\": [3, 5], \"length\": 9}\n", "r.jsonl"),
                 "length is 9 and the number of its tokens is 2: which of them counts tokens?"));
  CHECK(contains(refusal("{\"length\": 400, \"num_tokens\": 100}\n", "r.jsonl"),
                 "r.jsonl:1: length is 400 and num_tokens is 100: which of them counts tokens?"));
  CHECK(lengths_of("{\"length\": 400, \"num_tokens\": 100}\n", "r.jsonl", "num_tokens") == Lengths{100});
  CHECK(lengths_of("{\"length\": 400, \"num_tokens\": 400}\n", "r.jsonl") == Lengths{400});
  CHECK(contains(refusal("length,num_tokens\n4,4\n400,100\n", "t.csv"),
                 "t.csv:3: length is 400 and num_tokens is 100"));
  CHECK(lengths_of("length,num_tokens\n400,100\n", "t.csv", "num_tokens") == Lengths{100});
}

TEST_CASE("npy: every integer type, either byte order, header versions 1 and 2") {
  const auto npy = [](const std::string& descr, const std::string& shape, const std::string& data,
                      char version = 1) {
    std::string dict = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
    std::string out = "\x93NUMPY";
    out += {version, '\0'};
    if (version == 1)
      append(out, static_cast<std::uint16_t>(dict.size()));
    else
      append(out, static_cast<std::uint32_t>(dict.size()));
    return out + dict + data;
  };
  const std::string two_shorts("\x05\x00\x00\x01", 4);
  CHECK(lengths_of(npy("<i2", "(2,)", two_shorts), "a.npy") == Lengths{5, 256});
  CHECK(lengths_of(npy("<u2", "(2,)", two_shorts, 2), "a.npy") == Lengths{5, 256});
  CHECK(lengths_of(npy(">u2", "(2,)", two_shorts), "a.npy") == Lengths{0x0500, 1});
  CHECK(lengths_of(npy("|u1", "(2,)", "\x05\xff"), "a.npy") == Lengths{5, 255});
  CHECK(contains(refusal(npy("|i1", "(2,)", "\x05\xff"), "a.npy"), "element 1 (byte"));
  CHECK(contains(refusal(npy("<f4", "(1,)", "\x05\x05\x05\x05"), "a.npy"), "array of type ''<f4''"));
  CHECK(contains(refusal(npy("<i2", "(1,2)", two_shorts), "a.npy"), "expected one dimension"));
  CHECK(contains(refusal(npy("<i2", "()", two_shorts), "a.npy"), "expected one dimension"));
  CHECK(contains(refusal(npy("<i2", "(3,)", two_shorts), "a.npy"), "the .npy file ends here"));
  CHECK(contains(refusal(npy("<i2", "(1,)", two_shorts), "a.npy"), "2 bytes after the array"));
  CHECK(contains(refusal(npy("<i2", "(99999999999999999999,)", two_shorts), "a.npy"), "ends here"));
  CHECK(contains(refusal(npy("<u8", "(1,)", std::string(8, '\xff')), "a.npy"), "above 2^31"));
  CHECK(contains(refusal("\x93NUMPY", "a.npy"), "ends here"));
  CHECK(contains(refusal("5\n6\n", "a.npy"), "expected the .npy magic"));
}

TEST_CASE("Megatron-LM .idx: a document is the sum of its sequences") {
  // Documents {3, 4, 5}: document 1 is cut into 2 + 2, document 2 into 2 + 1 + 2.
  const std::string index = equipoise::test::megatron_idx({3, 4, 5});
  CHECK(lengths_of(index, "c.idx") == Lengths{3, 4, 5});
  CHECK(lengths_of(index, "renamed.bin") == Lengths{3, 4, 5});  // recognised by its magic
  CHECK(lengths_of(equipoise::test::megatron_idx({3, 4, 5}, true), "c.idx") == Lengths{3, 4, 5});
}

TEST_CASE("a damaged .idx is refused with the byte") {
  const std::string good = equipoise::test::megatron_idx({3, 4, 5});
  for (std::size_t size = 1; size < good.size(); ++size)
    CHECK(!refusal(good.substr(0, size), "c.idx").empty());
  const auto changed = [&](std::size_t at, std::uint64_t value) {
    std::string bad = good;
    std::memcpy(bad.data() + at, &value, sizeof(value));
    return refusal(bad, "c.idx");
  };
  CHECK(contains(changed(9, 2), "byte 9: index version 2; expected 1"));
  CHECK(contains(changed(18, std::numeric_limits<std::uint64_t>::max()), "its header promises"));
  CHECK(contains(changed(26, std::uint64_t{1} << 61), "its header promises"));
  // 6 sequences: the document entries {0, 1, 3, 6} start at 34 + 12 * 6 = 106.
  CHECK(contains(changed(106, 1), "document entry 0 is 1; expected 0"));
  CHECK(contains(changed(106 + 16, 7), "document entry 2 is 7; expected 1 to 6"));
  CHECK(contains(changed(106 + 24, 5), "the last document ends at sequence 5; expected 6"));
  CHECK(contains(changed(106 + 8, 0), "document 0: found '0'"));
  CHECK(contains(refusal(good + "xx", "c.idx"), "2 bytes after the index"));
}

TEST_CASE("datatrove's .ds.index holds rising document ends") {
  CHECK(lengths_of(equipoise::test::datatrove_index({3, 4, 5}), "x.ds.index") == Lengths{3, 4, 5});
  CHECK(contains(refusal(equipoise::test::datatrove_index({3, 0}), "x.ds.index"),
                 "byte 8: document 1 ends at token 3"));
  CHECK(contains(refusal("1234567", "x.ds.index"), "inside an entry"));
}

TEST_CASE("Megatron-LM's mock lengths: the lognormal it describes, clipped, and files relative to it") {
  TraceReadOptions options;
  options.documents = 200000;
  const std::string config =
      R"({"mode":"distribution","type":"lognormal","min_seq_len":1024,"max_seq_len":8192,"mean_seq_len":4096,)"
      R"("lognormal_sigma":1.1})";
  const Trace trace = read_trace_bytes(config, "mock.json", options);
  REQUIRE(trace.lengths.size() == 200000);
  std::size_t least = 0;
  std::size_t most = 0;
  for (const std::int64_t length : trace.lengths) {
    REQUIRE(length >= 1024);
    REQUIRE(length <= 8192);
    least += length == 1024 ? 1 : 0;
    most += length == 8192 ? 1 : 0;
  }
  // ln median = ln 4096 - 1.1^2 / 2 = 7.7128. Below 1025: z = (6.9324 - 7.7128) / 1.1 = -0.7094, 23.90 %;
  // at or above 8192: z = (9.0109 - 7.7128) / 1.1 = 1.1801, 11.90 %. Five standard errors are 0.5 %.
  CHECK(static_cast<double>(least) / 200000 == doctest::Approx(0.2390).epsilon(0.02));
  CHECK(static_cast<double>(most) / 200000 == doctest::Approx(0.1190).epsilon(0.03));

  const Scratch scratch;
  scratch.write("x.csv", "length\n11\n12\n");
  CHECK(read_trace(scratch.write("mock.json", R"({"mode":"file","path":"x.csv"})")).lengths ==
        Lengths{11, 12});
}

TEST_CASE("mock descriptions that mean nothing are refused by key") {
  CHECK(contains(refusal("[1]", "m.json"), "found no JSON object"));
  CHECK(contains(refusal(R"({"mode":"files"})", "m.json"), "mode: found 'files'; expected"));
  CHECK(contains(refusal(R"({"mode":"distribution","type":"zipf"})", "m.json"), "type: found 'zipf'"));
  CHECK(contains(
      refusal(R"({"mode":"distribution","type":"lognormal","min_seq_len":9,"max_seq_len":8})", "m.json"),
      "max_seq_len: found 8; expected a number from 9"));
  CHECK(contains(refusal(R"({"mode":"distribution","type":"lognormal"})", "m.json"),
                 "min_seq_len: expected a value"));
  CHECK(contains(refusal(R"({"mode":"file","path":"self.json"})", "m.json"), "not another description"));
}

TEST_CASE("compressed files: truncated, damaged, misnamed, and several members") {
  const std::string text = equipoise::formats::text_bytes(equipoise::test::random_lengths(1, 5000));
  for (const auto how : {equipoise::formats::Compression::gzip, equipoise::formats::Compression::zstd}) {
    const std::string packed = equipoise::formats::compress(text, how);
    const std::string name = how == equipoise::formats::Compression::gzip ? "a.txt.gz" : "a.txt.zst";
    CHECK(contains(refusal(packed.substr(0, packed.size() / 2), name), "truncated"));
    CHECK(contains(refusal(packed.substr(0, packed.size() - 1), name), "truncated"));
    std::string damaged = packed;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
    CHECK(!refusal(damaged, name).empty());
    CHECK(lengths_of(packed + packed, name).size() == 10000);
    CHECK(lengths_of(packed, "no_suffix").size() == 5000);
    CHECK(contains(refusal(text, name), "promises a compressed file"));
  }
}

TEST_CASE("Parquet and Arrow files are sent to the recorder") {
  CHECK(contains(refusal("PAR1....", "x.bin"), "trace record"));
  CHECK(contains(refusal("anything", "x.parquet"), "trace record"));
}

TEST_CASE("every format gives back the lengths that it carries") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Lengths lengths = equipoise::test::random_lengths(seed, 1 + seed * 7 % 300);
    for (std::int64_t& length : lengths) length = std::min<std::int64_t>(length, (std::int64_t{1} << 31) - 1);
    for (const FormatFile& file : every_format(lengths)) {
      CAPTURE(seed);
      CAPTURE(file.name);
      CHECK(lengths_of(file.bytes, file.name, file.column) == lengths);
    }
  }
}

TEST_CASE("written traces read back equal, and a failed write leaves nothing behind") {
  const Scratch scratch;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Trace trace;
    trace.lengths = equipoise::test::random_lengths(seed + 100, 1 + seed * 31);
    for (const char* name : {"a.txt", "a.txt.gz", "a.txt.zst", "a.npy", "a.npy.gz", "a.npy.zst", "plain"}) {
      CAPTURE(name);
      write_trace(trace, scratch.path(name));
      CHECK(read_trace(scratch.path(name)).lengths == trace.lengths);
      equipoise::forget_input(scratch.path(name));
    }
  }
  Trace trace;
  trace.lengths = {1};
  CHECK(contains(error_of([&] { write_trace(trace, scratch.path("a.idx")); }), "cannot write .idx files"));
  CHECK(contains(error_of([&] { write_trace(trace, scratch.path("no/such/a.txt")); }), "cannot create"));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(scratch.folder())) ++files;
  CHECK(files == 7);
}

TEST_CASE("a file is replaced whole, behind its links, and what is no file is written to") {
  equipoise::forget_inputs();  // of other tests: a new file may get the number of one that is gone
  const Scratch scratch;
  const std::string link = scratch.path("link.txt");
  std::filesystem::create_symlink("deep.txt", link);  // a link to a link to a file yet to be made
  std::filesystem::create_symlink(scratch.path("file.txt"), scratch.path("deep.txt"));
  for (const std::string bytes : {"first\n", "second\n"}) {
    equipoise::write_file_atomically(link, bytes);
    CHECK(std::filesystem::is_symlink(link));
    CHECK_FALSE(std::filesystem::is_symlink(scratch.path("file.txt")));
    CHECK(equipoise::test::read_bytes(scratch.path("file.txt")) == bytes);
  }
  {
    equipoise::AtomicFile given_up(link);
    given_up.write("third\n");
  }
  CHECK(equipoise::test::read_bytes(link) == "second\n");
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.folder()), {}) == 3);
  CHECK(contains(error_of([&] { equipoise::write_file_atomically(scratch.folder().string(), "x"); }),
                 "found a folder"));
  // Written to, not replaced: a full disk as the kernel plays it.
  const std::string full = scratch.path("full");
  std::filesystem::create_symlink("/dev/full", full);
  if (std::filesystem::is_character_file(full))
    CHECK(contains(error_of([&] { equipoise::write_file_atomically(full, "x"); }), "No space left"));
  CHECK(std::filesystem::is_symlink(full));
  std::filesystem::create_symlink("loop", scratch.path("loop"));
  CHECK_FALSE(error_of([&] { equipoise::write_file_atomically(scratch.path("loop"), "x"); }).empty());
}

TEST_CASE("a file changed at random gives a trace of legal lengths or a UserError, never anything else") {
  const Lengths lengths = {5, 100, 70000, 131072, 1, 2, 3, 4096, 999999, 12};
  for (const FormatFile& file : every_format(lengths)) {
    equipoise::SplitMix64 random(file.bytes.size());
    for (int round = 0; round < 2000; ++round) {
      std::string bytes = file.bytes;
      const std::uint64_t changes = 1 + random.next() % 4;
      for (std::uint64_t i = 0; i < changes; ++i) {
        const std::size_t at = random.next() % bytes.size();
        switch (random.next() % 4) {
          case 0:
            bytes[at] = static_cast<char>(random.next());
            break;
          case 1:
            bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random.next() % 8)));
            break;
          case 2:
            bytes.resize(std::max<std::size_t>(at, 1));
            break;
          default:
            bytes.insert(at, bytes.substr(at / 2, random.next() % 16));
            break;
        }
      }
      try {
        for (const std::int64_t length : lengths_of(bytes, file.name, file.column)) {
          REQUIRE(length >= 1);
          REQUIRE(length <= equipoise::kLongestDocument);
        }
      } catch (const UserError& e) {
        REQUIRE(std::string(e.what()).find(file.name) == 0);
      }
    }
  }
}
