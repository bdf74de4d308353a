// More bandwidth and faster kernels never make a given plan slower, at either fidelity: the schedule's order
// is fixed and everything else waits for the latest of what it needs, so no time can grow. (Choices that are
// made anew, packing and adaptive sharding among them, are other plans.) With link contention the law does
// not hold: flows that come earlier may meet others.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/step/op_step_simulator.h"
#include "tests/sim/step/random_job.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr double kSlack = 1.001;
constexpr double kNicGBps = 25;
constexpr double kRounded = 1 + 1e-12;  // sums of doubles

// What a job is priced with.
struct Hardware {
  std::string name;
  const Profile* profile = nullptr;
  double nic_GBps = kNicGBps;
  double gemm = 1.3, attention = 1.3, elementwise = 1.3;  // slowdowns
};

const Profile& h200() {
  static const Profile loaded = Profile::load("h200-sxm");
  return loaded;
}

const Profile& faster_nvlink() {
  static const Profile made = [] {
    nlohmann::json file = profile().json();
    file["device"]["nvlink_GBps"] = 2 * file["device"]["nvlink_GBps"].get<double>();
    return Profile(file, "twice the NVLink");
  }();
  return made;
}

std::vector<Hardware> better_ones() {
  const Hardware base{"base", &profile()};
  std::vector<Hardware> list(7, base);
  list[0].name = "NIC x 2";
  list[0].nic_GBps = 2 * kNicGBps;
  list[1].name = "NVLink x 2";
  list[1].profile = &faster_nvlink();
  list[2].name = "GEMMs";
  list[2].gemm = 1;
  list[3].name = "attention";
  list[3].attention = 1;
  list[4].name = "elementwise";
  list[4].elementwise = 1;
  list[5].name = "H200";
  list[5].profile = &h200();
  list[6] = {"all of it", &h200(), 4 * kNicGBps, 1, 1, 1};
  return list;
}

struct Times {
  double stage = 0, op = 0, held = 0;  // seconds; bytes
};

Times run_on(const Hardware& hardware, const Job& job) {
  const Layout& l = job.layout;
  const RankGrid grid(l.order, {l.tensor, l.context, l.expert, l.data, l.pipeline, l.expert_tensor}, 4);
  FrameworkOptions framework = job.framework;
  framework.gemm_slowdown = hardware.gemm;
  framework.attention_slowdown = hardware.attention;
  framework.elementwise_slowdown = hardware.elementwise;
  const LayerCosts costs(job.model, l, *hardware.profile, grid, {hardware.nic_GBps, ""}, framework);
  const MemoryModel memory(job.model, l, *hardware.profile, framework);
  const StepResult result = StepSimulator(costs, job.shard, job.options, &memory).run(job.step);
  return {to_seconds(result.times.makespan),
          to_seconds(OpStepSimulator(costs, job.shard, job.options, {}).run(job.step).times.makespan),
          result.work.peak.parts.total()};
}

// Jobs whose lanes meet inside layers, too: experts, ZeRO-2 and 3.
Job any_job(std::uint64_t seed) {
  Job job = random_job(seed);
  SplitMix64 random(seed * 31 + 1);
  if (job.model.moe)
    for (const int expert : {2, 4, 8})
      if ((job.layout.data * job.layout.context) % expert == 0 && below(random, 2) == 0)
        job.layout.expert = expert;
  job.layout.zero = static_cast<int>(below(random, job.layout.pipeline == 1 ? 4 : 3));
  job.layout.reduce_each_micro_batch = below(random, 2) == 0;
  return job;
}

}  // namespace

TEST_CASE(
    "A plan is never slower, nor holds more, with more of the first layers frozen, at both fidelities") {
  const Hardware base{"base", &profile()};
  for (std::uint64_t seed = 1000; seed < 1020; ++seed) {
    Job job = any_job(seed);
    CAPTURE(job.text);
    job.model.training = {bit_of(WeightKind::embedding), 0, 0, 0};
    Times before = run_on(base, job);
    for (int layers = 1; layers <= job.model.layers; layers += 1 + static_cast<int>(seed % 3)) {
      CAPTURE(layers);
      job.model.training.frozen_layers = layers;
      const Times now = run_on(base, job);
      CHECK(now.stage <= before.stage);
      CHECK(now.op <= before.op * kSlack);
      CHECK(now.held <= before.held * kRounded);
      before = now;
    }
  }
}

TEST_CASE("A faster network is never slower where the host limits: what attention covers gives it no lead") {
  constexpr double kSecondsOfLaunch = 2e-5;
  for (std::uint64_t seed = 1000; seed < 1030; ++seed) {
    Job job = any_job(seed);
    job.framework.host.seconds_per_launch = kSecondsOfLaunch;
    job.layout.tensor = 4;  // a node, so that CP crosses the network
    job.layout.context = 2;
    job.layout.expert = 1;
    job.layout.context_comm = seed % 2 == 0 ? ContextComm::ring : ContextComm::all_gather;
    for (Lane& lane : job.step.lanes) lane.context = job.layout.context;
    CAPTURE(job.text);
    Hardware hardware{"base", &profile()};
    Times before;
    for (const double nic_GBps : {12.5, 25.0, 50.0, 100.0, 200.0, 400.0}) {
      CAPTURE(nic_GBps);
      hardware.nic_GBps = nic_GBps;
      const Times now = run_on(hardware, job);
      if (before.stage > 0) CHECK(now.stage <= before.stage);
      if (before.op > 0) CHECK(now.op <= before.op);
      before = now;
    }
  }
}

TEST_CASE("A plan is never slower with more bandwidth or faster kernels, at both fidelities") {
  const std::vector<Hardware> better = better_ones();
  const Hardware base{"base", &profile()};
  for (std::uint64_t seed = 1000; seed < 1040; ++seed) {
    const Job job = any_job(seed);
    CAPTURE(job.text);
    CAPTURE(job.layout.zero);
    CAPTURE(job.layout.expert);
    const Times before = run_on(base, job);
    for (const Hardware& hardware : better) {
      CAPTURE(hardware.name);
      const Times now = run_on(hardware, job);
      CHECK(now.stage <= before.stage * kSlack);
      CHECK(now.op <= before.op * kSlack);
    }
  }
}
