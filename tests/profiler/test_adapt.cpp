// A shipped profile calibrated by few samples of a machine whose numbers are known.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "profiler/fit/adapt.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/dense_kernels.h"

namespace equipoise {
namespace {

using nlohmann::json;

const Profile& base() {
  static const Profile profile = Profile::load("h100-sxm");
  return profile;
}

// A fabric with twice the latencies and two thirds of the rate of the base's default.
struct Fabric {
  NetworkParameters network =
      network_parameters(base().table("collective").at("networks").at("rail-400"), "rail-400");
  NodeParameters node = node_parameters(base().table("collective").at("node").at("all_reduce"), "node");
  static constexpr double kNic = 50;
  static constexpr GroupShape kGroup{16, 8};

  Fabric() {
    for (double* us : {&network.launch_us, &network.step_us, &network.reduce_ramp_us, &network.ramp_us})
      *us *= 2;
    network.efficiency *= 2.0 / 3;
  }
  [[nodiscard]] double seconds(double bytes) const {
    return network_seconds(network, node, Collective::all_reduce, bytes, kGroup, kNic);
  }
  [[nodiscard]] SampleSet samples(const std::vector<double>& sizes) const {
    SampleSet set;
    for (const double bytes : sizes)
      set.collective.push_back({{{"op", "all_reduce"}, {"source", "all_reduce.txt"}},
                                Collective::all_reduce,
                                bytes,
                                kGroup,
                                seconds(bytes)});
    return set;
  }
};

std::vector<double> octaves() {
  std::vector<double> sizes;
  for (double bytes = 1024; bytes <= 8e9; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

double median_error(const Profile& profile, const Fabric& fabric) {
  const CollectiveModel model(profile, {});
  std::vector<double> errors;
  RangeUse use;
  for (const double bytes : octaves())
    errors.push_back(std::abs(
        model.seconds(Collective::all_reduce, bytes, Fabric::kGroup, use) / fabric.seconds(bytes) - 1));
  std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2),
                   errors.end());
  return errors[errors.size() / 2];
}

Profile calibrated(const SampleSet& samples, Notes& notes) {
  return Profile(adapt_profile(base(), {"mine", "ours", "", 0, "2026-11-23", "NVIDIA H100"}, samples, notes),
                 "mine.json");
}

}  // namespace

TEST_CASE("one point of a new fabric helps, three help more, ten nearly find it") {
  const Fabric fabric;
  const double borrowed = median_error(base(), fabric);
  CHECK(borrowed > 0.25);  // half the latency, or two thirds of the time
  Notes notes;
  const double one = median_error(calibrated(fabric.samples({1 << 26}), notes), fabric);
  const double three = median_error(calibrated(fabric.samples({8192, 1 << 22, 1 << 30}), notes), fabric);
  std::vector<double> ten;
  for (int i = 0; i < 10; ++i) ten.push_back(2048.0 * std::exp2(2 * i));
  const double all = median_error(calibrated(fabric.samples(ten), notes), fabric);
  CHECK(one < borrowed);
  CHECK(three < 0.5 * borrowed);
  CHECK(all < 0.04);
}

TEST_CASE("a calibrated profile says what was measured, when, and what is borrowed") {
  const Fabric fabric;
  Notes notes;
  const Profile profile = calibrated(fabric.samples({8192, 1 << 22, 1 << 30}), notes);
  const json& collective = profile.table("collective");
  CHECK(collective.at("default_network") == "ours");
  const json& network = collective.at("networks").at("ours");
  CHECK(network.at("provenance").at("kind") == "calibrated");
  CHECK(network.at("provenance").at("samples") == 3);
  CHECK(network.at("provenance").at("date") == "2026-11-23");
  CHECK(network.at("provenance").at("borrowed_from") == "h100-sxm");
  CHECK(network.at("provenance").at("borrowed_table") == "collective/networks/rail-400");
  CHECK(network.at("provenance").at("files") == json::array({"all_reduce.txt"}));
  CHECK(network.at("ranges").at("bytes").at("samples") == json::array({8192.0, 1073741824.0}));
  CHECK(network.at("base_error").at("samples") == 3);
  REQUIRE(network.at("base_errors").size() == 2);  // the base's, by the groups of cross_validated
  CHECK(network.at("base_errors")[0].at("group") == "above 1 MiB");
  CHECK(network.at("base_errors")[0].at("samples") == 2);
  CHECK(network.at("base_errors")[1].at("samples") == 1);
  CHECK(profile.table("gemm").at("bf16").at("provenance").at("borrowed_from") == "h100-sxm");
  CHECK(profile.table("gemm").at("bf16").at("parameters") ==
        base().table("gemm").at("bf16").at("parameters"));
  CHECK(collective.at("networks").at("efa-400").at("parameters") ==
        base().table("collective").at("networks").at("efa-400").at("parameters"));
  CHECK(profile.json().at("summary").get<std::string>().find("calibrated by samples of 2026-11-23") !=
        std::string::npos);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].kind == "samples_of_table");
  CHECK(notes[0].count("samples") == 3);
  CHECK(notes[1] == Note{"nic_of_base", "collective/networks/ours", {{"GBps", 50.0}, {"base", "h100-sxm"}}});
  REQUIRE(network.at("cross_validated").size() == 2);  // of one kind
  CHECK(network.at("cross_validated")[0].at("group") == "above 1 MiB");
}

TEST_CASE("points that say what the base says leave it where it is") {
  const CollectiveModel model(base(), {});
  RangeUse use;
  SampleSet set;
  for (const double bytes : {65536.0, 1e8})
    set.collective.push_back({{{"op", "all_reduce"}},
                              Collective::all_reduce,
                              bytes,
                              {16, 8},
                              model.seconds(Collective::all_reduce, bytes, {16, 8}, use)});
  Notes notes;
  const Profile profile = calibrated(set, notes);
  const json& was = base().table("collective").at("networks").at("rail-400").at("parameters");
  for (const auto& item : profile.table("collective").at("networks").at("ours").at("parameters").items()) {
    const std::string name = item.key();
    CAPTURE(name);
    CHECK(item.value().get<double>() == doctest::Approx(was.at(name).get<double>()).epsilon(1e-3));
  }
}

TEST_CASE("two products of a slower GPU move all rates of a GEMM table") {
  const GemmModel model(base(), Precision::bf16);
  RangeUse use;
  SampleSet set;
  for (const std::int64_t m : {4096, 16384}) {
    GemmSample sample;
    sample.labels = {{"dtype", "bf16"}};
    sample.m = m;
    sample.n = sample.k = 8192;
    sample.seconds = 1.25 * model.seconds(m, 8192, 8192, use);
    set.gemm.push_back(sample);
  }
  Notes notes;
  const Profile profile = calibrated(set, notes);
  const GemmModel slower(profile, Precision::bf16);
  const double unseen = slower.seconds(8192, 5120, 4096, use) / model.seconds(8192, 5120, 4096, use);
  CHECK(unseen == doctest::Approx(1.25).epsilon(0.06));
  CHECK(profile.table("gemm").at("bf16").at("provenance").at("kind") == "calibrated");
}

TEST_CASE(
    "the one attention kernel that was measured, forward and backward, is the one that simulations use") {
  const auto sample = [](const char* kernel, const char* pass) {
    AttentionSample one;
    one.labels = {{"kernel", kernel}, {"dtype", "bf16"}};
    one.pass = pass;
    one.heads = {128, 8, 8};
    one.packings = {{{4096, 4096}}};
    one.shape = {128, 8, 4096, 4096};
    one.least_queries = one.most_keys = 4096;
    one.blocked.add_causal(4096, 4096);
    one.seconds = {2e-3};
    return one;
  };
  const auto default_of = [&](const std::vector<AttentionSample>& samples, Notes& notes) {
    SampleSet set;
    set.attention = samples;
    return calibrated(set, notes).table("attention").at("default").get<std::string>();
  };
  const AttentionSample forward = sample("flash-attention-2", "forward"),
                        backward = sample("flash-attention-2", "backward");
  Notes notes;
  CHECK(default_of({forward, backward}, notes) == "flash-attention-2");
  REQUIRE(notes.size() == 3);
  const auto kernel_note = [](const char* kind, const char* measured) {
    return Note{
        kind, "attention", {{"measured", measured}, {"base", "h100-sxm"}, {"default", "flash-attention-3"}}};
  };
  CHECK(notes[2] == kernel_note("attention_kernel_taken", "flash-attention-2"));
  notes.clear();
  CHECK(default_of({forward}, notes) == "flash-attention-3");
  CHECK(notes.back() == kernel_note("attention_kernel_stays", "flash-attention-2"));
  notes.clear();
  CHECK(default_of({forward, backward, sample("cudnn-te", "forward")}, notes) == "flash-attention-3");
  CHECK(notes.back() == kernel_note("attention_kernel_stays", "cudnn-te, flash-attention-2"));
  notes.clear();
  CHECK(default_of({forward, backward, sample("flash-attention-3", "forward")}, notes) ==
        "flash-attention-3");
  CHECK(notes.size() == 3);
}

TEST_CASE("errors of several kinds between nodes are listed kind by kind, too") {
  SampleSet set = Fabric().samples({8192, 1 << 22, 1 << 28});
  for (CollectiveSample sample : Fabric().samples({1 << 23, 1 << 27}).collective) {
    sample.kind = Collective::all_gather;
    set.collective.push_back(sample);
  }
  Notes notes;
  std::vector<std::string> groups;
  const Profile profile = calibrated(set, notes);
  for (const json& group : profile.table("collective").at("networks").at("ours").at("cross_validated"))
    groups.push_back(group.at("group").get<std::string>() + ": " + group.at("samples").dump());
  CHECK(groups == std::vector<std::string>{"above 1 MiB: 4", "up to 1 MiB: 1", "all_gather above 1 MiB: 2",
                                           "all_reduce above 1 MiB: 2", "all_reduce up to 1 MiB: 1"});
}

TEST_CASE("samples faster than the base's device are refused, and a thousandth of its speed is noted") {
  Notes notes;
  SampleSet set;
  // 2 * 8192^3 = 1.0995 TFLOP: in 1.1 us that is 1010.7 times the peak.
  GemmSample gemm;
  gemm.labels = {{"dtype", "bf16"}, {"source", "trace.json"}};
  gemm.m = gemm.n = gemm.k = 8192;
  gemm.seconds = 1.1e-6;
  set.gemm = {gemm};
  CHECK_THROWS_WITH_AS(calibrated(set, notes),
                       "trace.json: gemm/bf16, shape 8192 8192 8192: found 1.1 us, 1010.7 times the 989 "
                       "TFLOP/s of NVIDIA H100 SXM5 80GB; expected at most 1.3 times that: are they in us "
                       "(time_ms of a table: ms)?",
                       UserError);
  set.gemm[0].seconds = 1.2e-3;  // 916 TFLOP/s
  (void)calibrated(set, notes);
  REQUIRE(notes.size() == 1);
  set.gemm[0].seconds = 1.5;
  (void)calibrated(set, notes);
  REQUIRE(notes.size() == 3);
  CHECK(notes[2].kind == "unlikely_unit");
  CHECK(notes[2].about == "gemm/bf16");
  CHECK(notes[2].number("percent") < 0.2);
  // All pairs of 8,192 tokens: 2 products * 2 operations * 128 dims * 16 heads * 2^26 pairs = 0.55 TFLOP.
  AttentionSample attention;
  attention.labels = {{"kernel", "flash-attention-2"}};
  attention.pass = "forward";
  attention.heads = {128, 16, 16};
  attention.mask.causal = false;
  attention.packings = {{{8192, 8192}}};
  attention.most_keys = attention.least_queries = 8192;
  attention.seconds = {1e-6};
  SampleSet fused;
  fused.attention = {attention};
  CHECK_THROWS_WITH_AS(calibrated(fused, notes),
                       doctest::Contains("found 1 us, 555.9 times the 989 TFLOP/s of"), UserError);
  // Each GPU's links carry 7e9 bytes; 1e9 bytes of an all_reduce over 2 nodes are 125e6 of each of 8 NICs.
  SampleSet transfers;
  const Labels labels{{"source", "r.txt"}};
  transfers.collective = {{labels, Collective::all_gather, 8e9, {8, 8}, 1e-2}};
  CHECK_THROWS_WITH_AS(calibrated(transfers, notes),
                       doctest::Contains("found 10000 us, 1.6 times the 450 GB/s of NVIDIA H100"), UserError);
  transfers.collective = {{labels, Collective::all_reduce, 1e9, {16, 8}, 1.25e-3}};
  CHECK_THROWS_WITH_AS(calibrated(transfers, notes),
                       doctest::Contains("found 1250 us, 2.0 times the 50 GB/s (--nic-GBps) of NVIDIA H100"),
                       UserError);
}

TEST_CASE("what no table of the base is for is said; nothing at all, or an unknown network, is refused") {
  Notes notes;
  SampleSet set;
  AttentionSample attention;
  attention.labels = {{"kernel", "of-my-own"}};
  attention.pass = "forward";
  attention.seconds = {1e-3};
  set.attention.push_back(attention);
  CHECK(adapt_profile(base(), {"mine", "", "", 0, "", ""}, set, notes).is_null());
  CHECK(notes == Notes{{"no_such_table",
                        "attention/kernels/of-my-own/forward",
                        {{"samples", 1}, {"base", "h100-sxm"}}}});
  const Fabric fabric;
  CHECK_THROWS_WITH_AS(
      adapt_profile(base(), {"mine", "", "rail-401", 0, "", ""}, fabric.samples({1e6}), notes),
      doctest::Contains("--base-network: expected one of h100-sxm's ("), UserError);
}

}  // namespace equipoise
