// The laws of a study in one table: what a key does to a quantity of a row whose plan stays, in which
// direction, and how exactly. They hold of random studies over all keys (random_study.h), at both fidelities,
// which agree to the picosecond. EQUIPOISE_LAW_STUDIES and EQUIPOISE_LAW_SEED: how many, and which; the
// nightly tries thousands.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/scratch_folder.h"
#include "tests/sim/study/random_study.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

enum class Quantity { seconds, bytes };
enum class Direction { no_more, no_less, same };

// How far rounding may take a quantity to the wrong side, as a share of it.
constexpr double kPicoseconds = 1e-6;  // sums of durations that are each rounded to a picosecond
constexpr double kFitted = 1e-3;       // a curve of fitted pieces, whose borders are not quite continuous
constexpr double kExactly = 1e-12;     // sums of doubles

struct Law {
  const char* change;
  Quantity quantity;
  Direction direction;
  double exactness;
  // What is changed in a study; null: nothing that it says anything about.
  json (*to)(const json& file);
};

double number(const json& file, const char* place, double otherwise) {
  const json::json_pointer pointer(place);
  return file.contains(pointer) ? file.at(pointer).get<double>() : otherwise;
}
json with(const json& file, const char* place, const json& value) {
  json changed = file;
  changed[json::json_pointer(place)] = value;
  return changed;
}
// The key times a factor, where the study states it.
template <std::size_t kSize>
struct Word {
  char text[kSize];
  constexpr Word(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }
};
template <Word kPlace, int kPercent>
json scaled(const json& file) {
  if (!file.contains(json::json_pointer(kPlace.text))) return nullptr;
  const double value = number(file, kPlace.text, 0);
  if (value == 0) return nullptr;
  return with(file, kPlace.text, value * kPercent / 100);
}
template <Word kPlace, bool kTo>
json turned(const json& file) {
  return file.value(json::json_pointer(kPlace.text), json(nullptr)) == !kTo ? with(file, kPlace.text, kTo)
                                                                            : json(nullptr);
}

// A copy of the profile with one fact of the device doubled.
const std::string& profile_with_twice(const char* fact) {
  static const test::Scratch folder;
  static std::map<std::string, std::string> made;
  std::string& path = made[fact];
  if (!path.empty()) return path;
  json profile = Profile::load("h100-sxm").json();
  profile["device"][fact] = 2 * profile["device"][fact].get<double>();
  path = folder.write(std::string(fact) + ".json", profile.dump());
  return path;
}

const Law kLaws[] = {
    // Hardware.
    {"NIC", Quantity::seconds, Direction::no_more, kFitted,
     [](const json& f) {
       return with(f, "/cluster/network/nic_GBps", 4 * number(f, "/cluster/network/nic_GBps", 50));
     }},
    {"NVLink", Quantity::seconds, Direction::no_more, kFitted,
     [](const json& f) { return with(f, "/cluster/profile", profile_with_twice("nvlink_GBps")); }},
    {"H200", Quantity::seconds, Direction::no_more, kFitted,
     [](const json& f) {
       return f["framework"]["preset"] == "none" ? with(f, "/cluster/profile", "h200-sxm") : json();
     }},
    {"memory", Quantity::seconds, Direction::same, 0,
     [](const json& f) { return with(f, "/cluster/memory_GB", 800); }},
    {"memory", Quantity::bytes, Direction::same, 0,
     [](const json& f) { return with(f, "/cluster/memory_GB", 800); }},
    {"host link", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/parallel/host_link_GBps", 200>},
    {"host memory", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/parallel/host_memory_GBps", 200>},
    {"nodes of all GPUs", Quantity::seconds, Direction::no_more, kFitted,
     [](const json& f) { return with(f, "/cluster/gpus_per_node", 1024); }},
    {"oversubscription", Quantity::seconds, Direction::same, 0,
     scaled<"/cluster/network/oversubscription", 200>},  // acts with contention only
    // Kernels and the host.
    {"GEMMs", Quantity::seconds, Direction::no_less, kPicoseconds, scaled<"/framework/gemm_slowdown", 130>},
    {"attention", Quantity::seconds, Direction::no_less, kPicoseconds,
     scaled<"/framework/attention_slowdown", 130>},
    {"elementwise", Quantity::seconds, Direction::no_less, kPicoseconds,
     scaled<"/framework/elementwise_slowdown", 130>},
    {"launches", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/framework/seconds_per_launch", 50>},
    {"host time of ops", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/framework/seconds_per_op", 50>},
    {"experts' products", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/framework/expert_product_seconds", 50>},
    {"experts' imbalance", Quantity::seconds, Direction::no_less, kFitted,
     scaled<"/framework/expert_imbalance", 150>},
    {"step's end", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/framework/step_end_bytes", 50>},
    {"gradients added", Quantity::seconds, Direction::no_more, kPicoseconds,
     scaled<"/framework/gradient_add_bytes", 50>},
    {"optimizer's bytes", Quantity::seconds, Direction::no_more, kFitted,
     scaled<"/framework/optimizer_bytes", 50>},
    {"no optimizer", Quantity::seconds, Direction::no_more, 0, turned<"/framework/optimizer_step", false>},
    {"gradients stay", Quantity::seconds, Direction::no_more, 0,
     turned<"/framework/reduce_gradients", false>},
    // What overlaps.
    {"gathers under the forward", Quantity::seconds, Direction::no_more, 0,
     turned<"/framework/overlap_param_gather", true>},
    {"kept K and V", Quantity::seconds, Direction::no_more, kPicoseconds,
     turned<"/framework/keep_gathered_kv", true>},
    // Memory.
    {"kept K and V", Quantity::bytes, Direction::no_less, kExactly,
     turned<"/framework/keep_gathered_kv", true>},
    {"allocator", Quantity::bytes, Direction::no_more, kExactly, scaled<"/framework/allocator_slack", 50>},
    {"optimizer's bytes", Quantity::bytes, Direction::no_more, kExactly,
     scaled<"/framework/optimizer_bytes", 50>},
    {"gradients' copies", Quantity::bytes, Direction::no_more, kExactly,
     scaled<"/framework/gradient_copy_bytes", 50>},
    {"FP8 inputs", Quantity::bytes, Direction::no_more, kExactly, scaled<"/framework/fp8_input_bytes", 50>},
    {"FP8 weights", Quantity::bytes, Direction::no_more, kExactly, scaled<"/framework/fp8_weight_bytes", 50>},
    {"optimizer on the host", Quantity::bytes, Direction::no_more, kExactly,
     [](const json& f) { return with(f, "/parallel/optimizer_offload", 1); }},
    // Recompute and what is trained.
    {"all recomputed", Quantity::seconds, Direction::no_less, 0,
     [](const json& f) {
       const json now = f["parallel"].value("recompute", json("none"));
       return now == "none" ? with(f, "/parallel/recompute", "full") : json();
     }},
    {"all recomputed", Quantity::bytes, Direction::no_more, kExactly,
     [](const json& f) {
       const json now = f["parallel"].value("recompute", json("none"));
       return now == "none" ? with(f, "/parallel/recompute", "full") : json();
     }},
    {"no layer recomputed is none", Quantity::seconds, Direction::same, 0,
     [](const json& f) {
       const json now = f["parallel"].value("recompute", json("none"));
       return now == "none" ? with(f, "/parallel/recompute", {{"layers", 0}}) : json();
     }},
    {"all frozen but the head", Quantity::seconds, Direction::no_more, kPicoseconds,
     [](const json& f) {
       if (f.contains("frozen") || f.contains("lora")) return json();
       return with(f, "/frozen", {"embedding", {{"layers", f["model"]["layers"]}}});
     }},
    {"all frozen but the head", Quantity::bytes, Direction::no_more, kExactly,
     [](const json& f) {
       if (f.contains("frozen") || f.contains("lora")) return json();
       return with(f, "/frozen", {"embedding", {{"layers", f["model"]["layers"]}}});
     }},
    // Order, and scale.
    {"order of ranks in one node", Quantity::seconds, Direction::same, 0,
     [](const json& f) {
       const json in_one = with(f, "/cluster/gpus_per_node", 1024);
       return f["cluster"]["gpus_per_node"] == 1024 ? with(in_one, "/parallel/order", "pp-dp-cp-ep-tp")
                                                    : json();
     }},
    {"fewer layers", Quantity::bytes, Direction::no_more, kExactly,
     [](const json& f) {
       const int layers = f["model"]["layers"].get<int>();
       const bool free = !f.contains("frozen") && !f["parallel"].contains("recompute");
       return free && layers % 4 == 0 ? with(f, "/model/layers", layers / 2) : json();
     }},
};

bool same_plan(const Plan& a, const Plan& b) {
  return std::ranges::equal(a.steps, b.steps, [](const Step& s, const Step& t) {
    return std::ranges::equal(s.lanes, t.lanes, [](const Lane& x, const Lane& y) {
      return x.context == y.context && std::ranges::equal(x.micro_batches, y.micro_batches,
                                                          [](const MicroBatch& p, const MicroBatch& q) {
                                                            return p.slices == q.slices &&
                                                                   p.placement == q.placement &&
                                                                   p.recompute_layers == q.recompute_layers;
                                                          });
    });
  });
}

PolicyResult row_of(const json& file, Fidelity fidelity) {
  RunStudyOptions options;
  options.keep_plans = true;
  options.find_fits = false;
  options.ignore_memory = true;
  options.steps.fidelity = fidelity;
  return run_study(parse(file), options).policies[0];
}

double value_of(Quantity quantity, const PolicyResult& row) {
  if (quantity == Quantity::bytes) return row.peak.parts.total();
  double seconds = 0;
  for (const StepResult& step : row.steps) seconds += to_seconds(step.times.makespan);
  return seconds;
}

// Whether a study that the law speaks of breaks it.
bool breaks(const Law& law, const json& file, Fidelity fidelity, bool& speaks) {
  const json changed = law.to(file);
  if (changed.is_null()) return false;
  PolicyResult before, now;
  try {
    before = row_of(file, fidelity);
    now = row_of(changed, fidelity);
  } catch (const UserError&) {
    return false;
  }
  if (!before.simulated() || !now.simulated() || !same_plan(before.plan, now.plan)) return false;
  speaks = true;
  const double was = value_of(law.quantity, before), is = value_of(law.quantity, now);
  const bool more = is > was * (1 + law.exactness), less = is < was * (1 - law.exactness);
  return law.direction == Direction::no_more   ? more
         : law.direction == Direction::no_less ? less
                                               : more || less;
}

bool fidelities_differ(const json& file) {
  const PolicyResult stage = row_of(file, Fidelity::stage), ops = row_of(file, Fidelity::op);
  if (!stage.simulated() || !ops.simulated()) return stage.status != ops.status;
  return !std::ranges::equal(
      stage.steps, ops.steps, {}, [](const StepResult& s) { return s.times.makespan; },
      [](const StepResult& s) { return s.times.makespan; });
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

}  // namespace

TEST_CASE("Random studies keep every law of the table, at both fidelities" * doctest::test_suite("figures")) {
  const std::uint64_t studies = from_environment("EQUIPOISE_LAW_STUDIES", 200);
  const std::uint64_t seed = from_environment("EQUIPOISE_LAW_SEED", 1);
  std::vector<int> spoke(std::size(kLaws), 0);
  for (std::uint64_t number = 0; number < studies; ++number) {
    const json file = StudyMaker(seed * 1'000'003 + number).make();
    CAPTURE(number);
    if (fidelities_differ(file))
      FAIL_CHECK("the fidelities differ: ", smallest_that(file, fidelities_differ).dump());
    for (std::size_t l = 0; l < std::size(kLaws); ++l) {
      const Law& law = kLaws[l];
      const Fidelity fidelity = (number + l) % 4 == 0 ? Fidelity::op : Fidelity::stage;
      bool speaks = false, ignored = false;
      const bool broken = breaks(law, file, fidelity, speaks);
      spoke[l] += speaks ? 1 : 0;
      if (broken)
        FAIL_CHECK(
            law.change, law.quantity == Quantity::seconds ? ", seconds: " : ", bytes: ",
            smallest_that(file, [&](const json& f) { return breaks(law, f, fidelity, ignored); }).dump());
    }
  }
  for (std::size_t l = 0; l < std::size(kLaws); ++l) {
    CAPTURE(kLaws[l].change);
    if (studies >= 200) CHECK(spoke[l] > 0);
  }
}
