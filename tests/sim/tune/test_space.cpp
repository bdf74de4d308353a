// What a search may try, and what it refuses to read.
#include <string>

#include "policies/base/random.h"
#include "sim/tune/candidate_text.h"
#include "sim/tune/space.h"
#include "tests/sim/tune/tune_case.h"

namespace equipoise {
namespace {

using nlohmann::json;
using testing::small_study;
using testing::TuneCase;

std::string refusal_of(const json& space) {
  try {
    (void)parse_space(space, "space.json", TuneCase::absolute(small_study()));
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

void check_says(const json& space, const std::string& part) {
  const std::string said = refusal_of(space);
  CAPTURE(space.dump());
  CAPTURE(said);
  CHECK(said.starts_with("space.json"));
  CHECK(said.find(part) != std::string::npos);
  CHECK(said.find('\n') == std::string::npos);
}

TEST_CASE("a space is refused by file and key") {
  check_says(json::array(), "expected an object");
  check_says(json::object(), "at least one key");
  check_says({{"parallel.tensor", json::array()}}, "parallel.tensor: expected at least one value");
  check_says({{"parallel.tensor", {2, 2}}}, "found 2 twice");
  check_says({{"parallel.tensr", {1, 2}}}, "tensr");
  check_says({{"parallel.tensor", {"x"}}}, "tensor");
  check_says({{"cluster.memory_GB", {40, 80}}}, "cluster.memory_GB: expected a key of parallel");
  check_says({{"batch.sequences_per_step", {4, 8}}}, "batch.sequences_per_step: expected");
  check_says({{"policies", json::array()}}, "policies: expected a list");
  check_says({{"policies", {"wbl"}}}, "wlb");
  check_says({{"policies", {{{"name", "wlb"}, {"queus", {1, 2}}}}}}, "queues");
  check_says({{"policies", {{{"name", "wlb"}, {"queues", {1, "two"}}}}}}, "queues");
}

TEST_CASE("a space without policies has the study's") {
  const Space space = parse_space({{"parallel.tensor", {1, 2}}}, "space.json", small_study());
  CHECK(space.policies.size() == 3);
  CHECK(space_json(space)["policies"][0] == "plain-4d");
  CHECK(space_json(space)["parallel.tensor"] == json{1, 2});
}

TEST_CASE("layouts have exactly the GPUs, data following from them") {
  // 8 GPUs: tensor x context x pipeline of 1 x 1 x 1 to 2 x 2 x 2, data the rest: 8, 4, 4, 4, 2, 2, 2, 1.
  // Four windows a step do not share out over 8 replicas, so that one goes together with nothing.
  const json space = {
      {"parallel.tensor", {1, 2}}, {"parallel.context", {1, 2}}, {"parallel.pipeline", {1, 2}}};
  const TuneCase c(small_study(), space, 8);
  REQUIRE(c.candidates.layouts.size() == 7);
  CHECK(c.candidates.none.impossible == 1);
  for (const LayoutChoice& layout : c.candidates.layouts) CHECK(layout.layout.gpus() == 8);
  CHECK(c.candidates.count() == 21);
}

TEST_CASE("how K and V travel is no choice without context parallelism") {
  const json space = {{"parallel.context", {1, 2}}, {"parallel.context_comm", {"all-gather", "ring"}}};
  const TuneCase c(small_study(), space, 8);
  CHECK(c.candidates.layouts.size() == 3);
  CHECK(c.candidates.none.alike == 1);
}

TEST_CASE("an inner degree is a choice of nested forms alone, and its ends are plain forms") {
  const json space = {{"parallel.tensor", {1}},
                      {"parallel.pipeline", {1}},
                      {"parallel.context", {1, 4}},
                      {"parallel.context_comm", {"ring", "ulysses", "ulysses-ring"}},
                      {"parallel.context_inner", {1, 2, 4}}};
  const TuneCase c(small_study(), space, 8);
  // A ring, Ulysses, and one inner degree between them. (Four windows do not share out over 8 replicas.)
  std::string found;
  for (const LayoutChoice& layout : c.candidates.layouts) found += layout_text(layout.layout) + "; ";
  CHECK(found ==
        "TP 1, CP 4 ring, PP 1, DP 2; TP 1, CP 4 ulysses, PP 1, DP 2; TP 1, CP 4 ulysses-ring 2 x 2, PP 1, "
        "DP 2; ");
}

TEST_CASE("blocks and stages of a group-cast are choices, and say so") {
  const json space = {{"parallel.tensor", {2}},
                      {"parallel.pipeline", {2}},
                      {"parallel.context_comm", {"group-cast"}},
                      {"parallel.block", {64, 512}},
                      {"parallel.cast_stages", {1, 4}}};
  const TuneCase c(small_study(), space, 8);
  std::string found;
  for (const LayoutChoice& layout : c.candidates.layouts) found += layout_text(layout.layout) + "; ";
  CHECK(found ==
        "TP 2, CP 2 group-cast (block 64, stages 1), PP 2, DP 1; "
        "TP 2, CP 2 group-cast (block 64, stages 4), PP 2, DP 1; "
        "TP 2, CP 2 group-cast (block 512, stages 1), PP 2, DP 1; "
        "TP 2, CP 2 group-cast (block 512, stages 4), PP 2, DP 1; ");
  json once = space;
  once.update({{"parallel.block", {64}},
               {"parallel.cast_stages", {4}},
               {"parallel.cast_once_per_node", {false, true}}});
  found.clear();
  for (const LayoutChoice& layout : TuneCase(small_study(), once, 8).candidates.layouts)
    found += layout_text(layout.layout) + "; ";
  CHECK(found ==
        "TP 2, CP 2 group-cast (block 64, stages 4), PP 2, DP 1; "
        "TP 2, CP 2 group-cast (block 64, stages 4, once a node), PP 2, DP 1; ");
}

TEST_CASE("a candidate made of numbers comes to what its study file comes to") {
  json file = small_study();
  file["batch"]["steps"] = 2;
  json space = testing::small_space();
  space["precision"] = {"bf16", "fp8"};
  space["framework.gradient_bytes"] = {2, 4};
  space["parallel.context_inner"] = {2};
  space["parallel.context_comm"].push_back("ulysses-ring");
  space["policies"].insert(space["policies"].end(),
                           {"slimpipe",
                            "disaggregated",
                            "hbp",
                            {{"name", "plain"}, {"recompute", "full"}, {"schedule", {"gpipe", "zb-h1"}}}});
  const TuneCase c(file, space, 8);
  REQUIRE(c.candidates.bases.size() == 4);
  SplitMix64 random(17);
  int ran = 0;
  for (int draw = 0; draw < 60; ++draw) {
    const Point point{static_cast<std::uint32_t>(random.next() % c.candidates.layouts.size()),
                      static_cast<std::uint32_t>(random.next() % c.candidates.rows.size())};
    const json read = candidate_json(c.candidates, point);
    CAPTURE(read.dump());
    const Study of_file = parse_case(read, "study.json");
    const Study study = candidate_study(c.candidates, point, "study.json");
    CHECK(study.impossible == of_file.impossible);
    CHECK(study.baseline == of_file.baseline);
    const Trial trial = try_candidate(study, c.inputs, {}, {});
    CHECK(trial == try_candidate(of_file, c.inputs, {}, {}));
    ran += trial.outcome == Outcome::ok ? 1 : 0;
  }
  CHECK(ran > 10);
}

TEST_CASE("no layout with so many GPUs is an error that names them") {
  CHECK_THROWS_WITH_AS(TuneCase(small_study(), {{"parallel.tensor", {2, 4}}}, 7),
                       doctest::Contains("a layout of 7 GPUs"), UserError);
}

TEST_CASE("the default space holds the study's own layout and rows") {
  const json file = TuneCase::absolute(small_study());
  const Study study = testing::parse(file);
  const Space space = default_space(study, file, 8, 8);
  const Candidates candidates = candidates_of(space, file, 8, "default", 1);
  bool found = false;
  for (const LayoutChoice& layout : candidates.layouts) {
    const Layout& l = layout.layout;
    found = found || (l.tensor == 2 && l.context == 2 && l.pipeline == 2 && l.data == 1 &&
                      l.virtual_pipeline == 1 && l.recompute == Recompute::none);
  }
  CHECK(found);
  CHECK(candidates.rows.front().entry["name"] == "plain-4d");
  CHECK(parse_space(space_json(space), "space.json", file).policies.size() == space.policies.size());
}

}  // namespace
}  // namespace equipoise
