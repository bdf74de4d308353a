// The fitter: finds parameters that are known, keeps what it holds out apart, reads tables as they are.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/random.h"
#include "profiler/fit/attention_fit.h"
#include "profiler/fit/collective_fit.h"
#include "profiler/fit/elementwise_fit.h"
#include "profiler/fit/gemm_fit.h"
#include "profiler/fit/least_squares.h"
#include "profiler/fit/predict.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_lists.h"
#include "profiler/fit/sample_tables.h"
#include "profiler/profile/dense_kernels.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

TEST_CASE("least squares over logarithms finds a line's two parameters and shrugs off one misprint") {
  // t = 3 + x / 50, with the 5th value ten times too large.
  std::vector<double> x;
  std::vector<double> t;
  for (int i = 1; i <= 12; ++i) {
    x.push_back(40.0 * i);
    t.push_back(3 + x.back() / 50);
  }
  t[4] *= 10;
  const std::vector<FitParameter> start{{"offset", 1, 1}, {"rate", 10, 1}};
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = std::log((p[0] + x[i] / p[1]) / t[i]);
  };
  FitOptions options;
  options.prior_weight = 1e-4;
  options.robust_scale = 0.01;
  const std::vector<double> found = fit_parameters(start, x.size(), residuals, options).values;
  CHECK(found[0] == doctest::Approx(3).epsilon(0.02));
  CHECK(found[1] == doctest::Approx(50).epsilon(0.02));
}

TEST_CASE("whole shapes are held out, every fourth of them, and each sample is judged by a fit without it") {
  FitProblem problem;
  problem.parameters = {{"level", 1, 10}};
  // Shapes 0..7, two samples each, shape s measured as exp(s).
  for (int s = 0; s < 8; ++s) problem.shapes.insert(problem.shapes.end(), 2, {static_cast<double>(s)});
  std::vector<std::size_t> asked(16, 0);
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    ++asked[i];
    return std::log(p[0]) - problem.shapes[i][0];
  };
  const GroupFit fit = fit_group(problem);
  // Folds 0 1 2 3, then one further: 1 2 3 0. Fold 2 holds shapes 2 and 5.
  CHECK(fit.held_out == std::vector<std::size_t>{4, 5, 10, 11});
  CHECK(fit.held_out_errors.size() == 4);
  CHECK(fit.crossed_errors.size() == 16);
  for (std::size_t i = 0; i < 16; i += 2) CHECK(fit.crossed_errors[i] == fit.crossed_errors[i + 1]);
  const ErrorSummary summary = summarize({-0.2, 0.1, 0.3});
  CHECK(summary.median == doctest::Approx(0.2));  // of 0.1, 0.2, 0.3
  CHECK(summary.bias == doctest::Approx(0.1));    // of -0.2, 0.1, 0.3
  CHECK(summary.p90 == doctest::Approx(0.28));    // 0.8 of the way from 0.2 to 0.3
}

TEST_CASE("every shape is held out once, whatever the deal") {
  FitProblem problem;
  problem.parameters = {{"level", 1, 1000}};
  problem.shapes = {{1}, {2}, {2}};
  const double measured[] = {1, 2, 2};
  problem.log_error = [&](std::span<const double> p, std::size_t i) { return std::log(p[0] / measured[i]); };
  const GroupFit fit = fit_group(problem);  // each shape is predicted by the level of the other
  CHECK(fit.crossed_errors[0] == doctest::Approx(1).epsilon(1e-3));     // 2 / 1 - 1
  CHECK(fit.crossed_errors[1] == doctest::Approx(-0.5).epsilon(1e-3));  // 1 / 2 - 1
  CHECK(fit.crossed_errors[2] == doctest::Approx(-0.5).epsilon(1e-3));
  // Beyond 64 shapes, shape i and shape i + 64 are held out together: nothing is left to say that 0 and 64
  // are e and not 1.
  problem.shapes.clear();
  for (int i = 0; i < 70; ++i) problem.shapes.push_back({static_cast<double>(i)});
  problem.log_error = [](std::span<const double> p, std::size_t i) {
    return std::log(p[0]) - (i == 0 || i == 64 ? 1 : 0);
  };
  const GroupFit many = fit_group(problem);
  for (std::size_t i = 0; i < 70; ++i) {
    const bool apart = i == 0 || i == 64;
    CHECK((apart ? many.crossed_errors[i] < -0.63 : std::abs(many.crossed_errors[i]) < 0.01));
  }
}

TEST_CASE("no value of a grid's columns is held out whole") {
  // Four lengths by four head dims: every fold gets one shape of each length and one of each head dim.
  FitProblem problem;
  problem.parameters = {{"level", 1, 10}};
  for (int length = 0; length < 4; ++length)
    for (int dim = 0; dim < 4; ++dim)
      problem.shapes.push_back({static_cast<double>(length), static_cast<double>(dim)});
  problem.log_error = [](std::span<const double> p, std::size_t) { return std::log(p[0]); };
  std::set<double> lengths;
  std::set<double> dims;
  for (const std::size_t i : fit_group(problem).held_out) {
    lengths.insert(problem.shapes[i][0]);
    dims.insert(problem.shapes[i][1]);
  }
  CHECK(lengths.size() == 4);
  CHECK(dims.size() == 4);
}

// Samples that a device with known parameters would give.
nlohmann::json synthetic_samples() {
  AttentionParameters attention;
  attention.launch_us = 9;
  attention.tile_us = 1.5;
  attention.tile_us_per_128 = 0.4;
  attention.block_us = 1.1;
  attention.block_us_per_128 = 2.5;
  attention.diagonal_blocks = 0.4;
  attention.imbalance_power = 2.5;
  attention.memory_GBps = 1500;
  GemmParameters gemm;
  gemm.launch_us = 6;
  gemm.memory_GBps = 1200;
  gemm.wave_blend = 0.5;
  gemm.tile_tflops = {310, 280, 200, 190, 80};
  gemm.tile_us = 2;
  gemm.power_loss = 0.1;
  gemm.power_half_gflop = 50;
  gemm.split_us = 2;
  constexpr int kSms = 64;
  nlohmann::json lists = {{"attention", nlohmann::json::array()},
                          {"gemm", nlohmann::json::array()},
                          {"elementwise", nlohmann::json::array()},
                          {"collective", nlohmann::json::array()}};
  SplitMix64 random(3);
  for (int i = 0; i < 60; ++i)
    for (const char* pass : {"forward", "backward"}) {
      const auto queries = static_cast<std::int64_t>(16 << (random.next() % 9));
      const std::int64_t keys = queries + static_cast<std::int64_t>(random.next() % 4000);
      const AttentionHeads heads{random.next() % 2 == 0 ? 64 : 128, 1 << (random.next() % 6), 1};
      const bool forward = std::string(pass) == "forward";
      AttentionWork work;
      forward ? work.add_causal(queries, keys) : work.add_causal_backward(queries, keys);
      const double factor = forward ? 1 : 2.5;
      lists["attention"].push_back({{"pass", pass},
                                    {"kernel", "k"},
                                    {"dtype", "bf16"},
                                    {"head_dim", heads.head_dim},
                                    {"query_heads", heads.query_heads},
                                    {"kv_heads", heads.kv_heads},
                                    {"pieces", {{queries, keys}}},
                                    {"seconds", factor * attention_seconds(attention, heads, kSms, work)}});
    }
  for (const int n : {512, 1024, 1536, 3072, 4096, 6144, 8192, 11008})
    for (const int k : {1024, 2048, 4096, 8192})
      for (const int m : {16, 200, 512, 1000, 2048, 4096, 8192})
        lists["gemm"].push_back({{"m", m},
                                 {"n", n},
                                 {"k", k},
                                 {"dtype", "bf16"},
                                 {"seconds", gemm_seconds(gemm, kSms, m, n, k)}});
  for (const char* op : {"copy", "cross_entropy", "optimizer", "residual_add", "rms_norm", "rope", "swiglu"})
    for (int i = 0; i < 12; ++i) {
      const double bytes = 1e5 * (1 << i);
      lists["elementwise"].push_back({{"op", op}, {"bytes", bytes}, {"seconds", 4e-6 + bytes / 900e9}});
    }
  return {{"schema", "equipoise.samples/1"},
          {"device",
           {{"name", "Synthetic"},
            {"memory_bytes", 1e10},
            {"memory_GBps", 1000},
            {"peak_bf16_tflops", 300},
            {"peak_fp8_tflops", 0},
            {"sms", kSms},
            {"gpus_per_node", 1},
            {"nvlink_GBps", 0},
            {"nic_GBps", 0},
            {"launch_seconds", 4e-6},
            {"framework_seconds_per_op", 0},
            {"reserve_bytes", 0}}},
          {"samples", lists}};
}

TEST_CASE("a fit to samples of a known device predicts what it did not see, and repeats bit for bit") {
  const nlohmann::json file = synthetic_samples();
  SampleSet samples;
  add_json(file, "synthetic.json", samples);
  CHECK(samples.attention.size() == 120);
  CHECK(samples.gemm.size() == 8 * 4 * 7);
  const nlohmann::json recipe = recipe_of_samples(file, "synthetic", samples);
  const nlohmann::json made = make_profile(recipe, "synthetic.json", samples);
  CHECK(made.dump() == make_profile(recipe, "synthetic.json", samples).dump());
  const nlohmann::json& tables = made["tables"];
  for (const char* pass : {"forward", "backward"}) {
    const nlohmann::json& table = tables["attention"]["kernels"]["k"][pass];
    CAPTURE(pass);
    CHECK(table["provenance"]["kind"] == "measured");
    CHECK(table["hold_out"][0]["samples"].get<int>() >= 12);
    CHECK(table["hold_out"][0]["median"].get<double>() < 0.01);
    CHECK(table["hold_out_pairs"].size() == table["hold_out"][0]["samples"].get<std::size_t>());
  }
  for (const nlohmann::json& group : tables["gemm"]["bf16"]["hold_out"])
    CHECK(group["median"].get<double>() < 0.01);
  CHECK(tables["elementwise"]["rope"]["parameters"]["memory_GBps"].get<double>() ==
        doctest::Approx(900).epsilon(0.001));
  const Profile profile(made, "synthetic.json");
  RangeUse use;
  CHECK(ElementwiseModel(profile).seconds(Elementwise::rope, 9e8, use) ==
        doctest::Approx(1.004e-3).epsilon(0.001));
}

TEST_CASE("a fit of experts' layers takes off what is around the products, and holds out whole models") {
  GemmParameters made;
  made.launch_us = 5;
  made.memory_GBps = 2800;
  made.wave_blend = 0.5;
  made.tile_tflops = {820, 800, 500, 450, 200};
  made.tile_us = 2;
  made.power_loss = 0.1;
  made.split_us = 1;
  made.group_us = 3;
  made.around_us = 15;
  made.around_us_per_MB = 0.6;
  std::vector<GemmSample> samples;
  for (const int hidden : {1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192})
    for (const int experts : {4, 16, 64})
      for (const int rows : {32, 128, 512, 2048}) {
        GemmSample sample;
        sample.labels = {{"dtype", "bf16"}};
        sample.m = rows;
        sample.n = 2 * hidden;
        sample.k = hidden;
        sample.next_n = hidden;
        sample.next_k = hidden;
        sample.groups = experts;
        sample.moved_bytes = 10.0 * rows * experts * hidden;
        sample.shape = {1.0 * hidden, 1.0 * hidden, 1.0 * experts};
        sample.seconds = gemm_call_seconds(GemmForm(made, 132), sample);
        samples.push_back(sample);
      }
  std::vector<const GemmSample*> pointers;
  for (const GemmSample& sample : samples) pointers.push_back(&sample);
  const nlohmann::json table = to_json(fit_gemm(pointers, 132, Provenance::published));
  CHECK(table["cross_validated"][0]["group"] == "rows of an expert >= 128");
  for (const nlohmann::json& group : table["cross_validated"]) CHECK(group["median"].get<double>() < 0.01);
  CHECK(table["parameters"]["around_us_per_MB"].get<double>() == doctest::Approx(0.6).epsilon(0.1));
  CHECK(table["parameters"]["group_us"].get<double>() == doctest::Approx(3).epsilon(0.2));
  CHECK(table["hold_out"][0]["samples"].get<int>() == 3 * table["hold_out"][1]["samples"].get<int>());
}

TEST_CASE("each pass of an elementwise op has its own table; without one the forward's counts for both") {
  nlohmann::json file = synthetic_samples();
  for (int i = 0; i < 12; ++i) {
    const double bytes = 1e5 * (1 << i);
    file["samples"]["elementwise"].push_back(
        {{"op", "rope"}, {"pass", "backward"}, {"bytes", bytes}, {"seconds", 4e-6 + bytes / 300e9}});
  }
  SampleSet samples;
  add_json(file, "s.json", samples);
  const Profile profile(make_profile(recipe_of_samples(file, "s", samples), "s.json", samples), "s.json");
  const ElementwiseModel model(profile);
  RangeUse use;
  // 9e8 bytes: 1 ms at 900 GB/s forward, 3 ms at 300 backward, 4 us of launch.
  CHECK(model.seconds(Elementwise::rope, 9e8, use) == doctest::Approx(1.004e-3).epsilon(0.001));
  CHECK(model.seconds(Elementwise::rope, 9e8, use, ElementwisePass::backward) ==
        doctest::Approx(3.004e-3).epsilon(0.001));
  CHECK(model.seconds(Elementwise::copy, 9e8, use, ElementwisePass::backward) ==
        model.seconds(Elementwise::copy, 9e8, use));
}

TEST_CASE("our own elementwise samples find the size of a cache and the rates on both sides of it") {
  // 1 us, 20 GB/s beyond 8 MB and 100 within; 1 / (1 + (bytes / 8 MB)^4) of an op's bytes are within.
  nlohmann::json file = synthetic_samples();
  nlohmann::json& rows = file["samples"]["elementwise"];
  rows = nlohmann::json::array();
  for (int i = 0; i < 26; ++i) {
    const double bytes = 2e4 * std::exp2(0.5 * i);
    const double within = 1 / (1 + std::pow(bytes / 8e6, 4));
    rows.push_back({{"op", "rope"},
                    {"bytes", bytes},
                    {"seconds", 1e-6 + bytes * (within / 100e9 + (1 - within) / 20e9)}});
  }
  SampleSet samples;
  add_json(file, "s.json", samples);
  const Profile profile(make_profile(recipe_of_samples(file, "s", samples), "s.json", samples), "s.json");
  const nlohmann::json& fit = profile.table("elementwise").at("rope").at("parameters");
  CHECK(fit.at("cache_power") == 4.0);
  CHECK(fit.at("cache_MB").get<double>() == doctest::Approx(8).epsilon(0.02));
  CHECK(fit.at("cache_GBps").get<double>() == doctest::Approx(100).epsilon(0.02));
  CHECK(fit.at("memory_GBps").get<double>() == doctest::Approx(20).epsilon(0.02));
}

TEST_CASE("a pass that is none is refused, and rows of another tool's table need a recipe") {
  nlohmann::json file = synthetic_samples();
  file["samples"]["elementwise"].push_back(
      {{"op", "rope"}, {"pass", "bwd"}, {"bytes", 1e6}, {"seconds", 1e-5}});
  SampleSet samples;
  CHECK_THROWS_WITH_AS(add_json(file, "s.json", samples),
                       doctest::Contains("pass: expected forward or backward, found 'bwd'"), UserError);
  file = synthetic_samples();
  samples = {};
  add_json(file, "s.json", samples);
  ElementwiseSample row;  // as of a .csv file, whose columns are its labels
  row.labels = {{"op", "RMSNorm"}};
  row.bytes = 1e6;
  row.seconds = 1e-5;
  samples.elementwise.push_back(row);
  CHECK_THROWS_WITH_AS(recipe_of_samples(file, "s", samples), doctest::Contains("--recipe: needed"),
                       UserError);
}

TEST_CASE("collectives of several nodes make a network, at the rate of its NIC") {
  nlohmann::json file = {{"device", {{"name", "G"}}}, {"samples", {{"collective", nlohmann::json::array()}}}};
  const auto add = [&](const char* kind, int ranks) {
    for (double bytes = 4096; bytes <= 1e9; bytes *= 4)
      file["samples"]["collective"].push_back({{"kind", kind},
                                               {"bytes", bytes},
                                               {"ranks", ranks},
                                               {"ranks_per_node", 4},
                                               {"seconds", 2e-5 + bytes * (ranks > 4 ? 1e-10 : 1e-11)}});
  };
  add("all_reduce", 8);
  const auto recipe = [&] {
    SampleSet samples;
    add_json(file, "s.json", samples);
    return recipe_of_samples(file, "s", samples, "ours");
  };
  CHECK_THROWS_WITH_AS(recipe(), doctest::Contains("--nic-GBps: needed"), UserError);
  file["device"]["nic_GBps"] = 50;
  CHECK_THROWS_WITH_AS(recipe(), doctest::Contains("inside a node besides those between nodes, found none"),
                       UserError);
  for (const std::string_view kind : kCollectiveNames) add(std::string(kind).c_str(), 4);
  const nlohmann::json made = recipe();
  CHECK(made.at("collective").at("default_network") == "ours");
  CHECK(made.at("collective").at("networks").at("ours").at("nic_GBps") == 50);
  CHECK(made.at("collective").at("node").size() == kCollectiveNames.size());
}

TEST_CASE("derived tables say so, and follow their rule") {
  const nlohmann::json file = synthetic_samples();
  SampleSet samples;
  add_json(file, "s.json", samples);
  nlohmann::json recipe = recipe_of_samples(file, "s", samples);
  recipe.erase("attention");
  recipe.erase("gemm");
  recipe["elementwise"]["rope"] = {
      {"derive",
       {{"copy", "elementwise/copy"}, {"multiply", {{"memory_GBps", 0.5}}}, {"rule", "half a copy"}}}};
  const nlohmann::json made = make_profile(recipe, "s.json", samples);
  const nlohmann::json& rope = made["tables"]["elementwise"]["rope"];
  CHECK(rope["provenance"]["kind"] == "derived");
  CHECK(rope["provenance"]["source"] == "half a copy");
  CHECK_FALSE(rope.contains("hold_out"));
  CHECK(rope["parameters"]["memory_GBps"].get<double>() == doctest::Approx(450).epsilon(0.001));
  recipe["elementwise"]["rope"]["derive"]["multiply"] = {{"speed", 2}};
  CHECK_THROWS_AS(make_profile(recipe, "s.json", samples), UserError);
  recipe["elementwise"]["rope"] = {{"fit", {{"op", "nothing"}}}};
  CHECK_THROWS_AS(make_profile(recipe, "s.json", samples), UserError);
}

TEST_CASE("tables are read with their quotes, and bad cells are named by line") {
  const CsvTable table = CsvTable::parse("a,b\n1,\"x, \"\"y\"\"\"\n2,\"two\nlines\"\n3,z\n", "t.csv");
  CHECK(table.rows() == 3);
  CHECK(table.text(0, "b") == "x, \"y\"");
  CHECK(table.line(2) == 5);  // the second row spans lines 3 and 4
  CHECK(table.number(1, "a") == 2.0);
  CHECK_THROWS_WITH_AS((void)table.number(2, "b"), "t.csv:5: b: expected a number, found 'z'", UserError);
  CHECK_THROWS_WITH_AS(CsvTable::parse("a,b\n1\n", "t.csv"),
                       "t.csv:2: expected 2 cells as in the header, found 1", UserError);
  CHECK(csv_cell("x, \"y\"") == "\"x, \"\"y\"\"\"");
}

TEST_CASE("an attention row means its pairs, window and heads") {
  const std::string header =
      "gpu,kernel,dtype,pass,mask,layout,batch,seq_q,seq_kv,n_q_heads,n_kv_heads,head_dim,time_ms,tflops,"
      "method,"
      "source,notes\n";
  const CsvTable table =
      CsvTable::parse(header +
                          "G,K,bf16,fwd,causal,batched,2,1000,1000,8,2,128,,100,,,\n"
                          "G,K,bf16,bwd,full,batched,1,64,256,8,2,64,0.5,,,,\n"
                          "G,K,fp16,fwd,causal,batched,,512,512,,,64,,180,,,\n"
                          "G,K,bf16,fwd,causal,packed documents,1,1024,1024,8,8,128,,9,,,\n",
                      "rows.csv");
  std::string reason;
  const auto causal = attention_row(table, 0, {}, reason);
  REQUIRE(causal.has_value());
  // 2 * 500,500 pairs * 8 heads * 128 dims * 4 = 4.100096 GFLOP at 100 TFLOP/s.
  CHECK(causal->seconds[0] == doctest::Approx(41.00096e-6));
  CHECK(attention_work(causal->mask, DocumentMask::varlen, causal->packings[0]).tiles == 16);
  const auto full = attention_row(table, 1, {}, reason);
  REQUIRE(full.has_value());
  CHECK(full->pass == "backward");
  CHECK(full->seconds[0] == doctest::Approx(0.5e-3));
  CHECK(attention_work(full->mask, DocumentMask::varlen, full->packings[0]).blocks == 4);
  const auto chart = attention_row(table, 2, {}, reason);  // 16K tokens, 2,048 hidden: 32 documents, 32 heads
  REQUIRE(chart.has_value());
  CHECK(chart->heads.query_heads == 32);
  CHECK(attention_work(chart->mask, DocumentMask::varlen, chart->packings[0]).tiles == 32 * 4);
  CHECK_FALSE(attention_row(table, 3, {}, reason).has_value());
  CHECK(reason.find("--document-histogram") != std::string::npos);
}

TEST_CASE("counts of an attention row that no int holds are refused, not cut") {
  const auto refusal = [](const std::string& cells) -> std::string {
    const CsvTable table = CsvTable::parse(
        "pass,mask,layout,batch,seq_q,seq_kv,n_q_heads,n_kv_heads,head_dim,time_ms,tflops,method,notes\n"
        "fwd,causal,batched," +
            cells + ",1,,,\n",
        "rows.csv");
    std::string reason;
    try {
      (void)attention_row(table, 0, {}, reason);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal("2,1000,1000,8,2,128").empty());
  const std::string expected = ": expected a whole number from 1 to 2^31 - 1, found ";
  CHECK(refusal("2,1000,1000,1e20,2,128") == "rows.csv:2: n_q_heads" + expected + "1e20");
  CHECK(refusal("2,1000,1000,8,1e20,128") == "rows.csv:2: n_kv_heads" + expected + "1e20");
  CHECK(refusal("2,1000,1000,8,2,-1") == "rows.csv:2: head_dim" + expected + "-1");
  CHECK(refusal("2,1e20,1000,8,2,128") == "rows.csv:2: seq_q" + expected + "1e20");
  CHECK(refusal("2,1000,0.5,8,2,128") == "rows.csv:2: seq_kv" + expected + "0.5");
  CHECK(refusal("-2,1000,1000,8,2,128") == "rows.csv:2: batch" + expected + "-2");
  CHECK(refusal("2000000000,1000,1000,8,2,128") ==
        "rows.csv:2: batch: expected fewer than 2^31 tokens in all, found 2000000000 documents of 1000");
}

TEST_CASE("a document histogram with lengths or counts that cannot be is refused with its line") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("equipoise_histogram." + std::to_string(::getpid())))
          .string();
  const auto read = [&](const std::string& row) {
    std::ofstream(path) << "length_min,length_max,n_docs\n" << row << "\n";
    return read_document_histogram(path);
  };
  const DocumentHistogram good = read("0,16,3.5");
  REQUIRE(good.size() == 1);
  CHECK(good[0].shortest == 1);
  CHECK(good[0].longest == 16);
  CHECK(good[0].documents == 3.5);
  for (const char* row : {"1,9223372036854775807,3", "1,5,-3", "1,5,nan", "-9,0,3", "5,1,3", "1,5"}) {
    CAPTURE(row);
    CHECK_THROWS_WITH_AS((void)read(row), doctest::Contains((path + ":2: expected length_min").c_str()),
                         UserError);
  }
  std::filesystem::remove(path);
}

TEST_CASE("drawn documents fill the total, none longer than a quarter of it") {
  const DocumentHistogram histogram{{1, 10, 5}, {11, 5000, 2}};
  const std::vector<std::int64_t> documents = draw_documents(histogram, 4096, 7);
  CHECK(documents == draw_documents(histogram, 4096, 7));
  CHECK(std::accumulate(documents.begin(), documents.end(), std::int64_t{0}) == 4096);
  for (const std::int64_t length : documents) {
    CHECK(length >= 1);
    CHECK(length <= 1024);
  }
}

}  // namespace
}  // namespace equipoise
