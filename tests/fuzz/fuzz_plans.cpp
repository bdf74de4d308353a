// Plans made elsewhere: damaged files, and sound files whose values and lists were changed, read, checked
// against a study and simulated.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "policies/base/random.h"
#include "sim/report/plan_json.h"
#include "sim/report/words/words.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/run_study.h"
#include "tests/fuzz/law.h"
#include "tests/scratch_folder.h"
#include "traces/json_text.h"

using namespace equipoise;
using nlohmann::json;

namespace {

// A small study, the plans of policies that differ in what a plan can say, and a row that runs any text.
class PlanSubject {
 public:
  PlanSubject() {
    const json file = json::parse(R"({"trace": {"uniform": 512}, "model": "wlb-550m",
        "parallel": {"data": 2, "context": 2, "pipeline": 2, "recompute": {"layers": 3}},
        "batch": {"context_window": 1024, "sequences_per_step": 4, "steps": 2},
        "policies": ["plain", {"name": "chunkflow", "chunk_size": 256}, {"name": "hybrid-cp", "tokens_per_rank": 256},
                     {"name": "hbp", "groups": "1K:2", "recompute": "auto"}, {"name": "ffd", "pack_length": 768},
                     {"name": "round-robin", "bucket_size": 1024}]})");
    const Study made = parse_study(file, folder_.path("study.json"));
    inputs_ = std::make_unique<StudyInputs>(load_inputs(made));
    recomputed_ = std::make_unique<RecomputedLayers>(made.model, made.layout);
    options_.find_fits = false;
    options_.keep_plans = true;
    for (const PolicyResult& row : run_study(made, *inputs_, options_).policies) {
      REQUIRE(row.status == RowStatus::ok);
      seeds_.push_back(plan_json(row.plan, json::object(), recomputed_.get()).dump());
    }
    folder_.write("plan.json", seeds_.front());
    json of_file = file;
    of_file["policies"] = {{{"name", "plan"}, {"file", "plan.json"}}};
    study_ = parse_study(of_file, folder_.path("study.json"));
  }

  [[nodiscard]] const std::vector<std::string>& seeds() const { return seeds_; }

  // Throws UserError where the file or the row is refused.
  void run(const std::string& text, Fidelity fidelity = Fidelity::stage) {
    inputs_->plans["plan"] =
        std::make_shared<const Plan>(read_plan(parse_json(text, "plan.json"), "plan.json", "", *recomputed_));
    options_.steps.fidelity = fidelity;
    const StudyResult result = run_study(study_, *inputs_, options_);
    if (result.policies[0].status != RowStatus::ok) throw UserError(reason_text(result.policies[0].reasons));
  }

 private:
  test::Scratch folder_;
  Study study_;
  std::unique_ptr<StudyInputs> inputs_;
  std::unique_ptr<RecomputedLayers> recomputed_;
  RunStudyOptions options_;
  std::vector<std::string> seeds_;
};

// Changes one value or one list: another number that may well be right, an item moved, doubled or gone.
class Changer {
 public:
  explicit Changer(std::uint64_t seed) : random_(seed) {}

  void change(json& plan) {
    std::vector<json*> nodes;
    collect(plan, nodes);
    json& node = *nodes[below(nodes.size())];
    if (node.is_array() && !node.empty())
      change_list(node);
    else if (node.is_object() && !node.empty())
      node.erase(std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size()))));
    else if (node.is_boolean())
      node = !node.get<bool>();
    else if (node.is_number_integer())
      node = number(node.get<std::int64_t>());
  }

 private:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_.next() % count); }

  static void collect(json& node, std::vector<json*>& nodes) {
    nodes.push_back(&node);
    if (node.is_structured())
      for (json& child : node) collect(child, nodes);
  }

  std::int64_t number(std::int64_t now) {
    constexpr std::int64_t kSmall[] = {-1, 0, 1, 2, 3, 4, 128, 256, 512, 1024};
    switch (below(3)) {
      case 0:
        return now + 1;
      case 1:
        return now - 1;
      default:
        return kSmall[below(std::size(kSmall))];
    }
  }

  void change_list(json& list) {
    const auto place = [&] { return list.begin() + static_cast<std::ptrdiff_t>(below(list.size())); };
    switch (below(3)) {
      case 0:
        list.erase(place());
        break;
      case 1: {
        const json copy = *place();
        list.insert(place(), copy);
        break;
      }
      default:
        std::iter_swap(place(), place());
    }
  }

  SplitMix64 random_;
};

}  // namespace

TEST_CASE("Plans are read, checked and simulated, or refused") {
  PlanSubject subject;
  test::check_reader("plan", subject.seeds(), [&](const std::string& text) { subject.run(text); });
}

TEST_CASE("Plans whose values and lists were changed run at both fidelities, or are refused") {
  if (test::fuzzing()) return;
  PlanSubject subject;
  Changer changer(7);
  int good = 0, refused = 0;
  for (int i = 0; i < test::kMutants; ++i) {
    json plan = json::parse(subject.seeds()[static_cast<std::size_t>(i) % subject.seeds().size()]);
    for (int changes = 0; changes <= i % 3; ++changes) changer.change(plan);
    const std::string text = plan.dump();
    CAPTURE(text);
    try {
      subject.run(text);
      ++good;
      CHECK_NOTHROW(subject.run(text, Fidelity::op));
    } catch (const UserError& e) {
      ++refused;
      CHECK(std::string_view(e.what()).find('\n') == std::string_view::npos);
    } catch (const std::exception& e) {
      FAIL_CHECK("internal fault: ", e.what());
    }
  }
  CHECK(good > test::kMutants / 20);
  CHECK(refused > test::kMutants / 20);
}
