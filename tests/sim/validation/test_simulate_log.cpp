#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "sim/report/study_outputs.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/validation/compare_log.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

double seconds_of(const std::vector<SimulatedOp>& ops, OpName name) {
  for (const SimulatedOp& op : ops)
    if (op.op == name) return op.seconds;
  return 0;
}

}  // namespace

TEST_CASE("Ops of a rank: repeated blocks, transfers at both ends, the end of the step") {
  constexpr Picoseconds kSecond = 1'000'000'000'000;
  OpProgram program;
  program.stages = 2;
  program.replicas = 3;
  OpLane lane;
  lane.context = 2;
  lane.first_replica = 1;
  // On CP ranks 0 and 1: attention of 1 and 2 s, 4 layers of it; a wait takes no time.
  OpStep attention;
  attention.name = OpName::attention;
  OpStep wait;
  wait.name = OpName::dp_reduce;
  wait.waits = true;
  lane.blocks = {{{attention, wait}, {1 * kSecond, 2 * kSecond, 9 * kSecond, 9 * kSecond}}};
  lane.runs = {{0, 4, kNoBucket}};
  lane.transfers = {3 * kSecond, 5 * kSecond};
  lane.stages.resize(2);
  ScheduledOp first;
  first.run_count = 1;
  ScheduledOp second;
  second.run_count = 1;
  second.input_stage = 0;
  second.input_op = 0;
  second.transfer = 0;
  lane.stages[0] = {first};
  lane.stages[1] = {second};
  program.lanes = {lane};
  StageEnd end;
  end.buckets = {kSecond, kSecond};
  OpStep optimizer;
  optimizer.name = OpName::optimizer;
  end.steps = {optimizer};
  end.durations = {7 * kSecond};
  program.ends = {end, {}};

  const std::vector<SimulatedOp> sender = ops_of_rank(program, 0, 2);
  CHECK(seconds_of(sender, OpName::attention) == doctest::Approx(8));
  CHECK(seconds_of(sender, OpName::pp_send) == doctest::Approx(5));
  CHECK(seconds_of(sender, OpName::dp_reduce) == doctest::Approx(2));
  CHECK(seconds_of(sender, OpName::optimizer) == doctest::Approx(7));
  const std::vector<SimulatedOp> receiver = ops_of_rank(program, 1, 1);
  CHECK(seconds_of(receiver, OpName::attention) == doctest::Approx(4));
  CHECK(seconds_of(receiver, OpName::pp_send) == doctest::Approx(3));
  CHECK(seconds_of(receiver, OpName::optimizer) == 0);
  const std::vector<SimulatedOp> idle = ops_of_rank(program, 0, 0);  // on no lane
  CHECK(seconds_of(idle, OpName::attention) == 0);
  CHECK(seconds_of(idle, OpName::optimizer) == doctest::Approx(7));
}

TEST_CASE("A study's own steps.csv agrees with it, and a slower machine does not") {
  json file = small_study();
  file["batch"]["steps"] = 2;
  file["policies"].push_back({{"name", "ffd"}, {"pack_length", "1K"}});  // unplaceable
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  RunStudyOptions options;
  options.find_fits = false;
  const StudyResult result = run_study(study, inputs, options);
  std::string csv;
  for (const StudyOutput& output : study_outputs())
    if (std::string(output.file) == "steps.csv") csv = output.text(study, result);
  const SimulatedForLog simulated = simulate_for_log(study, inputs, options, false);
  CHECK(simulated.policies.size() == 3);
  CHECK(std::ranges::count(simulated.notes, "not_compared", &Note::kind) == 1);
  for (const Note& note : simulated.notes)
    if (note.kind == "not_compared") {
      CHECK(note.about == "ffd");
      CHECK(note.text("status") == "unplaceable");
      CHECK(note.get<Notes>("reasons")[0].kind == "fault");
    }
  for (const Note& note : notes_of(study, result)) CHECK(std::ranges::count(simulated.notes, note) == 1);
  CHECK(simulated.beyond_samples.size() == 3);

  MeasuredLog log = parse_measured_log(csv, "steps.csv");
  const ValidationFigures same = figures_of(compare_with_log(log, simulated.policies, {}));
  REQUIRE(same.policies.size() == 3);
  for (const PolicyFigures& p : same.policies) CHECK(std::abs(p.errors.error()) < 1e-6);
  CHECK(same.ranking.per_token);
  CHECK(same.passed());
  for (LoggedSteps& entry : log.steps) entry.seconds *= 1.1;
  CHECK(figures_of(compare_with_log(log, simulated.policies, {})).broken.size() == 3);
}

TEST_CASE("Ops of a study's GPU, static sharding chosen as the row chose it") {
  json file = small_study();
  file["batch"]["steps"] = 1;
  file["parallel"]["zero"] = 0;
  file["policies"] = {"plain-4d", "fixed-4d"};
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  const SimulatedForLog first = simulate_for_log(study, inputs, {}, true, 0);
  REQUIRE(first.policies.size() == 2);
  CHECK(first.policies[0].all_reduces);
  for (const SimulatedPolicy& policy : first.policies) {
    const std::vector<SimulatedOp>& ops = policy.steps[0].ops;
    double compute = 0;
    for (const SimulatedOp& op : ops)
      if (const auto kind = kind_of_op(op.op, true); kind == "gemm" || kind == "attention")
        compute += op.seconds;
    CHECK(seconds_of(ops, OpName::attention) > 0);
    CHECK(seconds_of(ops, OpName::embedding) > 0);
    CHECK(seconds_of(ops, OpName::logits_gemm) == 0);
    CHECK(compute < policy.steps[0].seconds);
  }
  const SimulatedForLog last = simulate_for_log(study, inputs, {}, true, 7);  // of the second stage
  CHECK(seconds_of(last.policies[0].steps[0].ops, OpName::logits_gemm) > 0);
  CHECK_THROWS_WITH_AS(simulate_for_log(study, inputs, {}, true, 8), "expected a GPU of 0 to 7, found 8",
                       UserError);
}
