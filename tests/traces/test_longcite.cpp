// The LongCite mixtures against what HBP (arXiv 2503.07680) prints of them: attention balance ratio and share
// of tokens with communication along the chain ISF -> + hierarchical groups -> + balance batching, 32 GPUs,
// 512K tokens an iteration.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/packing/hbp.h"
#include "policies/plan_metrics.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "traces/synth.h"

using namespace equipoise;

namespace {

struct Ratios {
  double abr = 0;
  double cr = 0;
};

struct Chain {
  Ratios isf;
  Ratios hierarchical;
  Ratios balanced;
};

Ratios ratios(const char* policy, const PackOptions& options, const DocumentSet& set) {
  const PlanMetrics metrics =
      plan_metrics(set.batches, packing_policy(policy).plan({set.batches, options, QuadraticWorkload()}));
  REQUIRE(metrics.abr.has_value());
  REQUIRE(metrics.cr.has_value());
  return {*metrics.abr, *metrics.cr};
}

Chain chain_of(const char* distribution, std::uint64_t seed) {
  const std::vector<std::int64_t> lengths = synthesize(distribution, 200000, seed).lengths;
  PackOptions options;  // 4 x 128K tokens an iteration
  options.documents_per_step = static_cast<std::int64_t>(lengths.size());
  options.of<PackLengthOptions>().pack_length = options.context_window;
  options.lanes = 4;
  options.context = 8;
  options.groups = {{16 * 1024, 1, 0}, {128 * 1024, 8, 0}};
  const DocumentSet set = load_documents(lengths, options, {});
  Chain chain;
  chain.isf = ratios("isf", options, set);
  options.of<HbpOptions>().balance_batching = false;
  chain.hierarchical = ratios("hbp", options, set);
  options.of<HbpOptions>().balance_batching = true;
  chain.balanced = ratios("hbp", options, set);
  MESSAGE(std::string(distribution) << ": abr " << chain.isf.abr << " -> " << chain.hierarchical.abr << " -> "
                                    << chain.balanced.abr << ", cr " << chain.isf.cr << " -> "
                                    << chain.balanced.cr);
  return chain;
}

double mean_of(const char* distribution) {
  double tokens = 0;
  for (const std::int64_t length : synthesize(distribution, 200000, 0).lengths)
    tokens += static_cast<double>(length);
  return tokens / 200000;
}

}  // namespace

TEST_CASE("tulu3-longcite gives HBP's component table: abr 0.506 -> 0.288 -> 0.002, cr 1 -> 0.173") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Chain chain = chain_of("tulu3-longcite", seed);
    CHECK(std::abs(chain.isf.abr - 0.506) <= 0.1);
    CHECK(std::abs(chain.hierarchical.abr - 0.288) <= 0.1);
    CHECK(chain.balanced.abr <= 0.02);
    CHECK(chain.isf.cr == doctest::Approx(1));
    CHECK(std::abs(chain.balanced.cr - 0.173) <= 0.1);
  }
}

TEST_CASE("openhermes-longcite: abr 0.513 -> 0.269 -> 0.004") {
  const Chain chain = chain_of("openhermes-longcite", 0);
  CHECK(std::abs(chain.isf.abr - 0.513) <= 0.1);
  CHECK(std::abs(chain.hierarchical.abr - 0.269) <= 0.1);
  CHECK(chain.balanced.abr <= 0.02);
}

TEST_CASE("sorted packers are as uneven as isf once their packs are mixed, and even by accident if not") {
  // HBP's tables have about 0.51 for every packer of one length.
  const std::vector<std::int64_t> lengths = synthesize("tulu3-longcite", 200000, 0).lengths;
  PackOptions options;
  options.documents_per_step = static_cast<std::int64_t>(lengths.size());
  options.lanes = 4;
  options.context = 8;
  const DocumentSet set = load_documents(lengths, options, {});
  for (const char* name : {"ffd", "bfd", "spfhp"}) {
    CAPTURE(name);
    options.of<PackLengthOptions>().pack_order = PackOrder::shuffled;
    CHECK(std::abs(ratios(name, options, set).abr - 0.51) <= 0.1);
    options.of<PackLengthOptions>().pack_order = PackOrder::created;
    CHECK(ratios(name, options, set).abr <= 0.05);
  }
}

TEST_CASE("tulu3-longcite averages 0.9K tokens, its body alone 0.8K") {
  CHECK(mean_of("tulu3-longcite") == doctest::Approx(0.9 * 1024).epsilon(0.06));
}
