// Compares estimates with what a run allocates and writes: they are within a factor of two, so that a limit
// means what it says.
#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>

#include "policies/validator.h"
#include "sim/study/check_result.h"
#include "sim/study/estimate.h"
#include "sim/study/run_study.h"
#include "sim/study/study_inputs.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"

namespace {

std::atomic<std::size_t> live{0}, most{0};

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const std::size_t now = live += malloc_usable_size(block);
  std::size_t before = most;
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
  return block;
}

}  // namespace

// Every allocation of this executable is counted.
void* operator new(std::size_t bytes) {
  return counted(std::malloc(bytes));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept {
  live -= malloc_usable_size(block);
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}

using namespace equipoise;
using testing::parse;
using testing::refusal;
using testing::small_study;

namespace {

// The most bytes that `work` holds in addition to what was there before.
template <class Work>
double peak_of(const Work& work) {
  const std::size_t before = live;
  most = before;
  work();
  return static_cast<double>(most - before);
}

void check_near(double estimate, double real) {
  CAPTURE(estimate);
  CAPTURE(real);
  CAPTURE(estimate / real);
  CHECK(estimate >= real / 2);
  CHECK(estimate <= real * 2);
}

nlohmann::json with_policy(nlohmann::json policy) {
  nlohmann::json file = small_study();
  file["baseline"] = policy["name"];
  file["policies"] = nlohmann::json::array({std::move(policy)});
  return file;
}

RunStudyOptions options_of(Fidelity fidelity, bool contention = false) {
  RunStudyOptions options;
  options.steps.fidelity = fidelity;
  options.steps.op.contention = contention;
  options.ignore_memory = true;
  return options;
}

// From the documents to the results of the study.
void check_memory(const nlohmann::json& file, const RunStudyOptions& options) {
  const Study study = parse(file);
  std::optional<StudyInputs> inputs;
  const double peak = peak_of([&] {
    inputs = load_inputs(study);
    CHECK(run_study(study, *inputs, options).policies.front().simulated());
  });
  check_near(estimate(study, inputs->documents, options).memory, peak);
}

}  // namespace

TEST_CASE("The memory of many small micro-batches is estimated within a factor of two") {
  nlohmann::json file = with_policy({{"name", "chunkflow"}, {"chunk_size", 64}, {"shard", "per-document"}});
  file["trace"] = {{"uniform", 4096}};
  file["batch"]["steps"] = 1;
  check_memory(file, options_of(Fidelity::stage));
  check_memory(file, options_of(Fidelity::op));
}

TEST_CASE("The memory of a run with contention is estimated within a factor of two") {
  nlohmann::json file = with_policy({{"name", "plain"}});
  file["parallel"]["data"] = 4;
  // Large enough for tables of fixed size, some MB, to count for little.
  file["batch"] = {{"context_window", 4096}, {"sequences_per_step", 2048}, {"steps", 1}};
  check_memory(file, options_of(Fidelity::op, true));
}

TEST_CASE("The memory of a verified run, which has whole plans, is estimated within a factor of two") {
  nlohmann::json file = with_policy({{"name", "lpt"}});
  file["trace"] = {{"distribution", "wlb-128k"}, {"documents", 3000}, {"repeat", true}};
  file["batch"]["sequences_per_step"] = 256;
  file["batch"]["steps"] = 100;
  const Study study = parse(file);
  RunStudyOptions options = options_of(Fidelity::stage);
  options.verify = true;
  std::optional<StudyInputs> inputs;
  const double peak = peak_of([&] {
    inputs = load_inputs(study);
    CHECK(run_checked(study, *inputs, options).result.policies.front().simulated());
  });
  check_near(estimate(study, inputs->documents, options).memory, peak);
}

TEST_CASE("A step of a long study takes memory for its figures, not for its documents" *
          doctest::skip(is_verified(PackOptions()))) {
  for (const std::string policy : {"plain", "wlb-llm", "lpt"}) {
    CAPTURE(policy);
    nlohmann::json file = with_policy({{"name", policy}});
    file["trace"] = {{"distribution", "wlb-128k"}, {"documents", 3000}, {"repeat", true}};
    file["batch"]["sequences_per_step"] = 64;
    std::int64_t documents = 0;
    const auto peak_with = [&](int steps) {
      file["batch"]["steps"] = steps;
      const Study study = parse(file);
      return peak_of([&] {
        const StudyInputs inputs = load_inputs(study);
        documents = inputs.documents.documents / steps;
        CHECK(run_study(study, inputs, options_of(Fidelity::stage)).policies.front().simulated());
      });
    };
    const double few = peak_with(300), many = peak_with(900);
    // A vector of figures that grows has up to three times their size for a moment.
    CHECK((many - few) / 600 < 3 * sizeof(StepFigures) + 200);
    CHECK(static_cast<double>(documents) * sizeof(Slice) > 3 * sizeof(StepFigures) + 200);
  }
}

TEST_CASE("Slices that are carried from step to step count in the size of a plan") {
  // 4 bins of 16 tokens place 64 of the 512 tokens of a step: 8 times as many steps list the rest.
  nlohmann::json file = with_policy({{"name", "wlb"}, {"max_tokens", 16}, {"oversize", "split"}});
  file["batch"] = {{"context_window", 128}, {"sequences_per_step", 4}, {"steps", 64}};
  file["trace"] = {{"uniform", 128}};
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  const PlanSize size = plan_size(study.policies.front(), inputs.documents);
  CHECK(size.steps == 8 * 64);
  CHECK(size.micro_batches == 8 * 64 * 4);
  CHECK(size.slices == 64 * 512 / 16);
  CHECK(size.carried == doctest::Approx(size.steps * size.slices * 7 / 8 / 2));
}

TEST_CASE("What --out gets is estimated within a factor of two") {
  for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
    const test::Scratch folder;
    nlohmann::json file = with_policy({{"name", "plain"}});
    file["batch"]["sequences_per_step"] = 32;
    const Study study = parse(file);
    const StudyInputs inputs = load_inputs(study);
    RunStudyOptions options = options_of(fidelity);
    options.keep_plans = true;
    options.details.directory = folder.folder().string();
    options.details.steps = 2;
    const double estimated = estimate(study, inputs.documents, options).output;
    (void)run_study(study, inputs, options);
    double written = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.folder() / "timeline"))
      written += static_cast<double>(entry.file_size());
    check_near(estimated, written);
  }
}

TEST_CASE("Rows run in turn where two of them would not fit") {
  nlohmann::json file = with_policy({{"name", "plain"}});
  file["batch"] = {{"context_window", 4096}, {"sequences_per_step", 2048}, {"steps", 4}};
  file["policies"] = {"plain", "wlb"};
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  RunStudyOptions options;
  options.jobs = 2;
  const auto fits = [&](double bytes) {
    try {
      check_estimate(study, inputs.documents, options, {bytes, "a test"});
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  double least = 1e6;  // with which the study runs
  while (!fits(least)) least *= 1.05;
  CHECK(options.rows_in_turn);
  CHECK(rows_at_a_time(study, options) == 1);
  CHECK(fits(2 * least));
  CHECK(!options.rows_in_turn);
  CHECK(rows_at_a_time(study, options) == 2);
}

TEST_CASE("What is over a limit is refused with the estimate and what raises it") {
  nlohmann::json file = with_policy({{"name", "chunkflow"}, {"chunk_size", 1}});
  file["batch"]["steps"] = 1000;
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  const auto refused = [&](double gigabytes) -> std::string {
    RunStudyOptions options;
    options.keep_plans = true;
    try {
      check_estimate(study, inputs.documents, options, memory_limit(gigabytes));
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  // 1000 x 4 x 32K micro-batches of one token, about 200 bytes each.
  CHECK(refused(2).find("study.json: the plans of its rows: needs about ") == 0);
  CHECK(refused(2).find("the limit is 2 GB (--max-memory-GB)") != std::string::npos);
  CHECK(refused(1000) == "");
  CHECK_THROWS_AS(memory_limit(-1), UserError);
  CHECK(default_memory_limit().bytes > 1e8);
}
