#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/traces/scratch.h"
#include "traces/trace.h"

using equipoise::Trace;
using equipoise::trace_stats;
using equipoise::TraceStats;

namespace {

Trace of(std::vector<std::int64_t> lengths) {
  Trace trace;
  trace.lengths = std::move(lengths);
  trace.origin = "test";
  return trace;
}

}  // namespace

TEST_CASE("counts, buckets and quantiles of a trace that one can count by hand") {
  // 11 documents; quantile 0.5 is the sorted value at round(0.5 * 10) = 5, the sixth: 1023.
  const TraceStats stats = trace_stats(of({1, 2, 1023, 1024, 2047, 2048, 5, 6, 7, 100000, 1024}), 1024, 4);
  CHECK(stats.documents == 11);
  CHECK(stats.tokens == 107187);
  CHECK(stats.shortest == 1);
  CHECK(stats.longest == 100000);
  CHECK(stats.mean == doctest::Approx(107187.0 / 11));
  REQUIRE(stats.quantiles.size() == 9);
  CHECK(stats.quantiles[3].share == 0.5);
  CHECK(stats.quantiles[3].tokens == 1023);
  CHECK(stats.quantiles.back().tokens == 100000);
  REQUIRE(stats.buckets.size() == 8);  // < 1K, 1K-2K, ..., 64K-128K
  CHECK(stats.buckets[0].documents == 6);
  CHECK(stats.buckets[0].tokens == 1 + 2 + 1023 + 5 + 6 + 7);
  CHECK(stats.buckets[1].documents == 3);  // 1024, 2047, 1024
  CHECK(stats.buckets[2].documents == 1);  // 2048
  CHECK(stats.buckets[7].begin == 65536);
  CHECK(stats.buckets[7].documents == 1);
}

TEST_CASE("mean length by position: windows of 4 over documents 3, 3, 2") {
  // Windows [3, 1] and [2, 2]: positions 0 to 3 are held by slices 3 3 3 1 and 2 2 2 2.
  CHECK(trace_stats(of({3, 3, 2}), 4, 4).mean_length_by_position == std::vector<double>{2.5, 2.5, 2.5, 1.5});
  CHECK(trace_stats(of({3, 3, 2}), 4, 2).mean_length_by_position == std::vector<double>{2.5, 2.0});
  CHECK(trace_stats(of({3, 3, 2, 3}), 4, 2).mean_length_by_position ==
        std::vector<double>{2.5, 2.0});  // short rest
  CHECK(trace_stats(of({12}), 4, 3).mean_length_by_position == std::vector<double>{4, 4, 4});
  CHECK(trace_stats(of({3}), 4, 4).mean_length_by_position.empty());
}

TEST_CASE("bins that do not divide the window hold every token once") {
  for (const int bins : {1, 3, 5, 7, 10}) {
    // Documents of the window's length: every position is held by a slice of 10.
    const std::vector<double> means = trace_stats(of({10, 10, 10}), 10, bins).mean_length_by_position;
    CHECK(means == std::vector<double>(static_cast<std::size_t>(bins), 10.0));
  }
}

TEST_CASE("the three outputs agree and the JSON parses") {
  const TraceStats stats = trace_stats(of({100, 2000, 300000}), 131072, 16);
  std::ostringstream json_text;
  std::ostringstream csv;
  std::ostringstream table;
  print_stats_json(stats, json_text);
  print_stats_csv(stats, csv);
  print_stats_table(stats, table);
  const auto parsed = nlohmann::json::parse(json_text.str());
  CHECK(parsed["tokens"] == 302100);
  CHECK(parsed["quantiles"]["0.5"] == 2000);
  CHECK(parsed["buckets"][1]["documents"] == 1);
  CHECK(parsed["mean_length_by_position"].size() == 16);
  CHECK(csv.str().find("1024,2048,1,2000,0.333333333,") != std::string::npos);
  CHECK(table.str().find("tokens 302,100") != std::string::npos);
  CHECK(table.str().find("256K - 512K") != std::string::npos);
}

TEST_CASE("sizes are shown short") {
  CHECK(equipoise::short_tokens(100) == "100");
  CHECK(equipoise::short_tokens(1024) == "1K");
  CHECK(equipoise::short_tokens(1536) == "1.5K");
  CHECK(equipoise::short_tokens(131072) == "128K");
  CHECK(equipoise::short_tokens(1 << 20) == "1M");
}
