// The check of `study --verify` passes what the engines make of random jobs, and names what was changed in
// it.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/step/op_step_simulator.h"
#include "sim/verify/check_step.h"
#include "tests/sim/step/random_job.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct Ran {
  explicit Ran(const Job& job)
      : prices(job),
        memory(job.model, job.layout, profile(), job.framework),
        ahead(job.framework.recompute_ahead && !job.options.strict_keep) {
    StepOptions options = job.options;
    options.record_ops = true;
    OpStepSimulator simulator(prices.costs, job.shard, options, {}, &memory);
    simulated = simulator.run(job.step);
    program = simulator.program();
    result = simulator.result();
  }
  // What does not hold; the names of all that was looked at in `looked`.
  std::vector<std::string> faults(const Job& job) const {
    const std::vector<Check> checks =
        check_step({job.step, program, {}, result, memory, simulated.work, ahead});
    REQUIRE(checks.size() == 3);
    std::vector<std::string> wrong;
    for (const Check& check : checks)
      if (!check.holds.value_or(false)) wrong.push_back(check.what.substr(0, check.what.find(',')));
    return wrong;
  }

  Prices prices;
  MemoryModel memory;
  bool ahead;
  StepResult simulated;
  OpProgram program;
  OpResult result;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("random jobs hold") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Job job = random_job(seed);
    CHECK(Ran(job).faults(job) == Names{});
  }
}

TEST_CASE("what was changed is named") {
  int orders = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const Job job = random_job(seed);
    Ran ran(job);
    ran.result.lanes.back().end.back().back() += Picoseconds{1};
    CHECK(ran.faults(job) == Names{"timeline"});
    ran.result.lanes.back().end.back().back() -= Picoseconds{1};
    ran.result.makespan += Picoseconds{1};
    CHECK(ran.faults(job) == Names{"timeline"});
    ran.result.makespan -= Picoseconds{1};
    ran.simulated.work.peak.parts.reserve += 1e6;
    CHECK(ran.faults(job) == Names{"memory"});
    ran.simulated.work.peak.parts.reserve -= 1e6;
    std::vector<ScheduledOp>& stage = ran.program.lanes.front().stages.front();
    const auto backward =
        std::find_if(stage.begin(), stage.end(), [](const ScheduledOp& s) { return s.op.kind == OpKind::B; });
    if (backward == stage.end()) continue;
    backward->op.kind = OpKind::F;  // then a forward runs twice
    const Names found = ran.faults(job);
    CHECK(std::find(found.begin(), found.end(), "schedule") != found.end());
    ++orders;
  }
  CHECK(orders > 6);
}
