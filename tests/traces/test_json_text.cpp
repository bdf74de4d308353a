// JSON that a user wrote: what is refused, and how the line says where.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "traces/json_text.h"

using namespace equipoise;
using nlohmann::json;

namespace {

std::string refusal(const std::string& text) {
  try {
    (void)parse_json(text, "f.json");
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

std::string nested(int depth) {
  const auto count = static_cast<std::size_t>(depth);
  return std::string(count, '[') + std::string(count, ']');
}

}  // namespace

TEST_CASE("what a user wrote is read as nlohmann reads it") {
  for (const char* text :
       {"{\"a\": [1, -2, 3.5, true, null, \"x\"], \"b\": {\"c\": {}, \"d\": []}}", "3", "\"word\"",
        "[[], [[1]], {}]", "18446744073709551615", "-0.0", "1e308", "\"\\u00e9\\ud83d\\ude00\\n\""})
    CHECK(parse_json(text, "f.json") == json::parse(text));
  CHECK(parse_json("// why\n{\"a\": /* what */ 1}", "f.json") == json{{"a", 1}});
  CHECK(parse_json("\xef\xbb\xbf{\"a\": 1}", "f.json") == json{{"a", 1}});
}

TEST_CASE("values are at most 64 levels deep, however deep the text is") {
  CHECK(refusal(nested(64)) == "accepted");
  CHECK(refusal(nested(65)) ==
        "f.json:1: [0][0][0][0]...: expected values at most 64 levels deep, found more");
  CHECK(refusal(std::string(1000000, '[')) == refusal(nested(65)));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "\n{\"a\": ";
  CHECK(refusal(objects) == "f.json:66: a.a.a.a...: expected values at most 64 levels deep, found more");
}

TEST_CASE("a key that is twice in one object is refused with its line and path") {
  CHECK(refusal("{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3}") == "f.json:3: a: this key is here twice");
  CHECK(refusal("{\"p\": [{\"n\": 1, \"q\": {\"x\": 1, \"x\": 1}}]}") ==
        "f.json:1: p[0].q.x: this key is here twice");
  CHECK(refusal("[{}, {\"a\": 1}, {\"a\": 1, \"\\u0061\": 2}]") == "f.json:1: [2].a: this key is here twice");
}

TEST_CASE("numbers beyond doubles, other encodings and what is no JSON are refused with their line") {
  CHECK(refusal("{\"a\":\n 1e999}") == "f.json:2: the number 1e999 is out of range");
  CHECK(refusal("[-1e999]") == "f.json:1: the number -1e999 is out of range");
  CHECK(refusal("{\"a\": \"\xff\"}") == "f.json:1: expected UTF-8, found other bytes");
  CHECK(refusal("\xff\xfe{") == "f.json:1: expected UTF-8, found UTF-16");
  CHECK(refusal("{\"a\": 1,\n}") == "f.json:2: not JSON, near \"}\"");
  CHECK(refusal("") == "f.json:1: not JSON, near nothing");
  CHECK(refusal("{\"a\": \"\x1b[31m\"}") == "f.json:1: not JSON, near \"{\"a\": \"\\x1b[31m\"}\"");
  CHECK(refusal("{\"a\": 1} {}") == "f.json:1: not JSON, near \"{\"a\": 1} {}\"");
}

TEST_CASE("Python's Infinity and NaN are read where its files are") {
  const json file = parse_python_json(
      "{\"limit\": [0.0, Infinity, -Infinity], \"none\": NaN, \"text\": \"Infinity \\\" NaN\"}", "f");
  CHECK(file["limit"][1] == std::numeric_limits<double>::max());
  CHECK(file["limit"][2] == std::numeric_limits<double>::lowest());
  CHECK(file["none"].is_null());
  CHECK(file["text"] == "Infinity \" NaN");
  CHECK_THROWS_WITH((void)parse_json("[Infinity]", "f"), doctest::Contains("not JSON"));
}

TEST_CASE("A text is JSON by what follows its first bracket, not by that alone") {
  for (const char* is :
       {"{\"a\": 1}", "[{\"a\": 1}]", " {\n \"a\": 1}", "[\n{}]", "{}", "[]", "{\"a\": 1}\n"})
    CHECK(looks_like_json(is));
  for (const char* other : {"[rank0]: step: 1", "[0] # nThread 1", "[2025-03-01 10:00] x", "{'loss': 1.2}",
                            "", "x", "{\"loss\": 1.2}\n{\"loss\": 1.1}\n"})
    CHECK_FALSE(looks_like_json(other));
}

TEST_CASE("an option's value is JSON or a word") {
  CHECK(json_or_word("64K", "--set a") == json("64K"));
  CHECK(json_or_word("[1, 2]", "--set a") == json{1, 2});
  CHECK(json_or_word("", "--set a") == json(""));
  CHECK_THROWS_WITH_AS((void)json_or_word("1e999", "--set a"), "--set a: the number 1e999 is out of range",
                       UserError);
  CHECK_THROWS_AS((void)json_or_word(nested(100000), "--set a"), UserError);
  CHECK_THROWS_WITH_AS((void)json_or_word("\xff", "--set a"), "--set a: expected UTF-8, found other bytes",
                       UserError);
}

TEST_CASE("a value in an error is one short line") {
  CHECK(shown_json(json{{"a", "x\ny"}}) == "{\"a\":\"x\\ny\"}");
  const std::string text = shown_json(json(std::string(200, 'x')));
  CHECK(text.size() == 80);
  CHECK(shown_json(json("\xff")) == "\"\xef\xbf\xbd\"");
}
