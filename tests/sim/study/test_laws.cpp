// The laws of a study as one table: what changes, in which direction a step may then go, and how exactly.
// Each law is checked on random studies over all keys of layout, training and framework; one that breaks it
// is printed without every key that does not matter. EQUIPOISE_LAW_STUDIES: how many studies, 200 by default;
// EQUIPOISE_LAW_SEED: the first one's seed, 1 by default.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "policies/policy.h"
#include "sim/study/row/plan_row.h"
#include "sim/study/row/simulate.h"
#include "sim/study/row/study_row.h"
#include "sim/study/run_study.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/random_study.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

// A change of a study; false where the study has nothing for it.
using Edit = std::function<bool(json&)>;

Edit set(const char* pointer, json value) {
  return [=](json& file) {
    file[json::json_pointer(pointer)] = value;
    return RandomStudy::is_accepted(file);
  };
}
// Only where the model has experts.
Edit of_experts(const char* pointer, json value) {
  return [=](json& file) { return file["model"].contains("experts") && set(pointer, value)(file); };
}
// With a host that is never behind where the model has experts: their passes wait for the host, and each has
// the lead that its own micro-batch's other pass leaves, not the op that ran before it. Slower kernels may
// then shorten a step, by 0.06 % in the worst case found.
Edit ahead(Edit edit) {
  return [=](json& file) {
    if (file["model"].contains("experts")) {
      file["framework"]["seconds_per_launch"] = 0;
      file["framework"].erase("seconds_per_op");
    }
    return edit(file);
  };
}
// Where all layers are on one stage. A stage with one layer in flight keeps its input in addition.
Edit on_one_stage(const char* pointer, json value) {
  return [=](json& file) { return file["parallel"].value("pipeline", 1) == 1 && set(pointer, value)(file); };
}
Edit as_it_is() {
  return [](json&) { return true; };
}

// The study on an H100 one of whose facts is `times` as large.
Edit device(const char* fact, double times) {
  return [=](json& file) {
    static const test::Scratch folder;
    const std::string name = std::string(fact) + std::to_string(times) + ".json";
    if (!std::filesystem::exists(folder.path(name))) {
      json profile = Profile::load("h100-sxm").json();
      profile["device"][fact] = profile["device"][fact].get<double>() * times;
      folder.write(name, profile.dump());
    }
    file["cluster"]["profile"] = folder.path(name);
    return true;
  };
}

Edit one_node_in_order(const char* order) {
  return [=](json& file) {
    file["cluster"]["gpus_per_node"] = 1024;
    return set("/parallel/order", order)(file);
  };
}

enum class Then { no_slower, no_faster, as_fast, holds_no_more };

struct Law {
  const char* quantity;
  Edit from, to;
  Then then;
  double slack;     // the ratio that a step may go the other way by; 1: to the picosecond
  const char* why;  // of the slack, or of where the law does not hold
};

constexpr double kExact = 1;

const std::vector<Law>& laws() {
  static const std::vector<Law> kLaws = {
      // what changes              from                                          to
      {"NIC", set("/cluster/network/nic_GBps", 25), set("/cluster/network/nic_GBps", 50), Then::no_slower,
       kExact, "of a given plan; with --contention flows that come earlier may meet others"},
      {"NVLink", as_it_is(), device("nvlink_GBps", 2), Then::no_slower, kExact, "of a given plan"},
      {"GPU", as_it_is(), set("/cluster/profile", "h200-sxm"), Then::no_slower, kExact,
       "an H200 has an H100's SMs"},
      {"peak", as_it_is(), device("peak_bf16_tflops", 2), Then::as_fast, kExact,
       "it is what MFU is a share of; kernels are priced by their own tables"},
      {"launch on the GPU", device("launch_seconds", 2), as_it_is(), Then::no_slower, kExact, ""},
      {"launch on the host", set("/framework/seconds_per_launch", 2e-5),
       set("/framework/seconds_per_launch", 5e-6), Then::no_slower, kExact, ""},
      {"host's time of a kernel", ahead(set("/framework/seconds_per_kernel", 1e-5)),
       ahead(set("/framework/seconds_per_kernel", 0)), Then::no_slower, kExact, ""},
      {"host's time of an op", set("/framework/seconds_per_op", 1e-5), set("/framework/seconds_per_op", 0),
       Then::no_slower, kExact, ""},
      {"GEMMs", ahead(set("/framework/gemm_slowdown", 1.5)), ahead(set("/framework/gemm_slowdown", 1.25)),
       Then::no_slower, kExact, ""},
      {"attention", ahead(set("/framework/attention_slowdown", 1.5)),
       ahead(set("/framework/attention_slowdown", 1.25)), Then::no_slower, kExact, ""},
      {"elementwise kernels", ahead(set("/framework/elementwise_slowdown", 1.5)),
       ahead(set("/framework/elementwise_slowdown", 1.25)), Then::no_slower, kExact, ""},
      {"experts' GEMMs", ahead(of_experts("/framework/expert_gemm_slowdown", 1.5)),
       ahead(of_experts("/framework/expert_gemm_slowdown", 1.25)), Then::no_slower, kExact, ""},
      {"imbalance of experts", ahead(of_experts("/framework/expert_imbalance", 1)),
       ahead(of_experts("/framework/expert_imbalance", 2)), Then::no_faster, kExact, ""},
      {"capacity of experts", ahead(of_experts("/framework/expert_capacity_factor", 1)),
       ahead(of_experts("/framework/expert_capacity_factor", 2)), Then::no_faster, kExact, ""},
      {"link to the host", set("/parallel/host_link_GBps", 10), set("/parallel/host_link_GBps", 50),
       Then::no_slower, kExact, ""},
      {"memory of the host", set("/parallel/host_memory_GBps", 10), set("/parallel/host_memory_GBps", 50),
       Then::no_slower, kExact, ""},
      {"bytes of a gradient", set("/framework/gradient_bytes", 2), set("/framework/gradient_bytes", 4),
       Then::no_faster, kExact, ""},
      {"overlap of weights", set("/framework/overlap_param_gather", false),
       set("/framework/overlap_param_gather", true), Then::no_slower, kExact, ""},
      {"gathered K and V", set("/framework/keep_gathered_kv", false),
       set("/framework/keep_gathered_kv", true), Then::no_slower, kExact, ""},
      {"optimizer", set("/framework/optimizer_step", true), set("/framework/optimizer_step", false),
       Then::no_slower, kExact, ""},
      {"recompute", set("/parallel/recompute", "none"), set("/parallel/recompute", "full"), Then::no_faster,
       kExact, ""},
      {"recomputed attention", set("/parallel/recompute", "none"), set("/parallel/recompute", "selective"),
       Then::no_faster, kExact, ""},
      {"memory of recompute", on_one_stage("/parallel/recompute", "none"),
       on_one_stage("/parallel/recompute", "full"), Then::holds_no_more, kExact,
       "of a stage with many layers"},
      {"order of ranks in a node", one_node_in_order("tp-cp-ep-dp-pp"), one_node_in_order("tp-cp-ep-pp-dp"),
       Then::as_fast, kExact, "all links of a node are alike"},
      {"NIC in a node", one_node_in_order("tp-cp-ep-dp-pp"),
       [](json& file) {
         return one_node_in_order("tp-cp-ep-dp-pp")(file) && set("/cluster/network/nic_GBps", 1)(file);
       },
       Then::as_fast, kExact, "nothing leaves the node"},
  };
  return kLaws;
}

struct Steps {
  std::vector<Picoseconds> times;
  double held = 0;
};

Steps steps_of(const std::vector<StepFigures>& results) {
  Steps steps;
  for (const StepFigures& result : results) {
    steps.times.push_back(result.times.makespan);
    steps.held = std::max(steps.held, result.work.peak.parts.total());
  }
  return steps;
}

PolicyResult planned(const json& file, Fidelity fidelity = Fidelity::stage) {
  RunStudyOptions options;
  options.keep_plans = true;
  options.find_fits = false;
  options.steps.fidelity = fidelity;
  return run_study(parse(file), options).policies.front();
}

// The steps of a plan that was made for another study.
Steps steps_with(const json& file, const PolicyResult& made) {
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  PolicyRun run = study.policies.front();
  run.pack = made.run.pack;
  run.schedule = made.run.schedule;
  StudyRow row(study, inputs, run);
  row.workload = workload_of(row);
  return steps_of(simulate_plan(row, made.plan, {}, Until::all_steps).steps);
}

bool holds(const Law& law, const Steps& from, const Steps& to) {
  if (law.then == Then::holds_no_more) return to.held <= from.held * law.slack;
  for (std::size_t i = 0; i < from.times.size(); ++i) {
    const auto a = static_cast<double>(from.times[i]), b = static_cast<double>(to.times[i]);
    if (law.then != Then::no_faster && b > a * law.slack) return false;
    if (law.then != Then::no_slower && a > b * law.slack) return false;
  }
  return true;
}

// Whether the law holds; nothing where it says nothing of the study.
std::optional<bool> holds(const Law& law, const json& file) {
  json from = file, to = file;
  if (!law.from(from) || !law.to(to)) return {};
  try {
    const PolicyResult made = planned(from);
    if (made.status != RowStatus::ok || made.run.recompute_chosen) return {};
    return holds(law, steps_of(made.steps), steps_with(to, made));
  } catch (const UserError&) {
    return {};
  }
}

std::optional<bool> fidelities_agree(const json& file) {
  try {
    const PolicyResult stage = planned(file);
    if (stage.status != RowStatus::ok) return {};
    return steps_of(stage.steps).times == steps_of(planned(file, Fidelity::op).steps).times;
  } catch (const UserError&) {
    return {};
  }
}

// ---- Memory decides what is planned, so that policies plan anew.

struct RowByMemory {
  const char* row;
  double slack;     // the ratio by which more memory may be slower
  const char* why;  // of the slack
};
constexpr RowByMemory kByMemory[] = {
    {R"({"name": "skrull"})", kExact, ""},
    {R"({"name": "gds"})", kExact, ""},
    {R"({"name": "round-robin"})", kExact, ""},
    {R"({"name": "hbp"})", kExact, ""},
    {R"({"name": "plain", "recompute": "auto"})", kExact, ""},
    {R"({"name": "chunkflow", "chunk_size": 2048, "schedule": "state-aware-1f1b"})", kExact, ""},
    {R"({"name": "equipoise", "start": "plain"})", 1.005,
     "its own clock chooses, which is not the simulator's"},
    {R"({"name": "equipoise"})", 1.02, "a search, which more memory may lead another way"},
};
const RowByMemory& row_by_memory(std::uint64_t seed) {
  return kByMemory[seed % std::size(kByMemory)];
}

json of_memory(const json& file, std::uint64_t seed) {
  json row = json::parse(row_by_memory(seed).row);
  row["pad"] = "tail";
  json changed = file;
  changed["policies"] = json::array({row});
  if (seed % 3 == 0) changed["batch"]["documents_per_step"] = 32;
  return changed;
}

double seconds_with(json file, double memory_GB) {
  file["cluster"]["memory_GB"] = memory_GB;
  const PolicyResult row = planned(file);
  double seconds = 0;
  for (const StepFigures& step : row.steps) seconds += to_seconds(step.times.makespan);
  return row.status == RowStatus::ok ? seconds : HUGE_VAL;
}

std::optional<bool> more_memory_is_no_slower(const json& file, double slack) {
  try {
    const PolicyResult enough = planned(file);
    if (enough.status != RowStatus::ok) return {};
    double before = HUGE_VAL;
    for (const double share : {0.6, 0.8, 0.9, 1.0, 1.2, 1.7, 3.0}) {
      const double now = seconds_with(file, share * enough.peak.parts.total() / 1e9 + 3.8);
      if (now > before * slack) return false;
      before = std::min(before, now);
    }
    return true;
  } catch (const UserError&) {
    return {};
  }
}

// ----

long number_from(const char* variable, long usual) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? usual : std::strtol(text, nullptr, 10);
}

using Check = std::function<std::optional<bool>(const json&)>;

struct Count {
  int held = 0, broken = 0;
};

void check(const std::string& quantity, const Check& law, const json& file, Count& count) {
  const std::optional<bool> found = law(file);
  if (!found) return;
  ++(*found ? count.held : count.broken);
  if (*found || count.broken > 1) return;  // one example of a law is enough
  const json least = shrunk(file, [&](const json& smaller) { return law(smaller) == false; });
  FAIL_CHECK(quantity, ": broken by ", least.dump());
}

}  // namespace

TEST_CASE("The laws of a study hold on random studies over all keys") {
  const auto seed = static_cast<std::uint64_t>(number_from("EQUIPOISE_LAW_SEED", 1));
  const auto studies = static_cast<std::uint64_t>(number_from("EQUIPOISE_LAW_STUDIES", 200));
  std::map<std::string, Count> counts;
  for (std::uint64_t s = seed; s < seed + studies; ++s) {
    CAPTURE(s);
    const json file = RandomStudy(s).next();
    check("fidelities", fidelities_agree, file, counts["fidelities"]);
    constexpr std::size_t kOfStudy = 4;  // all of them in turn
    for (std::size_t k = 0; k < kOfStudy; ++k) {
      const Law& law = laws()[(s * kOfStudy + k) % laws().size()];
      check(
          law.quantity, [&](const json& f) { return holds(law, f); }, file, counts[law.quantity]);
    }
    if (s % 4 > 0) continue;
    const std::string quantity = std::string("memory of ") + row_by_memory(s / 4).row;
    const double slack = row_by_memory(s / 4).slack;
    check(
        quantity, [&](const json& f) { return more_memory_is_no_slower(f, slack); }, of_memory(file, s / 4),
        counts[quantity]);
  }
  for (const auto& [quantity, count] : counts) {
    MESSAGE(quantity, ": held ", count.held, " times, broken ", count.broken);
    if (studies >= 200) CHECK(count.held > 0);  // the law says something of some studies
  }
}

// The exceptions of the law of memory, each with its reason: two papers fill what memory allows. Documents
// then stay whole on one rank while the others wait (skrull's bucket), or one micro-batch takes what others
// could (wlb's L_max).
TEST_CASE("More memory may be slower only where a paper's rule takes all of it") {
  json file = small_study();
  file["parallel"] = {{"tensor", 1}, {"context", 4}, {"pipeline", 2}, {"data", 1}, {"recompute", "none"}};
  file["batch"] = {{"documents_per_step", 64}, {"steps", 2}};
  file.erase("baseline");
  double slowest = 1;
  for (int seed = 0; seed < 6; ++seed) {
    file["trace"] = {{"distribution", "wikipedia"}, {"seed", seed}};
    for (const json& bucket : {json("memory"), json("best")}) {
      file["policies"] = json::array({{{"name", "skrull"}, {"bucket_size", bucket}}});
      double before = HUGE_VAL;
      for (const double memory_GB : {12, 16, 24, 40, 80}) {
        CAPTURE(memory_GB);
        const double now = seconds_with(file, memory_GB);
        if (bucket == "best") CHECK(now <= before);
        if (before < HUGE_VAL) slowest = std::max(slowest, now / before);
        before = now;
      }
    }
  }
  CHECK(slowest > 1.05);
}
