// `equipoise shard`, without its parser.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "policies/base/error.h"
#include "sim/cli/command_shard.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

std::string run(const ShardCommandOptions& options) {
  std::ostringstream out;
  shard_command(options, out);
  return out.str();
}

ShardCommandOptions options_for(const std::string& policy, std::vector<std::int64_t> lengths, int ranks) {
  ShardCommandOptions options;
  options.policy = policy;
  options.lengths = std::move(lengths);
  options.ranks = ranks;
  options.format = Format::json;
  return options;
}

}  // namespace

TEST_CASE("shard prints each rank's tokens, pairs and segments; seconds are null without a profile") {
  // Documents {1, 7} on two ranks: derived in tests/policies/test_sharding.cpp.
  const json expected = json::parse(R"({"chosen": "per-sequence", "ranks": [
    {"tokens": 4, "pairs": 15, "seconds": null, "segments": [[0, 0, 1], [1, 0, 1], [1, 5, 7]]},
    {"tokens": 4, "pairs": 14, "seconds": null, "segments": [[1, 1, 3], [1, 3, 5]]}]})");
  CHECK(json::parse(run(options_for("per-sequence", {1, 7}, 2))) == expected);
}

TEST_CASE("shard as CSV has one row a rank") {
  ShardCommandOptions options = options_for("per-sequence", {1, 7}, 2);
  options.format = Format::csv;
  CHECK(run(options) ==
        "rank,tokens,pairs,seconds,segments\n"
        "0,4,15,,0:0-1 1:0-1 1:5-7\n"
        "1,4,14,,1:1-3 1:3-5\n");
}

TEST_CASE("shard as a table says what was chosen and how even it is") {
  ShardCommandOptions options = options_for("contiguous", {8}, 2);
  options.format = Format::table;
  const std::string text = run(options);
  CHECK(text.find("contiguous: 8 tokens in 1 document over 2 CP ranks") == 0);
  // 10 and 26 pairs: 26 / 18.
  CHECK(text.find("slowest rank / mean: 1.444") != std::string::npos);
}

TEST_CASE("with a profile seconds are predicted, and more pairs take longer") {
  ShardCommandOptions options = options_for("contiguous", {131072}, 4);
  options.model = "llama2-7b";
  options.profile = "h100-sxm";
  const json ranks = json::parse(run(options))["ranks"];
  for (std::size_t r = 1; r < 4; ++r)
    CHECK(ranks[r]["seconds"].get<double>() > ranks[r - 1]["seconds"].get<double>());
  CHECK(ranks[0]["seconds"].get<double>() > 0);
}

TEST_CASE("dacp takes a document cost by name") {
  ShardCommandOptions options = options_for("dacp", {12, 2, 3}, 2);
  options.bucket_size = 10;
  options.cost = "quadratic";
  const json quadratic = json::parse(run(options));
  CHECK(quadratic["ranks"][0]["segments"].front() == json::array({1, 0, 2}));
  options.cost = "";
  options.model = "qwen2.5-0.5b";
  CHECK(json::parse(run(options)) == quadratic);
  options.cost = "profiled";
  options.profile = "h100-sxm";
  CHECK(json::parse(run(options))["ranks"].size() == 2);
}

TEST_CASE("seconds are those of the model's layers: the mean of sliding and full ones") {
  const test::Scratch folder;
  const json config = {{"model_type", "mistral"},  {"hidden_size", 4096},
                       {"num_hidden_layers", 4},   {"num_attention_heads", 32},
                       {"num_key_value_heads", 8}, {"intermediate_size", 14336},
                       {"vocab_size", 32000},      {"sliding_window_pattern", 2}};
  const auto slowest = [&](const json& window) {
    json windowed = config;
    windowed["sliding_window"] = window;
    ShardCommandOptions options = options_for("per-document", {65536}, 2);
    options.model = folder.write("config.json", windowed.dump());
    options.profile = "h100-sxm";
    const json ranks = json::parse(run(options))["ranks"];
    return std::max(ranks[0]["seconds"].get<double>(), ranks[1]["seconds"].get<double>());
  };
  const double full = slowest(nullptr), half = slowest(1024);
  CHECK(half > 0.5 * full);  // the full layers alone
  CHECK(half < 0.6 * full);
}

TEST_CASE("wrong input to shard is one UserError") {
  CHECK_THROWS_AS(run(options_for("per-sequence", {5}, 2)), UserError);
  CHECK_THROWS_AS(run(options_for("per-sequence", {8}, 0)), UserError);
  CHECK_THROWS_AS(run(options_for("per-sequenze", {8}, 2)), UserError);
  CHECK_THROWS_AS(run(options_for("dacp", {8}, 2)), UserError);
  ShardCommandOptions options = options_for("dacp", {12, 2, 7}, 2);
  options.bucket_size = 10;
  options.cost = "quadratic";
  CHECK_THROWS_WITH_AS(
      run(options), "--bucket-size: 21 tokens do not fit 2 CP ranks of 10; allowed: 11 or more", UserError);
  options = options_for("per-document", {8}, 2);
  options.remainder = "slot";
  CHECK_THROWS_WITH_AS(run(options), "shard.remainder: expected one of slots, tail, pad, found \"slot\"", UserError);
  options = options_for("per-document", {8}, 2);
  options.profile = "h100-sxm";
  CHECK_THROWS_AS(run(options), UserError);
}
