// A better device is never slower: laws of the shipped profiles, shape by shape. Simulations inherit them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"

using namespace equipoise;

namespace {

constexpr double kSlack = 1.0005;

const Profile& shipped(const char* name) {
  static const Profile h100 = Profile::load("h100-sxm"), h200 = Profile::load("h200-sxm"),
                       a100 = Profile::load("a100-sxm");
  const std::string_view wanted = name;
  return wanted == "h100-sxm" ? h100 : wanted == "h200-sxm" ? h200 : a100;
}

// The largest ratio of `now` to `before` over a grid.
struct Worst {
  double ratio = 0;
  void add(double now, double before) {
    if (before > 0) ratio = std::max(ratio, now / before);
  }
};

Worst attention(const Profile& now, const Profile& before) {
  Worst worst;
  RangeUse use;
  for (const int head_dim : {64, 128})
    for (const int heads : {1, 8, 32}) {
      const AttentionModel a(now, {head_dim, heads, std::min(heads, 8)}),
          b(before, {head_dim, heads, std::min(heads, 8)});
      for (std::int64_t q = 1; q <= 131072; q = q * 3 / 2 + 1)
        for (std::int64_t k = q; k <= 262144; k = k * 2 + 1)
          for (const std::size_t documents : {1U, 16U}) {
            const std::vector<QueryKeys> pieces(documents, {q, k});
            worst.add(a.forward_seconds(pieces, use), b.forward_seconds(pieces, use));
            worst.add(a.backward_seconds(pieces, use), b.backward_seconds(pieces, use));
          }
    }
  return worst;
}

Worst gemms(const Profile& now, const Profile& before,
            const std::vector<Precision>& precisions = {Precision::bf16, Precision::fp8}) {
  Worst worst;
  RangeUse use;
  for (const Precision precision : precisions) {
    const GemmModel a(now, precision), b(before, precision);
    for (std::int64_t m = 16; m <= 65536; m = m * 5 / 4 + 1)
      for (std::int64_t n = 128; n <= 65536; n *= 4)
        for (std::int64_t k = 128; k <= 65536; k *= 4)
          worst.add(a.seconds(m, n, k, use), b.seconds(m, n, k, use));
  }
  return worst;
}

Worst elementwise(const Profile& now, const Profile& before) {
  Worst worst;
  RangeUse use;
  const ElementwiseModel a(now), b(before);
  for (int op = 0; op < 7; ++op)
    for (const ElementwisePass pass : {ElementwisePass::forward, ElementwisePass::backward})
      for (double bytes = 1e3; bytes < 1e10; bytes *= 1.3)
        worst.add(a.seconds(static_cast<Elementwise>(op), bytes, use, pass),
                  b.seconds(static_cast<Elementwise>(op), bytes, use, pass));
  return worst;
}

Worst collectives(const Profile& now, double nic_now, const Profile& before, double nic_before) {
  Worst worst;
  RangeUse use;
  const CollectiveModel a(now, {nic_now, ""}), b(before, {nic_before, ""});
  for (int kind = 0; kind < 5; ++kind)
    for (const GroupShape group : {GroupShape{2, 2}, GroupShape{2, 1}, GroupShape{8, 8}, GroupShape{16, 8},
                                   GroupShape{64, 8}, GroupShape{16, 1}})
      for (double bytes = 8; bytes < 1e10; bytes *= 1.5)
        worst.add(a.seconds(static_cast<Collective>(kind), bytes, group, use),
                  b.seconds(static_cast<Collective>(kind), bytes, group, use));
  return worst;
}

}  // namespace

TEST_CASE("An H200 has an H100's SMs and clock and more bandwidth: no kernel of the defaults is slower") {
  const Profile &h200 = shipped("h200-sxm"), &h100 = shipped("h100-sxm");
  CHECK(attention(h200, h100).ratio <= kSlack);
  CHECK(gemms(h200, h100).ratio <= kSlack);
  CHECK(elementwise(h200, h100).ratio <= kSlack);
  CHECK(collectives(h200, 0, h100, 0).ratio <= kSlack);
}

TEST_CASE("An H100 is never slower than an A100, nor its GEMMs more than its peak allows faster") {
  const Profile &h100 = shipped("h100-sxm"), &a100 = shipped("a100-sxm");
  const std::vector<Precision> bf16 = {Precision::bf16};  // an A100 has no fp8
  CHECK(gemms(h100, a100, bf16).ratio <= kSlack);
  CHECK(elementwise(h100, a100).ratio <= kSlack);
  CHECK(collectives(h100, 25, a100, 25).ratio <= kSlack);
  // Rates by 312 / 989 and memory by 2039 / 3350; waves of 108 SMs in place of 132 cost at most one more.
  CHECK(gemms(a100, h100, bf16).ratio <= 989.0 / 312 * 2);
  CHECK(elementwise(a100, h100).ratio <= 3350.0 / 2039 * kSlack);
}

TEST_CASE("Long products lose clock where power is short (H100), none where it is ample (A100, H20)") {
  const auto share = [](const Profile& profile, std::int64_t size) {
    RangeUse use;
    const double flops =
        2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    return flops / GemmModel(profile, Precision::bf16).seconds(size, size, size, use) /
           (profile.device().peak_bf16_tflops * 1e12);
  };
  const Profile &h100 = shipped("h100-sxm"), &a100 = shipped("a100-sxm");
  const Profile h20 = Profile::load("h20");
  CHECK(share(h100, 24576) < 0.98 * share(h100, 4096));
  for (const Profile* ample : {&a100, &h20}) CHECK(share(*ample, 24576) > 0.995 * share(*ample, 8192));
  // 74 published products of an A100 of some 2^14 GFLOP: median 0.794, 90th percentile 0.823.
  CHECK(std::abs(share(a100, 24576) / 0.794 - 1) < 0.06);
}

TEST_CASE("A faster NIC and faster NVLink make no collective slower") {
  for (const char* name : {"h100-sxm", "h200-sxm"})
    for (const double nic : {12.5, 25.0, 50.0})
      CHECK(collectives(shipped(name), 2 * nic, shipped(name), nic).ratio <= kSlack);
  nlohmann::json faster = shipped("h100-sxm").json();
  faster["device"]["nvlink_GBps"] = 1.5 * faster["device"]["nvlink_GBps"].get<double>();
  CHECK(collectives(Profile(faster, "faster"), 50, shipped("h100-sxm"), 50).ratio <= kSlack);
}
