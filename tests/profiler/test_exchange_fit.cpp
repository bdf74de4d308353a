// Exchanges of tokens in public tables: what a row moved, and that a fit finds what made it.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "profiler/fit/collective_fit.h"
#include "profiler/fit/predict.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_tables.h"

using namespace equipoise;

namespace {

const std::string kHead =
    "op,gpu,n_gpus,n_nodes,gpus_per_node,inter_node_network,size_bytes,time_us,algbw_GBps,busbw_GBps,"
    "software\n";

CsvTable table_of(const std::string& rows) {
  return CsvTable::parse(kHead + rows, "nccl.csv");
}

std::vector<const ExchangeSample*> pointers(const std::vector<ExchangeSample>& samples) {
  std::vector<const ExchangeSample*> all;
  for (const ExchangeSample& sample : samples) all.push_back(&sample);
  return all;
}

}  // namespace

TEST_CASE("rows of an exchange say what was moved, in the words of their benchmark") {
  const CsvTable table = table_of(
      "alltoall point-to-point RDMA (cross-rail),H100,16,2,8,EFA,65536,,16,,UCCL\n"
      "alltoall (EP dispatch),H800,8,1,8,,,,100,,DeepEP V1 normal kernels\n"
      "alltoall (EP combine),H800,64,8,8,CX7,,,50,,DeepEP V1 normal kernels\n"
      "alltoall low latency (combine),H800,16,2,8,CX7,,200,70,,DeepEP V1 low-latency kernels\n"
      "alltoall,H100,16,2,8,RoCE,1048576,,,25,NCCL\n"
      "alltoall (EP dispatch),H800,,1,8,,,,100,,DeepEP V1 normal kernels\n");
  std::string reason;
  const auto message = exchange_row(table, 0, reason);
  REQUIRE(message);
  CHECK(message->streams);
  CHECK(message->load.network_bytes == 65536);
  CHECK(message->seconds == doctest::Approx(4.096e-6));  // 64 KiB at 16 GB/s

  // 8 of 256 experts on 8 ranks: 8 (1 - C(224, 8) / C(256, 8)) = 5.2947 ranks, the own one counted.
  const auto dispatch = exchange_row(table, 1, reason);
  REQUIRE(dispatch);
  const double token_set = 4096.0 * 7168 * (1 + 4.0 / 128);
  CHECK(dispatch->seconds == doctest::Approx(5.2947 * token_set / 100e9).epsilon(1e-4));
  CHECK(dispatch->load.node_bytes == doctest::Approx(5.2947 * 7 / 8 * token_set).epsilon(1e-4));
  CHECK(dispatch->load.network_bytes == 0);

  // 4 of 8 nodes: 50 GB/s of 4 crossings, of which one in eight is none.
  const auto combine = exchange_row(table, 2, reason);
  REQUIRE(combine);
  CHECK(combine->seconds == doctest::Approx(4 * 4096.0 * 7168 * 2 / 50e9));
  CHECK(combine->load.network_bytes == doctest::Approx(3.5 * 4096 * 7168 * 2));

  const auto low = exchange_row(table, 3, reason);
  REQUIRE(low);
  CHECK(low->seconds == doctest::Approx(200e-6));
  CHECK(low->load.network_bytes == doctest::Approx(4 * 128.0 * 7168 * 2));  // half of 8 copies
  CHECK(reason.empty());

  CHECK(!exchange_row(table, 4, reason));  // NCCL's own, a collective like others
  CHECK(reason.empty());
  CHECK(!exchange_row(table, 5, reason));
  CHECK(reason == "no size or no group");
}

TEST_CASE("a row that states its setting is priced by it") {
  // 1,000 tokens of 4,096 in bf16 on 8 ranks, one expert each: 8.2 MB to 7 of 8 ranks.
  const CsvTable table = CsvTable::parse(
      "op,n_gpus,gpus_per_node,size_bytes,time_us,tokens,hidden,topk,experts\n"
      "alltoall (EP combine),8,8,,40,1000,4096,1,8\n",
      "made");
  std::string reason;
  const auto sample = exchange_row(table, 0, reason);
  REQUIRE(sample);
  CHECK(sample->load.node_bytes == doctest::Approx(1000.0 * 4096 * 2 * 7 / 8));
  CHECK(sample->load.network_bytes == 0);
  CHECK(sample->seconds == doctest::Approx(40e-6));
}

TEST_CASE("a fit finds the parameters that made messages and exchanges, and holds out whole GPU counts") {
  std::vector<ExchangeSample> stream;
  const MessageParameters wire{0.7, 0.6};
  for (double bytes = 8192; bytes <= 4 << 20; bytes *= 2) {
    ExchangeSample sample;
    sample.streams = true;
    sample.load = {0, bytes, 1};
    sample.group = {16, 8};
    sample.shape = {bytes};
    sample.seconds = messages_seconds(wire, sample.load, 1, 50);
    stream.push_back(sample);
  }
  const nlohmann::json messages = to_json(fit_exchange(pointers(stream), {0, 50}, Provenance::published));
  CHECK(messages["form"] == "messages-nic");
  CHECK(messages["parameters"]["message_us"].get<double>() == doctest::Approx(0.7).epsilon(0.02));
  CHECK(messages["parameters"]["network_efficiency"].get<double>() == doctest::Approx(0.6).epsilon(0.02));
  CHECK(messages["fitted_at_nic_GBps"] == 50.0);
  CHECK(messages["ranges"]["bytes"]["samples"] == nlohmann::json({8192.0, 4194304.0}));

  std::vector<ExchangeSample> exchanges;
  const ForwardingParameters kernels{30, 0.7, 0.85};
  for (const int ranks : {8, 16, 64})
    for (const double bytes : {30e6, 60e6}) {
      ExchangeSample sample;
      sample.group = {ranks, 8};
      sample.load = forwarded_load(routed_token({256, 8, sample.group, ranks / 8, 4}), sample.group, bytes);
      sample.shape = {static_cast<double>(ranks)};
      sample.seconds = forwarding_seconds(kernels, sample.load, {200, 50});
      exchanges.push_back(sample);
    }
  const nlohmann::json forwarding =
      to_json(fit_exchange(pointers(exchanges), {200, 50}, Provenance::published));
  CHECK(forwarding["form"] == "forwarding");
  CHECK(forwarding["parameters"]["nvlink_efficiency"].get<double>() == doctest::Approx(0.7).epsilon(0.03));
  CHECK(forwarding["parameters"]["network_efficiency"].get<double>() == doctest::Approx(0.85).epsilon(0.03));
  // Three GPU counts are too few to set one aside: each is held out in its turn.
  REQUIRE(forwarding["cross_validated"].size() == 1);
  CHECK(forwarding["cross_validated"][0]["samples"] == 6);
  CHECK(forwarding["hold_out"][0]["samples"] == 0);
  CHECK(forwarding["fitted_at_nvlink_GBps"] == 200.0);
}

TEST_CASE("a recipe's exchange asks for the rates of the boards that its rows are of") {
  SampleSet samples;
  const CsvTable table = table_of(
      "alltoall (EP dispatch),H800,8,1,8,,,,153,,DeepEP\nalltoall (EP combine),H800,8,1,8,,,,158,,DeepEP\n"
      "alltoall (EP dispatch),H800,16,2,8,,,,43,,DeepEP\nalltoall (EP combine),H800,16,2,8,,,,43,,DeepEP\n");
  CHECK(add_rows(table, {}, samples) == 0);
  CHECK(samples.exchange.size() == 4);
  nlohmann::json recipe = {
      {"name", "made"},
      {"summary", "made up"},
      {"device", {{"sms", 132}}},
      {"collective",
       {{"node", nlohmann::json::object()},
        {"exchange", {{"deepep", {{"nic_GBps", 50}, {"fit", {{"software", "DeepEP"}}}}}}}}}};
  CHECK_THROWS_WITH_AS(
      (void)make_profile(recipe, "recipe.json", samples),
      "recipe.json.collective.exchange.deepep.nvlink_GBps: expected the rate of the samples' "
      "NVLink, found nothing",
      UserError);
  recipe["collective"]["exchange"]["deepep"]["nvlink_GBps"] = 200;
  const nlohmann::json made = make_profile(recipe, "recipe.json", samples);
  const nlohmann::json& deepep = made["tables"]["collective"]["exchange"]["deepep"];
  CHECK(deepep["provenance"]["kind"] == "published");
  CHECK(deepep["parameters"]["nvlink_efficiency"].get<double>() < 1);
}
