// The columns of a result and the keys of a study: what their rows say is what users get, on every way.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "policies/base/text.h"
#include "sim/metrics/metrics.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_table.h"
#include "sim/report/text_table.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// The page is `text`. With EQUIPOISE_WRITE_PAGES=1 it is made so.
void check_page(const std::string& file, const std::string& text) {
  const std::string path = std::string(EQUIPOISE_SOURCE_DIR) + "/" + file;
  if (std::getenv("EQUIPOISE_WRITE_PAGES") != nullptr) std::ofstream(path) << text;
  std::ifstream page(path);
  std::ostringstream found;
  found << page.rdbuf();
  INFO(file << ": EQUIPOISE_WRITE_PAGES=1 test_report writes it anew");
  CHECK(found.str() == text);
}

std::string without_bars(std::string text) {
  for (std::size_t bar = text.find('|'); bar != std::string::npos; bar = text.find('|', bar + 2))
    text.insert(bar, "\\");
  return text;
}

}  // namespace

TEST_CASE("A column prints, scales and writes one value") {
  Metrics m;
  m.mfu = 0.415;
  m.speedup = 1.25;
  m.step_seconds = 2;
  m.tokens = 3000;
  m.exposed_comm_ratio[1] = 0.5;  // TP
  const RowFigures row{m, 8 * kGiB, 3 * kGiB, 1.5};
  std::map<std::string_view, std::string> printed;
  for (const ResultColumn& column : result_columns())
    if (column.is_printed()) printed[column.title] = column.printed(row);
  CHECK(printed["MFU %"] == "41.5");
  CHECK(printed["speed-up (95 %)"] == "1.25x");
  CHECK(printed["step s"] == "2.000");
  CHECK(printed["mem. free GiB"] == "5.0");
  CHECK(printed["pack ms"] == "1.50");
  CHECK(printed["bubble %"] == "-");
  const json node = metrics_json(m);
  CHECK(node["mfu"] == 0.415);
  CHECK(node["total_tokens"].dump() == "3000");
  CHECK(node["total_seconds"].is_null());
  CHECK(node["bubble_ratio"].is_null());
  CHECK(node["steps"].dump() == "0");
  CHECK(node["exposed_comm_ratio"]["tp"] == 0.5);
  CHECK(node["exposed_comm_ratio"].size() == 5);
}

TEST_CASE("Text is folded in its column, and no line of a table is broken") {
  TextTable table({"what", "found", "ms"});
  table.align_left(1);
  table.add({"a", "one two three four five six seven", "1.5"});
  const std::string whole =
      "what  found                               ms\na     one two three four five six seven  1.5\n";
  CHECK(table.text() == whole);
  CHECK(table.text(44) == whole);
  CHECK(table.text(40) ==
        "what  found                           ms\na     one two three four five six    1.5\n      seven\n");
  CHECK(table.text(10) == table.text(35));  // text keeps 24 columns, numbers theirs
  CHECK(folded("from  a b c", 8) == "from  a\nb c\n");
  CHECK(folded("from  " + std::string(30, 'x') + " y", 38, 6) == "from  " + std::string(30, 'x') + " y\n");
  CHECK(folded("from  " + std::string(30, 'x') + " yyy", 38, 6) ==
        "from  " + std::string(30, 'x') + "\n      yyy\n");
  CHECK(folded("abcdefgh", 3) == "abc\ndef\ngh\n");
}

TEST_CASE("Names that are cut look different where they differ") {
  const auto cut = [](std::vector<std::string> names, std::size_t width) {
    names = cut_apart(names, width);
    for (const std::string& name : names) CHECK(columns_of(name) <= width);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(cut({"a short one", "another"}, 11) == Names{"a short one", "another"});
  CHECK(cut({"a longer name", "another longer name"}, 10) == Names{"a longe...", "another..."});
  CHECK(cut({"packed, queues 1", "packed, queues 22"}, 14) == Names{"packed, qu...1", "packed, q...22"});
  CHECK(cut({"packed, queues 1, and more of it", "packed, queues 2, and more of it"}, 16) ==
        Names{"pac...1, and ...", "pac...2, and ..."});
  CHECK(cut({"twice the same name", "twice the same name"}, 9) == Names{"twice ...", "twice ..."});
  CHECK(cut({"Gr\u00f6\u00dfe von \u00e4", "Gr\u00f6\u00dfe von \u00f6"}, 9) ==
        Names{"Gr\u00f6\u00dfe...\u00e4", "Gr\u00f6\u00dfe...\u00f6"});
}

TEST_CASE("Each column has one name, and all ways have the same columns") {
  std::set<std::string_view> keys, titles;
  std::size_t printed = 0, metrics = 0, flags = 0;
  for (const ResultColumn& column : result_columns()) {
    CAPTURE(column.title);
    CAPTURE(column.key);
    CHECK(!column.help.empty());
    CHECK((column.is_printed() || !column.key.empty()));
    if (!column.key.empty()) CHECK(keys.insert(column.key).second);
    if (column.is_printed()) CHECK(titles.insert(column.title).second);
    printed += column.is_printed() ? 1 : 0;
    metrics += column.is_metric() ? 1 : 0;
    flags += column.has(kFlag) ? 1 : 0;
  }
  CHECK(comparison_header(false).size() == printed + 1);
  CHECK(comparison_header(true).size() == printed + 2);
  CHECK(comparison_cells(PolicyResult(), true).size() == printed + 2);
  CHECK(published_metrics().size() == metrics + 1);  // and bucket_size
  const Study study = parse(small_study());
  const std::string csv = summary_csv(study, refused_study(study, "not run"));
  const std::string header = csv.substr(0, csv.find('\n'));
  CHECK(std::count(header.begin(), header.end(), ',') == static_cast<std::ptrdiff_t>(metrics + flags) + 4);
}

TEST_CASE("The pages for users list every column and every key as their rows say") {
  std::string columns = R"(# Columns of a study's result

Made from `sim/metrics/metrics.cpp`. A metric is null (`-` in the table) where it makes no sense. How to read them:
[reading a result](reading-a-result.md).

| table | summary.json, CSV | unit | what |
| --- | --- | --- | --- |
)";
  for (const ResultColumn& column : result_columns())
    columns += "| " + std::string(column.title) + (column.key.empty() ? " | " : " | `") +
               std::string(column.key) + (column.key.empty() ? " | " : "` | ") + std::string(column.unit) +
               " | " + std::string(column.help) + " |\n";
  check_page("docs/reference/columns.md", columns);
  std::string keys = R"(# Keys of a study

Made from `sim/study/read/study_keys.cpp` and the policies' own rows, as `equipoise list schema` is. Integers may be sizes such
as "8K" or "1M".

| key | values | what |
| --- | --- | --- |
)";
  for_each_key([&](const std::string& key, const ordered_json& schema) {
    keys += "| `" + key + "` | " + values_text(schema) + " | " +
            without_bars(schema["description"].get<std::string>()) +
            (schema.contains("default") ? "; default " + schema["default"].dump() : "") + " |\n";
  });
  check_page("docs/reference/keys.md", keys);
}
