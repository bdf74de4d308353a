#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "profiler/fit/collective_fit.h"
#include "profiler/profile/collective.h"

using namespace equipoise;

namespace {

const SizeTable kThree{{1024, 4096, 16384}, {1, 4, 8}, 0.5};

// As a library behaves: 0.5 us, from a page on 3 us more, and 10 GB/s; an all-gather's link carries half of
// its bytes between two ranks.
double law(double bytes) {
  const double link = bytes / 2;
  return 1e-6 * ((link < 4096 ? 0.5 : 3.5) + link / 10e3);
}

std::vector<CollectiveSample> samples_of_law() {
  std::vector<CollectiveSample> samples;
  for (double bytes = 64; bytes <= 64 << 20; bytes *= std::sqrt(2.0)) {
    CollectiveSample sample;
    sample.kind = Collective::all_gather;
    sample.bytes = std::floor(bytes / 8) * 8;
    sample.group = {2, 2};
    sample.seconds = law(sample.bytes);
    samples.push_back(sample);
  }
  return samples;
}

}  // namespace

TEST_CASE(
    "a table of sizes is straight in logarithms, flat below its first size, in proportion beyond its last") {
  // Between 1024 (1 us) and 4096 (4 us) the middle is 2048: sqrt(1 * 4) = 2 us.
  CHECK(table_us(kThree, 2048) == doctest::Approx(2));
  CHECK(table_us(kThree, 8192) == doctest::Approx(std::sqrt(32.0)));
  CHECK(table_us(kThree, 8) == 1);
  CHECK(table_us(kThree, 1024) == 1);
  CHECK(table_us(kThree, 16384) == 8);
  CHECK(table_us(kThree, 4 * 16384) == doctest::Approx(32));
}

TEST_CASE("the link's bytes decide, and every rank beyond two adds its time") {
  // An all-gather of 8192 bytes: 4096 on the link of two ranks, 6144 of four, two of them more.
  CHECK(table_seconds(kThree, Collective::all_gather, 8192, 2) == doctest::Approx(4e-6));
  CHECK(table_seconds(kThree, Collective::all_gather, 8192, 4) ==
        doctest::Approx(1e-6 * (table_us(kThree, 6144) + 1.0)));
  CHECK(table_seconds(kThree, Collective::send_recv, 4096, 2) == doctest::Approx(4e-6));
  CHECK(bus_GBps(kThree) == doctest::Approx(16384 / 8e3));
}

TEST_CASE("a table of sizes is written and read as it was, and a wrong one is refused with its key") {
  const nlohmann::json table{{"form", kSizeTable}, {"parameters", to_json(kThree)}};
  const SizeTable read = size_table(table, "t");
  CHECK(read.bytes == kThree.bytes);
  CHECK(read.us == kThree.us);
  CHECK(read.rank_us == kThree.rank_us);
  nlohmann::json wrong = table;
  wrong["parameters"]["us"] = {1, 4};
  CHECK_THROWS_WITH_AS(size_table(wrong, "t"),
                       "t.parameters.us: expected one time a size in bytes, found 2 of 3", UserError);
  wrong["parameters"]["us"] = {1, 4, 3};
  CHECK_THROWS_WITH_AS(size_table(wrong, "t"), "t.parameters.us: expected times that do not fall with size",
                       UserError);
  wrong["parameters"]["bytes"] = {1024, 1024, 4096};
  CHECK_THROWS_AS(size_table(wrong, "t"), UserError);
  wrong["parameters"]["bytes"] = "many";
  CHECK_THROWS_AS(size_table(wrong, "t"), UserError);
}

TEST_CASE("a table fitted to times that jump predicts those that it did not see") {
  const std::vector<CollectiveSample> samples = samples_of_law();
  std::vector<const CollectiveSample*> pointers;
  for (const CollectiveSample& sample : samples) pointers.push_back(&sample);
  const nlohmann::json table = to_json(fit_size_table(pointers));
  const SizeTable fitted = size_table(table, "t");
  CHECK(std::is_sorted(fitted.us.begin(), fitted.us.end()));
  std::size_t far_off = 0;
  for (const CollectiveSample& sample : samples) {
    const double predicted = table_seconds(fitted, sample.kind, sample.bytes, 2);
    if (std::abs(predicted / sample.seconds - 1) > 0.03) ++far_off;
  }
  CHECK(far_off <= 3);  // those next to the jump
  for (const nlohmann::json& group : table.at("hold_out")) {
    CAPTURE(group.dump());
    CHECK(group.at("median").get<double>() < 0.03);
  }
}
