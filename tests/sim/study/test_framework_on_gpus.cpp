// Framework presets on a GPU: whose slowdowns, host times and kernels count there, and what is said of it.
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/framework/framework.h"
#include "sim/report/words/words.h"
#include "sim/study/models.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/framework_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

TEST_CASE("On GPUs that it was not fitted on a preset keeps its choices and loses its slowdowns") {
  const test::Scratch folder;
  folder.write("mine.json", own_preset().dump());
  json file = small_study();
  file["framework"] = {{"preset", "mine.json"}, {"attention_slowdown", 1.75}};
  const Study study = parse_study(file, folder.path("study.json"));
  const FrameworkOptions options = study.framework.on(shipped("cpu"));
  CHECK(options.gemm_slowdown == 1);
  CHECK(options.elementwise_slowdown == 1);
  CHECK(options.attention_slowdown == 1.75);    // the study's own word counts anywhere
  CHECK(options.attention_kernel.empty());      // it has no pytorch-sdpa
  CHECK(options.host.seconds_per_launch == 0);  // a core calls functions
  CHECK(!options.tp_overlap_forward);
  CHECK(options.gradient_bytes == 3);
  const Notes notes = study.framework.notes_on(shipped("cpu"));
  REQUIRE(test::kinds_of(notes) == std::vector<std::string>{"slowdowns_measured", "no_attention_kernel"});
  CHECK(notes[0].text("profile") == "cpu");
  CHECK(test::has_note(notes[0].get<Notes>("measured"), "all_measured"));
  CHECK(test::has_note(notes[0].get<Notes>("more"), "where_none_stated"));
  CHECK(notes[1].text("kernel") == "pytorch-sdpa");
  // A kernel that the framework calls is its choice on any GPU that has it.
  const Framework fsdp = framework_of("fsdp");
  CHECK(fsdp.on(shipped("h200-sxm")).attention_kernel == fsdp.preset.options.attention_kernel);
  CHECK(study.framework.notes_on(shipped("h100-sxm")).empty());
}

TEST_CASE("On another family slowdowns are carried over, marked so, with what its published rows show") {
  json preset = own_preset();
  preset["kernels"]["on_gpus"] = {{"B200", {{"rows", 4}, {"mean_abs_error", 0.21}, {"mean_error", -0.2}}}};
  const Framework mine = framework_with(FrameworkPreset::read(preset, "mine.json"));
  const Profile h100 = shipped("h100-sxm"), b200 = shipped("b200-sxm"), a100 = shipped("a100-sxm");
  CHECK(mine.on(b200).gemm_slowdown == mine.on(h100).gemm_slowdown);
  CHECK(mine.on(b200).host.seconds_per_launch == 1e-5);
  const auto carried = [&](const Profile& profile, const Note& error) {
    const Notes notes = mine.kernel_notes_on(profile);
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].number("gemm") == 1.5);
    CHECK(notes[0].get<Notes>("known") ==
          Notes{{"carried_over", "", {{"families", "H100"}, {"error", Notes{error}}}}});
  };
  const Note on_b200{"error_on_gpu", "", {{"error", 0.21}, {"mean", -0.2}, {"steps", 4}, {"gpu", "B200"}}};
  carried(b200, on_b200);
  carried(a100, {"error_there_unknown", "", {}});
  REQUIRE(!mine.notes_on(b200).empty());
  CHECK(mine.notes_on(b200)[0].kind == "slowdowns_carried");
  CHECK(mine.notes_on(b200)[0].get<Notes>("error") == Notes{on_b200});
  // The study's word: as fast as the profile has them, on published times, too.
  Framework plain = mine;
  plain.carry_slowdowns = false;
  CHECK(plain.on(b200).gemm_slowdown == 1);
  CHECK(plain.on(h100).gemm_slowdown == 1.5);
  CHECK_THROWS_AS(framework_in({{"carry_slowdowns", 1}}), UserError);
  CHECK(framework_in({{"carry_slowdowns", true}}).carry_slowdowns == true);
}

TEST_CASE("A step's expected error is that of the narrowest kind of published steps, none where there is none") {
  const auto known = [](const StepFamily& steps) { return expected_error(steps); };
  const auto h100 = known({"megatron", false, false, "NVIDIA H100 SXM", Precision::bf16});
  REQUIRE(h100);
  REQUIRE(h100->step);
  CHECK(h100->step->low < 1);
  CHECK(h100->step->high > 1);
  CHECK(h100->step->sources >= 5);  // fewer have no interval
  // Of a ratio: either row may be the first, and two policies of a layout share more of their errors.
  REQUIRE(h100->speed_up);
  REQUIRE(h100->speed_up_of_layouts);
  CHECK(h100->speed_up->low * h100->speed_up->high == doctest::Approx(1).epsilon(1e-3));
  CHECK(h100->speed_up->high < h100->speed_up_of_layouts->high);
  // Another architecture than any published step's: no interval, but what it is nearest to.
  const auto elsewhere = known({"megatron", true, false, "Some GPU of tomorrow", Precision::fp8});
  REQUIRE(elsewhere);
  CHECK_FALSE(elsewhere->step);
  CHECK_FALSE(elsewhere->speed_up);
  CHECK(elsewhere->nearest_error > 0);
  CHECK_FALSE(known({"mine", false, false, "NVIDIA H100 SXM", Precision::bf16}));
  // No published step is of a model with linear recurrences.
  const StepFamily hybrid{"megatron", false, false, "NVIDIA H100 SXM", Precision::bf16, "linear recurrences"};
  CHECK_FALSE(known(hybrid));
  CHECK(hybrid.text() == "megatron, dense, with linear recurrences, NVIDIA H100 SXM, bf16");
  // Own slowdowns, and kernels that run as the profile has them, are not what those rows were predicted with.
  Framework framework = framework_of("megatron");
  const StepFamily steps{"megatron", false, false, "NVIDIA H100 SXM", Precision::bf16};
  const Layout layout;
  const auto own = framework.error_of(steps, layout, shipped("h100-sxm"));
  REQUIRE(own);
  CHECK_FALSE(own->is_of_ratio);
  CHECK_FALSE(framework.error_of(steps, layout, shipped("cpu")));
  // A measured step leaves the error of a ratio to it, of two layouts unless the measured one is known to be
  // the same.
  for (const auto& [measured_on, one] :
       {std::pair(degrees_text(layout), true), {"TP 8, CP 1, PP 1, DP 1", false}, {"", false}}) {
    framework.anchor = Anchor{"plain", 1, 1, measured_on};
    const auto anchored = framework.error_of(steps, layout, shipped("h100-sxm"));
    REQUIRE(anchored);
    CHECK(anchored->is_of_ratio);
    CHECK(anchored->step->low == (one ? own->speed_up : own->speed_up_of_layouts)->low);
  }
  framework.says_slowdowns = true;
  CHECK_FALSE(framework.error_of(steps, layout, shipped("h100-sxm")));
}

TEST_CASE("Slowdowns of a GPU or a precision count there, the preset's own elsewhere, a study's own everywhere") {
  json preset = own_preset();
  preset["kernels"]["there"] = {
      {{"gpu_families", {"H100"}}, {"precision", "fp8"}, {"slowdowns", {{"gemm", 1.25}}}},
      {{"gpu_families", {"B200"}}, {"slowdowns", {{"gemm", 0.75}, {"expert_product_seconds", 1e-5}}}}};
  Framework mine = framework_with(FrameworkPreset::read(preset, "mine.json"));
  const double own = mine.preset.options.gemm_slowdown;
  CHECK(mine.on(shipped("h100-sxm")).gemm_slowdown == own);
  CHECK(mine.on(shipped("h200-sxm"), Precision::fp8).gemm_slowdown == 1.25);  // the other Hopper
  CHECK(mine.on(shipped("b200-sxm")).gemm_slowdown == 0.75);
  CHECK(mine.on(shipped("b200-sxm")).expert_product_seconds == 1e-5);
  CHECK(mine.rule_on(shipped("b200-sxm")) == SlowdownRule::fitted);
  mine.says_slowdowns = true;
  CHECK(mine.on(shipped("b200-sxm")).gemm_slowdown == own);
  preset["kernels"]["there"][0]["precision"] = "fp4";
  CHECK_THROWS_WITH_AS(
      FrameworkPreset::read(preset, "mine.json"),
      doctest::Contains("mine.json: kernels.there[0].precision: "), UserError);
}

TEST_CASE("On a profile that was measured slowdowns are 1 and the host's time is its own, whatever the GPU") {
  json file = shipped("h100-sxm").json();
  file["device"]["seconds_per_launch"] = 1e-3;
  Framework megatron = framework_of("megatron");
  megatron.in_training.elementwise_slowdown = 1;  // as its attention's is; FSDP below has all three
  const Profile published(file, "published.json");
  CHECK(megatron.rule_on(published) == SlowdownRule::fitted);
  file["tables"]["gemm"]["bf16"]["provenance"] = {{"kind", "measured"}, {"source", "this machine"}};
  const Profile measured(file, "measured.json");
  CHECK(megatron.rule_on(measured) == SlowdownRule::alone);
  CHECK(megatron.on(measured).gemm_slowdown == 1);
  CHECK(megatron.on(measured).host.seconds_per_launch == 1e-3);
  REQUIRE(megatron.notes_on(measured).size() == 1);
  CHECK(test::kinds_of(megatron.notes_on(measured)[0].get<Notes>("measured")) ==
        std::vector<std::string>{"one_measured", "some_not_measured"});
  // FSDP has slowdowns of attention and elementwise kernels, too: they stay while those are published.
  const Framework fsdp = framework_of("fsdp");
  CHECK(fsdp.on(measured).gemm_slowdown == 1);
  CHECK(fsdp.on(measured).attention_slowdown == fsdp.in_training.attention_slowdown);
  CHECK(fsdp.on(measured).attention_slowdown > 1.5);
  CHECK(fsdp.notes_on(measured)[0].kind == "slowdowns_kept");
  CHECK(fsdp.notes_on(measured)[0].get<Notes>("kept")[0].text("kernels") == "attention");
  const auto more = [](const Framework& framework, const Profile& profile) {
    const Notes notes = framework.kernel_notes_on(profile);
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].kind == "kernels_as_profile");
    return notes[0].get<Notes>("more");
  };
  const auto measured_of = [&](const Framework& framework, const Profile& profile) {
    return joined_texts(more(framework, profile)[0].get<Notes>("measured"), ", ");
  };
  CHECK(test::kinds_of(more(fsdp, measured)) == std::vector<std::string>{"of_them_measured", "kept_fitted"});
  CHECK(more(fsdp, measured)[1].get<Notes>("kept")[0].text("kernels") == "attention");
  CHECK(test::kinds_of(more(megatron, measured)) == std::vector<std::string>{"of_them_measured"});
  CHECK(measured_of(megatron, measured) == "of which GEMM was measured, attention and elementwise were not");
  // What its fits state of samples that they did not see: the largest of a kind, of what was measured.
  CHECK(megatron.kernel_errors_on(published).empty());
  file["tables"]["gemm"]["bf16"]["cross_validated"] = {
      {{"group", "all"}, {"samples", 9}, {"median", 0.031}},
      {{"group", "few rows"}, {"samples", 2}, {"median", 0.012}}};
  const auto error_of = [](const char* kernels, double error) {
    return Note{"kernel_error", "", {{"kernels", kernels}, {"error", error}}};
  };
  CHECK(megatron.kernel_errors_on(Profile(file, "own.json")) == Notes{error_of("GEMM", 0.031)});
  // Collectives have errors too: those in a node, and the network that the study names, else the default.
  json collective = file;
  for (const auto& [path, error] :
       {std::pair("node/all_gather", 0.05), std::pair("node/all_to_all", 0.06),
        std::pair("networks/rail-400", 0.02), std::pair("networks/efa-400", 0.09)}) {
    json& table = collective["tables"]["collective"][json::json_pointer(std::string("/") + path)];
    table["provenance"]["kind"] = "calibrated";
    table["cross_validated"] = {{{"group", "all"}, {"samples", 9}, {"median", error}}};
  }
  const Profile whole(collective, "own.json");
  CHECK(megatron.kernel_errors_on(whole) == Notes{error_of("GEMM", 0.031),
                                                  error_of("collectives in a node", 0.06),
                                                  error_of("between nodes", 0.02)});
  CHECK(megatron.kernel_errors_on(whole, "efa-400").back() == error_of("between nodes", 0.09));
  std::vector<std::string> of_cpu;
  for (const Note& error : megatron.kernel_errors_on(shipped("cpu"))) of_cpu.push_back(error.text("kernels"));
  CHECK(of_cpu[0] == "GEMM");
  CHECK(of_cpu[1] == "attention");
  CHECK(of_cpu[2] == "elementwise");
  // A kernel that is not used says nothing of the one that is.
  json& kernels = file["tables"]["attention"]["kernels"];
  for (auto& [pass, table] : kernels["flash-attention-2"].items()) table["provenance"]["kind"] = "calibrated";
  CHECK(fsdp.on(Profile(file, "own.json")).attention_slowdown == 1);
  CHECK(measured_of(fsdp, Profile(file, "own.json")) ==
        "of which GEMM and attention were measured, elementwise was not");
  CHECK(measured_of(megatron, Profile(file, "own.json")) ==
        "of which GEMM was measured, attention and elementwise were not");
  kernels["flash-attention-2"] =
      shipped("h100-sxm").json()["tables"]["attention"]["kernels"]["flash-attention-2"];
  for (auto& [pass, table] : kernels["flash-attention-3"].items()) table["provenance"]["kind"] = "calibrated";
  CHECK(fsdp.on(Profile(file, "other.json")).attention_slowdown > 1.5);
  file["tables"]["elementwise"]["rope"]["provenance"]["kind"] = "measured";
  CHECK(measured_of(megatron, Profile(file, "part.json")) ==
        "of which GEMM and attention and elementwise in part were measured");
  for (json& kernel : file["tables"]["attention"]["kernels"])
    for (auto& [pass, table] : kernel.items()) table["provenance"]["kind"] = "measured";
  CHECK(fsdp.on(Profile(file, "more.json")).attention_slowdown == 1);
}

TEST_CASE("A table over a measured and a published profile has one rule: carried over to the measured one") {
  const test::Scratch folder;
  json profile = shipped("h100-sxm").json();
  profile["tables"]["gemm"]["bf16"]["provenance"] = {{"kind", "measured"}, {"source", "this machine"}};
  folder.write("mine.json", profile.dump());
  const auto study_on = [&](const std::string& name) {
    json file = small_study();
    file["cluster"]["profile"] = name;
    return parse(file);
  };
  const Profile measured = Profile::load(folder.path("mine.json"));
  Study mine = study_on(folder.path("mine.json")), h100 = study_on("h100-sxm"), again = mine;
  use_one_rule({&mine, &h100});
  CHECK(mine.framework.rule_on(measured) == SlowdownRule::carried);
  CHECK(mine.framework.on(measured).gemm_slowdown == h100.framework.on(shipped("h100-sxm")).gemm_slowdown);
  REQUIRE(!mine.notes.empty());
  CHECK(mine.notes.back().kind == "one_rule");
  CHECK(h100.notes.empty());
  use_one_rule({&again, &again});  // measured ones among themselves
  CHECK(again.framework.rule_on(measured) == SlowdownRule::alone);
}

TEST_CASE(
    "A preset's attention kernel gives way where the profile has none of the name, a study's does not") {
  const test::Scratch folder;
  json preset = own_preset();
  preset["defaults"]["attention_kernel"] = "flash-attention-9";
  folder.write("mine.json", preset.dump());
  json file = small_study();
  file["framework"] = "mine.json";
  const Framework framework = parse_study(file, folder.path("study.json")).framework;
  CHECK(framework.on(shipped("h100-sxm")).attention_kernel.empty());
  REQUIRE(framework.notes_on(shipped("h100-sxm")).size() == 1);
  CHECK(framework.notes_on(shipped("h100-sxm"))[0].text("kernel") == "flash-attention-9");
  CHECK(framework_in({{"attention_kernel", "flash-attention-9"}}).on(shipped("h100-sxm")).attention_kernel ==
        "flash-attention-9");
}

TEST_CASE(
    "Host time of a launch: the study's, else a measured profile's, else the preset's; of an op: the "
    "study's") {
  const Profile h100 = shipped("h100-sxm");
  const auto stall = [&](const json& says, const Profile& profile) {
    json file = small_study();
    file["framework"] = says;
    const Study study = parse(file);
    const RunModels models(study, study.layout, profile);
    const Op launched[] = {{.name = OpName::activation, .launches = 1000}};
    return models.costs.stalls.for_host(LayerKind::dense, launches_of(models.costs.host(), launched, false),
                                        {});
  };
  CHECK(stall({{"preset", "none"}}, h100) == 0);
  const double of_preset = FrameworkPreset::load("megatron").options.host.seconds_per_launch;
  CHECK(stall("megatron", h100) == 1000 * to_picoseconds(of_preset));
  json timed = h100.json();
  timed["device"]["framework_seconds_per_op"] = 2e-6;  // its name in older profiles
  CHECK(stall("megatron", Profile(timed, "timed.json")) == 1000 * to_picoseconds(2e-6));
  CHECK(stall({{"preset", "megatron"}, {"seconds_per_launch", 3e-6}}, Profile(timed, "timed.json")) ==
        1000 * to_picoseconds(3e-6));
  CHECK(stall({{"preset", "megatron"}, {"seconds_per_op", 4e-6}}, h100) == 1000 * to_picoseconds(4e-6));
}
