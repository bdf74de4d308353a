// From a GPU's samples to a profile of one's own, as profiler/README.md says it is done, on samples that were
// made up from a profile's own forms: what comes out must be that profile again.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_lists.h"
#include "tests/profiler/fake_samples.h"

namespace equipoise {
namespace {

using nlohmann::json;

json recipe(const std::string& name) {
  return json::parse(
      std::ifstream(std::string(EQUIPOISE_SOURCE_DIR) + "/profiler/recipes/" + name + ".json"));
}

json made(const std::string& name, const json& file) {
  SampleSet samples;
  add_json(file, "samples.json", samples);
  json completed = recipe(name);
  take_measurement(completed, name, file);
  return make_profile(completed, name, samples);
}

}  // namespace

TEST_CASE("samples of an H200 become a measured h200-sxm") {
  const Profile truth = Profile::load("h200-sxm");
  const json file = measure::fake_samples(truth, 160, 120);
  const json measured = made("h200-sxm-measured", file);
  const Profile h200(measured, "measured");
  const json& tables = measured.at("tables");
  for (const char* path :
       {"/attention/kernels/cudnn/forward", "/attention/kernels/cudnn/backward", "/gemm/bf16",
        "/elementwise/rms_norm", "/elementwise/swiglu_backward", "/elementwise/optimizer"}) {
    CAPTURE(path);
    const json& table = tables.at(json::json_pointer(path));
    CHECK(table.at("provenance").at("kind") == "measured");
    const json& errors = table.at("hold_out");
    for (const auto& group : errors.items()) {
      const std::string name = group.key();
      CAPTURE(name);
      CHECK(group.value().at("median").get<double>() < 0.03);  // the noise is 2 %
    }
  }
  CHECK(tables.at("collective") == truth.table("collective"));  // published rows stay what they are
  CHECK(tables.at("gemm").at("fp8") == truth.table("gemm").at("fp8"));
  CHECK(h200.device().launch_seconds == 2e-6);
  CHECK(h200.device().memory_GBps == truth.device().memory_GBps);  // the recipe's: the datasheet's
  CHECK(measured.at("checks").contains("gemm c"));

  // Shapes that no sample has: a long GEMM, a mix of documents.
  RangeUse use;
  const GemmModel was(truth, Precision::bf16);
  const GemmModel is(h200, Precision::bf16);
  CHECK(is.seconds(12345, 5120, 8192, use) ==
        doctest::Approx(was.seconds(12345, 5120, 8192, use)).epsilon(0.05));
  const std::vector<QueryKeys> pieces{{3000, 3000}, {500, 9000}, {17, 17}};
  const AttentionModel attention_was(truth, {128, 12, 3}, "cudnn");
  const AttentionModel attention_is(h200, {128, 12, 3});
  CHECK(attention_is.backward_seconds(pieces, use) ==
        doctest::Approx(attention_was.backward_seconds(pieces, use)).epsilon(0.06));
}

TEST_CASE("a recipe that leaves a fact to the measurement refuses samples that do not know it") {
  json asked = {{"measured_facts", {"launch_seconds"}}, {"device", json::object()}};
  CHECK_THROWS_WITH_AS(take_measurement(asked, "r.json", json()),
                       "r.json.measured_facts: no .json file of samples says what launch_seconds is",
                       UserError);
  asked["measured_facts"] = {"launch_seconds"};
  take_measurement(asked, "r.json", {{"device", {{"launch_seconds", 3e-6}, {"name", "G"}}}});
  CHECK(asked.at("device").at("launch_seconds") == 3e-6);
  CHECK(asked.at("device").at("sources").at("launch_seconds") == "measured by this program on G");
  CHECK_FALSE(asked.contains("measured_facts"));
}

}  // namespace equipoise
