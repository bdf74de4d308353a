// Plans made elsewhere: what is written is read back, and a plan that does not fit is a row with its reason.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "policies/validator.h"
#include "sim/report/study_outputs.h"
#include "sim/report/summary_json.h"
#include "sim/report/words/words.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

StudyResult run(const Study& study) {
  RunStudyOptions options;
  options.keep_plans = true;
  options.record_gpus = true;
  options.find_fits = false;
  return run_study(study, options);
}

// A study whose file is in `folder`, which its paths are relative to.
Study study_in(const test::Scratch& folder, const json& file) {
  return parse_study(file, folder.path("study.json"));
}

json plans_of(const Study& study, const StudyResult& result) {
  for (const StudyOutput& output : study_outputs())
    if (std::string(output.file) == "plan.json") return json::parse(output.text(study, result));
  return {};
}

void check_same_plan(const Plan& a, const Plan& b) {
  CHECK(a.policy == b.policy);
  CHECK(a.sees_whole_set == b.sees_whole_set);
  CHECK(a.dropped == b.dropped);
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    CHECK(a.steps[s].carried == b.steps[s].carried);
    CHECK(a.steps[s].tail == b.steps[s].tail);
    REQUIRE(a.steps[s].lanes.size() == b.steps[s].lanes.size());
    for (std::size_t l = 0; l < a.steps[s].lanes.size(); ++l) {
      const Lane &x = a.steps[s].lanes[l], &y = b.steps[s].lanes[l];
      CHECK(x.context == y.context);
      CHECK(x.barrier_group == y.barrier_group);
      REQUIRE(x.micro_batches.size() == y.micro_batches.size());
      for (std::size_t m = 0; m < x.micro_batches.size(); ++m) {
        const MicroBatch &p = x.micro_batches[m], &q = y.micro_batches[m];
        CHECK(p.slices == q.slices);
        CHECK(p.placement == q.placement);
        CHECK(p.chunk == q.chunk);
        CHECK(p.recompute_layers == q.recompute_layers);
        CHECK(p.recompute_by_stage == q.recompute_by_stage);
        CHECK(p.pad_each_to == q.pad_each_to);
        CHECK(p.pack_length == q.pack_length);
      }
    }
  }
}

// Runs `policies`, writes their plans, and runs those from the file next to them: the same plans, metrics,
// peaks.
void check_round_trip(json file, const json& policies) {
  const test::Scratch folder;
  file["policies"] = policies;
  file.erase("baseline");
  const Study study = study_in(folder, file);
  const StudyResult result = run(study);
  folder.write("plan.json", plans_of(study, result).dump());
  json again = file;
  again["policies"] = json::array();
  for (const PolicyResult& row : result.policies) {
    CAPTURE(row.run.label);
    CAPTURE(reason_text(row.reasons));
    REQUIRE(row.status == RowStatus::ok);
    json entry = {
        {"name", "plan"}, {"file", "plan.json"}, {"policy", row.run.label}, {"label", row.run.label}};
    for (const json& own : policies)
      if (own.is_object() && own.value("label", own.value("name", "")) == row.run.label)
        for (const char* key : {"shard", "schedule", "keep", "strict_keep", "recompute", "pad"})
          if (own.contains(key) && (key != std::string("schedule") || own[key] != "auto"))
            entry[key] = own[key];
    again["policies"].push_back(entry);
  }
  const Study from_file = study_in(folder, again);
  const StudyResult read = run(from_file);
  REQUIRE(read.policies.size() == result.policies.size());
  const json first = summary_json(study, result), second = summary_json(from_file, read);
  for (std::size_t i = 0; i < read.policies.size(); ++i) {
    CAPTURE(result.policies[i].run.label);
    CAPTURE(reason_text(read.policies[i].reasons));
    REQUIRE(read.policies[i].status == RowStatus::ok);
    check_same_plan(result.policies[i].plan, read.policies[i].plan);
    CHECK(first["policies"][i]["metrics"] == second["policies"][i]["metrics"]);
    CHECK(first["policies"][i]["memory"] == second["policies"][i]["memory"]);
  }
}

json small_with(const json& patch) {
  json file = small_study();
  file.merge_patch(patch);
  return file;
}

// A plan of the small study by hand is long; this is plain's, as JSON.
struct PlainPlan {
  test::Scratch folder;
  json file;  // the study with the plan as its one row
  json plan;  // equipoise.plan/1

  explicit PlainPlan(const json& patch = json::object(), const json& policy = "plain") {
    const Study study = study_in(folder, small_study_of(policy, patch));
    const StudyResult result = run(study);
    plan = plans_of(study, result)["plans"][0];
    plan.erase("name");
    file = small_study_of({{"name", "plan"}, {"file", "p.json"}}, patch);
  }
  PolicyResult row() const {
    folder.write("p.json", plan.dump());
    return run(study_in(folder, file)).policies[0];
  }
  // The reason of the row, or what the whole study is refused with.
  std::string reason() const {
    try {
      const PolicyResult result = row();
      CHECK(result.status == RowStatus::refused);
      return reason_text(result.reasons);
    } catch (const UserError& e) {
      return e.what();
    }
  }
  json& micro_batch() { return plan["steps"][0]["lanes"][0]["micro_batches"][0]; }
};

}  // namespace

TEST_CASE("The plan of every shipped policy is read back as it was, and costs the same") {
  json policies = json::array();
  for (const Policy& policy : packing_policies()) {
    if (policy.name.ends_with("-solver")) continue;  // seconds each
    policies.push_back({{"name", policy.name}});
  }
  SUBCASE("windows, two lanes") {
    check_round_trip(small_with({{"parallel", {{"data", 2}}}, {"batch", {{"steps", 2}}}}), policies);
  }
  SUBCASE("documents, ZeRO-3 without a pipeline, selective recompute") {
    check_round_trip(
        small_with({{"parallel", {{"pipeline", 1}, {"zero", 3}, {"recompute", "selective"}}},
                    {"batch", {{"context_window", "128K"}, {"steps", 2}, {"documents_per_step", 24}}}}),
        policies);
  }
}

TEST_CASE("Recomputed layers, chunks kept, split and dropped documents survive the file") {
  const json lanes = {{"parallel", {{"data", 2}, {"pipeline", 2}}}, {"batch", {{"steps", 3}}}};
  SUBCASE("hbp's groups have their own layers, rows their own mode") {
    check_round_trip(small_with(lanes),
                     {{{"name", "hbp"}, {"label", "auto"}, {"groups", "8K:1,32K:4"}, {"recompute", "auto"}},
                      {{"name", "plain"}, {"label", "five"}, {"recompute", {{"layers", 5}}}},
                      {{"name", "plain"}, {"label", "full"}, {"recompute", "full"}}});
  }
  SUBCASE("chunkflow's K") {
    check_round_trip(small_with(lanes), {{{"name", "chunkflow"}, {"chunk_size", "4K"}, {"keep", 2}}});
  }
  SUBCASE("the schedule that a row chose") {
    // Few micro-batches on four stages: equipoise cuts documents, which the study's own 1f1b does not take.
    check_round_trip(small_with({{"parallel", {{"pipeline", 4}, {"context", 1}}}, {"batch", {{"steps", 2}}}}),
                     {{{"name", "equipoise"}, {"schedule", "auto"}, {"moves", 1000}}});
  }
  SUBCASE("slices, with layers of each stage") {
    check_round_trip(
        small_with(lanes),
        {{{"name", "sequence-slices"}, {"slices", 3}, {"recompute", "auto"}, {"recompute_by_stage", true}}});
  }
  SUBCASE("what is too long") {
    json policies = json::array();
    for (const char* way : {"drop", "truncate", "split"})
      policies.push_back({{"name", "ffd"}, {"label", way}, {"pack_length", "8K"}, {"oversize", way}});
    for (const char* way : {"truncate", "split"})
      policies.push_back({{"name", "wlb"},
                          {"label", std::string("wlb ") + way},
                          {"max_tokens", "24K"},
                          {"queues", 2},
                          {"oversize", way}});
    check_round_trip(small_with(lanes), policies);
  }
}

TEST_CASE("Layers of a stage and layers of the model") {
  // 6 layers on 2 stages: the order is 0, 3, 1, 4, 2, 5, so 3 of the model are 2 and 1.
  ModelShape model;
  model.layers = 6;
  Layout layout;
  layout.pipeline = 2;
  layout.recompute = Recompute::layers;
  layout.recompute_layers = 5;
  const RecomputedLayers recomputed(model, layout);
  CHECK(recomputed.of_fullest_stage(3) == 2);
  CHECK(recomputed.of_fullest_stage(kStudyRecompute) == 3);
  CHECK(recomputed.of_model(0) == 0);
  CHECK(recomputed.of_model(2) == 4);
  CHECK(recomputed.of_model(3) == 6);
  CHECK(recomputed.of_model(6) == 6);  // no stage has more than 3
  layout.virtual_pipeline = 3;         // a layer each: stage 0 has layers 0, 2, 4
  const RecomputedLayers interleaved(model, layout);
  CHECK(interleaved.of_model(1) >= 2);
  CHECK(interleaved.of_fullest_stage(interleaved.of_model(2)) >= 2);
  CHECK(interleaved.of_model(3) == 6);
}

TEST_CASE("recompute_layers of a plan that says nothing else counts layers of the stage") {
  PlainPlan made;
  made.plan.erase("recompute");
  const int layers = parse(small_study()).model.layers;  // on 2 stages
  for (json& step : made.plan["steps"])
    for (json& lane : step["lanes"])
      for (json& m : lane["micro_batches"]) m["recompute_layers"] = 3;
  const PolicyResult three = made.row();
  CHECK(three.plan.steps[0].lanes[0].micro_batches[0].recompute_layers == 6);
  PlainPlan same(json{{"parallel", {{"recompute", {{"layers", 6}}}}}});
  CHECK(*three.metrics.step_seconds == *same.row().metrics.step_seconds);

  made.micro_batch()["recompute_layers"] = layers + 1;
  CHECK(holds(made.reason(),
              "p.json.steps[0].lanes[0].micro_batches[0].recompute_layers: expected an integer in 0.."));
  made.micro_batch()["recompute_layers"] = 3;
  made.micro_batch()["recompute_layers_of_model"] = 5;  // 3 and 2
  CHECK(made.row().plan.steps[0].lanes[0].micro_batches[0].recompute_layers == 5);
  made.micro_batch()["recompute_layers_of_model"] = 8;
  CHECK(holds(made.reason(), "recompute_layers: expected 4, what recompute_layers_of_model is on a stage"));
  for (const json& list : {json{1}, json{1, layers}, json{1, -1}, json{1, 1, 1}, json{"1", 1}}) {
    made.micro_batch()["recompute_by_stage"] = list;
    CHECK(holds(made.reason(), "recompute_by_stage: expected a list of 2 numbers of layers"));
  }
  made.micro_batch()["recompute_by_stage"] = {2, 1};
  const std::vector<std::int16_t> by_stage = {2, 1};
  CHECK(made.row().plan.steps[0].lanes[0].micro_batches[0].recompute_by_stage == by_stage);
}

TEST_CASE("A plan that follows the study says one number of layers") {
  PlainPlan made;
  CHECK(made.plan["recompute"] == "study");
  made.micro_batch()["recompute_layers"] = 1;
  CHECK(holds(
      made.reason(),
      "recompute_layers: expected 1 as everywhere in a plan whose \"recompute\" is \"study\", found 0"));
}

TEST_CASE("A file of several plans needs to be told which") {
  PlainPlan made;
  json wlb = made.plan;
  wlb["policy"] = "wlb";
  json plain = made.plan;
  plain["name"] = "mine";
  made.plan = {{"schema", "equipoise.plans/1"}, {"plans", {plain, wlb, wlb}}};
  CHECK(holds(made.reason(), "p.json: policy: expected one of mine, wlb, wlb, found nothing to choose by"));
  made.file["policies"][0]["policy"] = "ffd";
  CHECK(holds(made.reason(), "expected one of mine, wlb, wlb, found ffd"));
  made.file["policies"][0]["policy"] = "wlb";
  CHECK(holds(made.reason(), "found wlb, which is several"));
  for (const char* name : {"mine", "plain"}) {
    made.file["policies"][0]["policy"] = name;
    CHECK(made.row().status == RowStatus::ok);
  }
  made.plan = plain;
  made.file["policies"][0]["policy"] = "wlb";
  CHECK(holds(made.reason(), "p.json: policy: expected plain, found wlb"));
}

TEST_CASE("What a plan's own policy takes is taken for it, unless the study says otherwise") {
  PlainPlan made(json::object(), json{{"name", "chunkflow"}, {"chunk_size", "8K"}});
  PolicyResult row = made.row();
  CHECK(row.run.schedule == "state-aware-1f1b");
  const Note* const rules = test::find_note(row.notes, "rules_of_plan");
  REQUIRE(rules != nullptr);
  CHECK(rules->text("policy") == "chunkflow");
  CHECK(rules->get<Notes>("rules") == Notes{{"schedule_rule", "", {{"schedule", "state-aware-1f1b"}}}});
  made.plan["policy"] = "somebody's";
  CHECK(made.row().run.schedule.empty());
  made.plan["schedule"] = "seq1f1b";  // its own goes before that of its policy, known or not
  CHECK(made.row().run.schedule == "seq1f1b");
  made.plan["policy"] = "chunkflow";
  CHECK(made.row().run.schedule == "seq1f1b");
  made.plan["schedule"] = "fast";
  CHECK(holds(made.reason(), "p.json: schedule: unknown name \"fast\""));
  made.plan.erase("schedule");
  made.plan["policy"] = "skrull";
  made.file["policies"][0]["shard"] = "per-sequence";
  CHECK(made.row().run.shard == "per-sequence");
}

TEST_CASE("A plan that does not fit the study is a refused row, the others run") {
  SUBCASE("a token twice") {
    PlainPlan made;
    made.plan["steps"][1] = made.plan["steps"][0];
    made.plan["steps"][1]["step"] = 1;
    CHECK(holds(made.reason(), "p.json: does not fit the study: "));
    made.file["policies"].push_back("plain");
    made.folder.write("p.json", made.plan.dump());
    const StudyResult both = run(study_in(made.folder, made.file));
    CHECK(both.policies[0].status == RowStatus::refused);
    CHECK(both.policies[1].status == RowStatus::ok);
  }
  SUBCASE("fewer steps than the study, so tokens are missing") {
    PlainPlan made;
    made.plan["steps"].erase(3);
    CHECK(holds(made.reason(), "is neither executed nor dropped"));
  }
  SUBCASE("a CP degree that the layout has not") {
    PlainPlan made(json{{"parallel", {{"data", 2}}}});
    made.plan["steps"][2]["lanes"][1]["context"] = 5;
    CHECK(holds(made.reason(),
                "p.json: steps[2].lanes[1].context: expected at most data x context = 4, found 5"));
    made.plan["steps"][2]["lanes"][1]["context"] = 3;  // no divisor, and with the other lane's 2 too many
    CHECK(holds(made.reason(), "step 2: lanes use 5 GPUs of 4"));
    made.plan["steps"][2]["lanes"][1]["context"] = 4;
    CHECK(holds(made.reason(), "step 2: lanes use 6 GPUs of 4"));
  }
  SUBCASE("Ulysses over more ranks than heads") {
    PlainPlan made(json{{"parallel", {{"data", 32}, {"context_comm", "ulysses"}}},
                        {"batch", {{"sequences_per_step", 64}}}});
    made.plan["steps"][0]["lanes"] = json::array({made.plan["steps"][0]["lanes"][0]});
    made.plan["steps"][0]["lanes"][0]["context"] = 64;
    CHECK(holds(made.reason(), "query heads of a TP rank (context_comm ulysses), found 64"));
  }
  SUBCASE("a barrier group out of order") {
    PlainPlan made(json{{"parallel", {{"data", 2}}}});
    made.plan["steps"][0]["lanes"][1]["barrier_group"] = 2;
    CHECK(holds(made.reason(), "p.json: steps[0].lanes[1].barrier_group: expected 0 or 1, found 2"));
  }
  SUBCASE("a placement outside the CP group") {
    PlainPlan made;
    json& m = made.micro_batch();
    m["placement"] = std::vector<int>(m["slices"].size(), 2);
    CHECK(holds(made.reason(), "placed on CP rank 2 of 2"));
  }
  SUBCASE("a document cut where our policies do not, in order: allowed; out of order: with a note") {
    PlainPlan made;
    json& slices = made.micro_batch()["slices"];
    const auto longest = std::max_element(slices.begin(), slices.end(), [](const json& a, const json& b) {
      return a[2].get<int>() - a[1].get<int>() < b[2].get<int>() - b[1].get<int>();
    });
    const json whole = *longest;
    const int middle = (whole[1].get<int>() + whole[2].get<int>()) / 2;
    *longest = {whole[0], whole[1], middle};
    slices.insert(longest + 1, json{whole[0], middle, whole[2]});
    CHECK(made.row().notes.empty());
    const auto at = std::find(slices.begin(), slices.end(), json{whole[0], middle, whole[2]});
    std::swap(*at, *(at - 1));
    const PolicyResult row = made.row();
    CHECK(row.status == RowStatus::ok);
    REQUIRE(row.notes.size() == 1);
    CHECK(row.notes[0].kind == "pieces_alone");
  }
  SUBCASE("no steps") {
    PlainPlan made;
    made.plan["steps"] = json::array();
    CHECK(holds(made.reason(), "p.json: steps: expected at least one step, found none"));
  }
}

TEST_CASE("Lanes that leave ranks idle are told") {
  PlainPlan made(json{{"parallel", {{"data", 2}}}, {"batch", {{"steps", 1}}}});
  json& lanes = made.plan["steps"][0]["lanes"];
  for (const json& m : lanes[1]["micro_batches"]) lanes[0]["micro_batches"].push_back(m);
  lanes.erase(1);
  const PolicyResult row = made.row();
  REQUIRE(row.notes.size() == 1);
  CHECK(row.notes[0] == Note{"idle_ranks", "plan", {{"used", 2}, {"ranks", 4}, {"steps", 1}, {"of", 1}}});
}

TEST_CASE("A file that is no plan ends the study in one line") {
  PlainPlan made;
  const json good = made.plan;
  struct Bad {
    const char* pointer;
    json value;
    const char* message;
  };
  const Bad bad[] = {
      {"/schema", "equipoise.plan/2",
       "p.json.schema: expected equipoise.plan/1 or equipoise.plans/1, found \"equipoise.plan/2\""},
      {"/placment", json::array(), "unknown key \"placment\""},
      {"/steps", 3, "p.json.steps: expected a list, found 3"},
      {"/recompute", "some", "p.json.recompute: expected one of plan, study, found \"some\""},
      {"/notes", {1}, "p.json.notes: expected a list of notes"},
      {"/steps/1/step", 0, "p.json.steps[1].step: expected 1, its place in the list, found 0"},
      {"/steps/0/lanes/0/lane", 1, "lanes[0].lane: expected 0"},
      {"/steps/0/lanes/0/context", 0, "steps[0].lanes[0].context: expected an integer in 1.."},
      {"/steps/0/lanes/0/micro_batches/0/tokens", 5,
       "micro_batches[0].tokens: expected 32768, the sum of its slices, found 5"},
      {"/steps/0/lanes/0/micro_batches/0/slices/0",
       {1, 2},
       "slices[0]: expected [document, begin, end] with 0 <= begin < end"},
      {"/steps/0/lanes/0/micro_batches/0/slices/0", {1, 5, 5}, "found [1,5,5]"},
      {"/steps/0/lanes/0/micro_batches/0/slices/0", {1, 0.5, 5}, "found [1,0.5,5]"},
      {"/steps/0/lanes/0/micro_batches/0/placement",
       {"a"},
       "placement: expected a list of CP ranks, -1 for all"},
      {"/steps/0/lanes/0/micro_batches/0/chunk",
       {{"sequence", 0}, {"index", 4}, {"count", 4}},
       "chunk.index: expected an integer in 0..3, found 4"},
      {"/steps/0/lanes/0/micro_batches/0/chunk",
       {{"sequence", 0}},
       "chunk.index: expected an integer, found nothing"},
  };
  for (const Bad& b : bad) {
    CAPTURE(b.message);
    made.plan = good;
    made.plan[json::json_pointer(b.pointer)] = b.value;
    made.folder.write("p.json", made.plan.dump());
    std::string message;
    try {
      (void)run(study_in(made.folder, made.file));
    } catch (const UserError& e) {
      message = e.what();
    }
    CHECK(holds(message, b.message));
    CHECK(holds(message, made.folder.path("p.json")));
  }
  made.folder.write("p.json", "{\"schema\": 1, \"schema\": 2}");
  CHECK_THROWS_WITH_AS(run(study_in(made.folder, made.file)), doctest::Contains("this key is here twice"),
                       UserError);
  made.folder.write("p.json", std::string(100, '['));
  CHECK_THROWS_WITH_AS(run(study_in(made.folder, made.file)), doctest::Contains("at most 64 levels deep"),
                       UserError);
}

TEST_CASE("The entry of a plan") {
  CHECK(holds(refusal(small_study_of({{"name", "plan"}})),
              "policies[0].file: expected the path of a plan (equipoise.plan/1), found nothing"));
  CHECK(holds(refusal(small_study_of({{"name", "plan"}, {"file", "nowhere.json"}})),
              "policies[0].file: expected a file that is there, found \"nowhere.json\""));
  CHECK(holds(refusal(small_study_of({{"name", "plain"}, {"file", "x"}})),
              "policies[0].file: expected none with a name other than plan, found \"x\""));
}
