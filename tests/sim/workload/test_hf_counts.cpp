// Parameters of every model type that is accepted, as Hugging Face Transformers counts them
// (parameter_counts.py).
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/files.h"
#include "sim/workload/model_hf.h"
#include "tests/scratch_folder.h"
#include "traces/json_text.h"

using namespace equipoise;
using nlohmann::json;

TEST_CASE("Parameters are within a thousandth of those that Transformers counts") {
  const test::Scratch folder;
  const json table = read_json_file(EQUIPOISE_SOURCE_DIR "/tests/sim/workload/parameter_counts.json");
  CHECK(table["models"].size() > 40);
  for (const json& row : table["models"]) {
    const std::string name = row["model"].get<std::string>();
    CAPTURE(name);
    const ModelShape model = read_hf_config(folder.write("config.json", row["config"].dump()));
    const auto published = row["parameters"].get<double>();
    CAPTURE(model.parameters());
    CAPTURE(published);
    // GPT-2 and its like also learn a vector for each position, which no step multiplies with.
    const json& type = row["config"]["model_type"];
    const json& positions =
        type == "gpt2" || type == "gpt_bigcode" ? row["config"].value("n_positions", json(1024)) : json(0);
    const double learned = positions.get<double>() * static_cast<double>(model.hidden);
    CHECK(std::abs(static_cast<double>(model.parameters()) + learned - published) <= 1e-3 * published);
  }
}
