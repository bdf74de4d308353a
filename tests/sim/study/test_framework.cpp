// Framework presets: what a study gets from one, on which GPUs, and what is said of it.
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/framework/framework.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/words/words.h"
#include "sim/step/gradient_sync.h"
#include "sim/study/models.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/framework_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

TEST_CASE("Every shipped preset states its choices with a source each; megatron is the default") {
  const std::vector<std::string> names = shipped_frameworks();
  CHECK(names == std::vector<std::string>{"deepspeed", "execution", "fsdp", "megatron", "megatron-2022",
                                          "megatron-eager", "nanotron", "none", "torchtitan"});
  for (const std::string& name : names) {
    CAPTURE(name);
    const FrameworkPreset preset = FrameworkPreset::load(name);
    CHECK(preset.name == name);
    CHECK(!preset.summary.empty());
    CHECK((preset.kernels == KernelTimes::benchmark) == (name == "none" || name == "execution"));
    CHECK(preset.kernels != KernelTimes::borrowed);
    const bool slows = name != "none" && name != "execution";
    const bool on_a100 = name == "megatron-2022";
    const auto expected = [&](bool fitted) {
      return !slows ? SlowdownRule::alone : fitted ? SlowdownRule::fitted : SlowdownRule::carried;
    };
    for (const char* hopper : {"h100-sxm", "h200-sxm", "h800-sxm"})
      CHECK(preset.rule_on(shipped(hopper)) == expected(!on_a100));
    CHECK(preset.rule_on(shipped("a100-sxm")) == expected(on_a100));
    for (const char* other : {"b200-sxm", "h20"}) CHECK(preset.rule_on(shipped(other)) == expected(false));
    CHECK(preset.rule_on(shipped("cpu")) == SlowdownRule::alone);
    CHECK(preset.host.has_value() == slows);
    // What was fitted says how wrong it is on benchmarks that the fit did not see.
    CHECK(preset.error.has_value() == (preset.kernels == KernelTimes::fitted));
  }
  CHECK(*FrameworkPreset::load("megatron").error <= 0.06);
  CHECK(framework_in(nullptr).preset.name == "megatron");
  // Its attention's slowdown is over a kernel that passes scores through memory, not over FlashAttention.
  const FrameworkOptions of_2022 = framework_of("megatron-2022").on(shipped("a100-sxm"));
  CHECK(of_2022.attention_kernel == "scores-in-memory");
  CHECK(of_2022.attention_slowdown < 2);
  // deepspeed is fitted to HBP's steps without packing; elementwise kernels, which these rows cannot tell
  // from GEMMs, are what FSDP's were fitted to that day.
  const FrameworkPreset deepspeed = FrameworkPreset::load("deepspeed");
  CHECK(*deepspeed.error <= 0.04);
  CHECK(deepspeed.options.elementwise_slowdown == 1.826);
}

TEST_CASE("A study names a preset, a file of its own, or a preset and what differs from it") {
  const test::Scratch folder;
  folder.write("mine.json", own_preset().dump());
  json file = small_study();
  file["framework"] = "mine.json";  // relative to the study
  const Study study = parse_study(file, folder.path("study.json"));
  CHECK(study.framework.preset.name == "mine");
  CHECK(study.layout.zero == 2);
  CHECK(!study.layout.reduce_each_micro_batch);
  const FrameworkOptions options = study.framework.on(shipped("h100-sxm"));
  CHECK(!options.tp_overlap_forward);
  CHECK(options.gradient_bytes == 3);
  CHECK(options.optimizer_bytes == 8);
  CHECK(options.logit_bytes == 14);
  CHECK(options.host.seconds_per_launch == 1e-5);
  CHECK(options.host.launches.forward[at(OpName::rms_norm)] == 2);
  CHECK(options.host.launches.backward[at(OpName::attention)] == 5);
  CHECK(options.host.launches.backward[at(OpName::rope)] == 1);
  CHECK((options.host.waits_for_routes && !options.host.waits_at_hops));
  REQUIRE(study.framework.preset.host);
  CHECK(text_of(*study.framework.preset.host) == "host 10 us per launch (8 to 20), as we timed it");
  CHECK(options.attention_kernel == "pytorch-sdpa");
  CHECK(options.gemm_slowdown == 1.5);
  CHECK(options.attention_slowdown == 1.25);
  CHECK(options.elementwise_slowdown == 2.5);
  CHECK(study.framework.preset.kernel_note(study.framework.preset.options) ==
        Note{"kernels_slowed",
             "",
             {{"gemm", 1.5},
              {"load", Notes()},
              {"attention", 1.25},
              {"elementwise", 2.5},
              {"known", Notes{{"fitted_error", "", {{"error", 0.031}}}}}}});

  json loaded = own_preset();
  loaded["kernels"]["slowdowns"]["full_load"] = true;
  const FrameworkPreset full = FrameworkPreset::read(loaded, "mine.json");
  CHECK(options.load == Load::as_measured);  // as files of before this key meant it
  CHECK(full.options.load == Load::full);
  CHECK(full.alone().load == Load::as_measured);
  CHECK(test::has_note(full.kernel_note(full.options).get<Notes>("load"), "of_full_load"));
  loaded["kernels"]["slowdowns"]["full_load"] = 1;
  CHECK_THROWS_WITH_AS((void)FrameworkPreset::read(loaded, "mine.json"),
                       "mine.json: kernels.slowdowns.full_load: expected true or false, found 1", UserError);

  json divided = own_preset();
  divided["defaults"]["stage_division"] = "by-weight";
  divided["sources"]["stage_division"] = "us";
  CHECK_THROWS_WITH_AS((void)FrameworkPreset::read(divided, "mine.json"),
                       doctest::Contains("defaults.stage_division: expected"), UserError);
  divided["defaults"]["stage_division"] = "block-costs";
  folder.write("divided.json", divided.dump());
  file["framework"] = "divided.json";
  CHECK(parse_study(file, folder.path("study.json")).layout.stage_division == StageDivision::block_costs);

  json borrowed = own_preset();
  borrowed["kernels"]["kind"] = "borrowed";
  borrowed["kernels"]["from"] = "fsdp";
  borrowed["kernels"].erase("left_out");
  folder.write("borrowed.json", borrowed.dump());
  file["framework"] = "borrowed.json";
  const FrameworkPreset lent = parse_study(file, folder.path("study.json")).framework.preset;
  CHECK(!lent.error);
  CHECK(lent.kernel_note(lent.options).get<Notes>("known") == Notes{{"borrowed", "", {{"from", "fsdp"}}}});

  file["framework"] = {{"preset", "mine.json"}, {"gemm_slowdown", 1.1}, {"reduce_each_micro_batch", true}};
  file["parallel"]["zero"] = 1;
  const Study other = parse_study(file, folder.path("study.json"));
  CHECK(other.layout.zero == 1);
  CHECK(other.layout.reduce_each_micro_batch);
  CHECK(other.framework.on(shipped("h100-sxm")).gemm_slowdown == 1.1);
  CHECK(other.framework.on(shipped("h100-sxm")).elementwise_slowdown == 2.5);

  // What a result says of kernels is what its GPU's kernels were priced with.
  CHECK(study.framework.kernel_notes_on(shipped("h100-sxm")) == Notes{study.framework.preset.kernel_note(study.framework.preset.options)});
  CHECK(
      study.framework.kernel_notes_on(shipped("cpu")) ==
      Notes{{"kernels_as_profile",
             "",
             {{"more", Notes{{"of_them_measured", "", {{"measured", Notes{{"all_measured", "", {}}}}}}}}}}});
  const auto stated = [](const Notes& notes, double attention, double elementwise) {
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].number("gemm") == 1.1);
    CHECK(notes[0].number("attention") == attention);
    CHECK(notes[0].number("elementwise") == elementwise);
    CHECK(test::has_note(notes[0].get<Notes>("known"), "as_stated"));
  };
  stated(other.framework.kernel_notes_on(shipped("h100-sxm")), 1.25, 2.5);
  stated(other.framework.kernel_notes_on(shipped("cpu")), 1, 1);
}

TEST_CASE("A preset shards as its framework does: FSDP by ZeRO-3, DeepSpeed by ZeRO-2, reduced each time") {
  const auto layout_of_preset = [](const char* name) {
    json file = small_study();
    file["framework"] = name;
    file["parallel"]["pipeline"] = 1;
    return parse(file).layout;
  };
  CHECK(layout_of_preset("megatron").zero == 1);
  CHECK(layout_of_preset("fsdp").zero == 3);
  CHECK(layout_of_preset("deepspeed").zero == 2);
  CHECK(layout_of_preset("deepspeed").reduces_each_micro_batch());
  // On a pipeline PyTorch shards optimizer states only; a study that asks for more is refused.
  json file = small_study();
  file["framework"] = "fsdp";
  CHECK(parse(file).layout.zero == 1);
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].kind == "pipeline_zero");
  file["parallel"]["zero"] = 3;
  CHECK(refusal(file).find("parallel.zero: 3 (FSDP) with a pipeline") != std::string::npos);
}

TEST_CASE("--set framework.KEY reaches a preset that the study gives by name, or not at all") {
  for (const json& says : {json(), json("fsdp"), json{{"preset", "fsdp"}}}) {
    json file = small_study();
    if (!says.is_null()) file["framework"] = says;
    set_study_key(file, "framework.logit_bytes=14");
    set_study_key(file, "framework.seconds_per_op=2e-6");
    const Study study = parse(file);
    CHECK(study.framework.preset.name == (says.is_null() ? "megatron" : "fsdp"));
    CHECK(study.framework.on(shipped("h100-sxm")).logit_bytes == 14);
    CHECK(*study.framework.on(shipped("h100-sxm")).seconds_per_op == 2e-6);
    CHECK(study.framework.on(shipped("h100-sxm")).gemm_slowdown ==
          study.framework.preset.options.gemm_slowdown);
  }
  json file = small_study();
  set_study_key(file, "framework=torchtitan");
  CHECK(parse(file).framework.preset.name == "torchtitan");
}

TEST_CASE(
    "What a preset says of experts: its kernels' choices stay on any GPU, their slowdown not on measured "
    "ones") {
  const test::Scratch folder;
  json preset = own_preset();
  for (const auto& [key, value] : {std::pair<const char*, json>{"exchange_sms", 24},
                                   {"exchange_sm_margin", false},
                                   {"expert_streams", 4},
                                   {"routing_kernels", 12},
                                   {"expert_skew", 0.5}}) {
    preset["defaults"][key] = value;
    preset["sources"][key] = "us";
  }
  preset["kernels"]["slowdowns"]["expert_gemm"] = 1.75;
  folder.write("mine.json", preset.dump());
  json file = small_study();
  file["framework"] = {{"preset", "mine.json"}, {"routing_kernels", 7}};
  const Study study = parse_study(file, folder.path("study.json"));
  for (const char* name : {"h100-sxm", "b200-sxm", "cpu"}) {
    const FrameworkOptions options = study.framework.on(shipped(name));
    CHECK(options.exchange_sms == 24);
    CHECK(!options.exchange_sm_margin);
    CHECK(options.expert_streams == 4);
    CHECK(options.routing_kernels == 7);
    CHECK(options.expert_skew == 0.5);
    CHECK(options.expert_gemm_slowdown == (std::string_view(name) == "cpu" ? 1 : 1.75));
  }
  json half = preset;
  half["defaults"]["expert_streams"] = 2.5;
  folder.write("mine.json", half.dump());
  CHECK_THROWS_WITH_AS((void)parse_study(file, folder.path("study.json")),
                       doctest::Contains("expert_streams: expected an integer, found 2.5"), UserError);
  preset["sources"].erase("expert_skew");
  folder.write("mine.json", preset.dump());
  CHECK_THROWS_WITH_AS((void)parse_study(file, folder.path("study.json")), doctest::Contains("expert_skew"),
                       UserError);
}

TEST_CASE("Every result names the framework, and `none` says that kernels run at their benchmark speed") {
  json file = small_study();
  file["batch"]["steps"] = 1;
  file["policies"] = {"plain"};
  file.erase("baseline");
  file["framework"] = "none";
  const Study study = parse(file);
  const StudyResult result = run_study(study, {});
  const json summary = summary_json(study, result);
  CHECK(summary["study"]["framework"] == "none");
  CHECK(summary["policies"][0]["provenance"]["framework"] == "none");
  CHECK(summary["study"]["notes"][0]["kind"] == "benchmark_speed");
  const std::string table = study_table(study, result);
  CHECK(table.substr(0, table.find('\n')).find("framework none") != std::string::npos);
  CHECK(result.kernels == Notes{{"kernels_at_benchmark", "", {}}});
  CHECK(table.find(text_of(result.kernels[0])) != std::string::npos);
}

TEST_CASE("Slower kernels take longer: a step by a factor between the smallest and the largest slowdown") {
  json file = small_study();
  file["policies"] = {"plain"};
  file["batch"]["steps"] = 1;
  file.erase("baseline");
  const auto seconds = [&](double gemm, double attention, double elementwise) {
    file["framework"] = {{"preset", "none"},
                         {"gemm_slowdown", gemm},
                         {"attention_slowdown", attention},
                         {"elementwise_slowdown", elementwise}};
    return *run_study(parse(file), {}).policies[0].metrics.step_seconds;
  };
  const double alone = seconds(1, 1, 1);
  CHECK(seconds(2, 1, 1) > alone);
  CHECK(seconds(1, 2, 1) > alone);
  CHECK(seconds(1, 1, 2) > alone);
  CHECK(seconds(2, 2, 2) < 2 * alone * 1.0000001);
}

TEST_CASE("Optimizer states of 8 bytes take two thirds of the room of 12, and less time") {
  const Profile h100 = shipped("h100-sxm");
  json file = small_study();
  const auto models = [&](double bytes) {
    file["framework"] = {{"optimizer_bytes", bytes}};
    const Study study = parse(file);
    return std::make_pair(RunModels(study, study.layout, h100).memory.fixed(0).optimizer, study);
  };
  const auto [full, wide] = models(12);
  const auto [two_thirds, narrow] = models(8);
  CHECK(two_thirds == doctest::Approx(full * 8 / 12));
  // Gradient (4) and states read, states and the bf16 weight (2) written: 30 bytes and 22.
  const auto seconds = [&](const Study& study) {
    const RunModels at(study, study.layout, h100);
    return GradientSync(at.costs).stages()[0].optimizer;
  };
  RangeUse use;
  const auto [small, large] = std::make_pair(seconds(narrow), seconds(wide));
  CHECK(small < large);
  const RunModels at(wide, wide.layout, h100);
  const double parameters = full / 12;
  CHECK(large ==
        to_picoseconds(at.costs.kernels.elementwise().seconds(Elementwise::optimizer, parameters * 30, use)));
  CHECK(small ==
        to_picoseconds(at.costs.kernels.elementwise().seconds(Elementwise::optimizer, parameters * 22, use)));
}

TEST_CASE("What cannot matter or frees nothing is noted: the reduction without ZeRO-2, selective recompute") {
  json file = small_study();
  CHECK(parse(file).notes.empty());
  file["framework"] = {{"reduce_each_micro_batch", false}};
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].text("with").starts_with("with zero 2"));
  file["parallel"]["zero"] = 2;
  CHECK(parse(file).notes.empty());
  file["policies"][1]["recompute"] = "selective";
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].kind == "selective_recompute");
}

TEST_CASE(
    "What hides exchanges of experts is noted where it cannot: no experts, no exchanges, no shared expert") {
  json file = small_study();
  file["framework"] = {{"expert_overlap", "shared-expert"}};
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].text("with") == "with parallel.expert above 1");
  file["model"] = "deepseek-v2";
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].text("with") == "with parallel.expert above 1");
  file["parallel"] = {{"tensor", 1}, {"data", 4}, {"expert", 4}};
  file["batch"]["sequences_per_step"] = 8;
  CHECK(parse(file).notes.empty());
  file["framework"]["expert_overlap"] = "none";
  CHECK(parse(file).notes.empty());
  file["framework"]["expert_overlap"] = "dualpipe";
  CHECK(parse(file).notes.empty());
  file["policies"][1]["schedule"] = "gpipe";
  REQUIRE(parse(file).notes.size() == 1);
  CHECK(parse(file).notes[0].kind == "overlap_unpaired");
  file["policies"][1].erase("schedule");
  file["parallel"]["zero"] = 3;
  REQUIRE_FALSE(parse(file).notes.empty());
  CHECK(parse(file).notes[0].kind == "overlap_zero3");
}

TEST_CASE("A bad preset file is refused in one line with file, key, what was found and what is allowed") {
  const struct {
    const char* pointer;
    json value;  // null: the key goes
    const char* says;
  } cases[] = {
      {"/schema", "equipoise.profile/1", "schema: expected equipoise.framework/1"},
      {"/nmae", "x", "unknown key"},
      {"/defaults/zero", 4, "defaults.zero: expected a number in 0..3, found 4"},
      {"/defaults/tp_overlap", "yes", "defaults.tp_overlap: expected true or false, found \"yes\""},
      {"/defaults/tp_overlap", nullptr, "defaults.tp_overlap: expected true or false, found nothing"},
      {"/defaults/logit_byte", 6, "unknown key"},
      {"/sources/zero", nullptr, "sources.zero"},
      {"/kernels/kind", "guessed", "kernels.kind: expected fitted or borrowed, found \"guessed\""},
      {"/kernels/slowdowns/gemm", 0, "kernels.slowdowns.gemm: expected a number in 0.1..100, found 0"},
      {"/kernels/slowdowns/gemm", "fast", "kernels.slowdowns.gemm"},
      {"/kernels/gpu_families", json::array(), "kernels.gpu_families: expected words of GPU names"},
      {"/kernels/gpu_families", json{7},
       "kernels.gpu_families: expected words of GPU names, such as [\"H100\"], found [7]"},
      {"/kernels/left_out/mean_abs_error", -1, "kernels.left_out.mean_abs_error"},
  };
  CHECK(FrameworkPreset::read(own_preset(), "mine.json").name == "mine");
  for (const auto& c : cases) {
    CAPTURE(c.pointer);
    json file = own_preset();
    const json::json_pointer pointer(c.pointer);
    if (c.value.is_null())
      file[pointer.parent_pointer()].erase(pointer.back());
    else
      file[pointer] = c.value;
    std::string message;
    try {
      (void)FrameworkPreset::read(file, "mine.json");
    } catch (const UserError& e) {
      message = e.what();
    }
    CAPTURE(message);
    CHECK(message.starts_with("mine.json: "));
    CHECK(message.find(c.says) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
  CHECK_THROWS_AS(FrameworkPreset::read(json::array(), "mine.json"), UserError);
}
