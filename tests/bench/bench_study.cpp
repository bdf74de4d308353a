// A step of a study as users run it: distinct batches of real documents, with packing, sharding, memory and
// metrics, on one thread; all in one process, files read outside the timing. `step` is the time of one step
// of one policy. Contended: fat tree, oversubscribed 4:1.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "sim/report/words/words.h"
#include "sim/study/run_study.h"

namespace equipoise {
namespace {

struct How {
  const char* name;
  Fidelity fidelity;
  bool contention;
  int steps;  // distinct ones an iteration
};
constexpr How kHow[] = {{"stage", Fidelity::stage, false, 20},
                        {"op", Fidelity::op, false, 10},
                        {"contended", Fidelity::op, true, 1}};
constexpr const char* kStudies[] = {"7b-128k", "70b-128k", "405b-8k-gpus"};

Study study_of(const std::string& name, const How& how) {
  std::vector<std::string> keys = {"batch.steps=" + std::to_string(how.steps)};
  if (how.contention)
    keys.insert(keys.end(), {"cluster.network.topology=fat-tree", "cluster.network.oversubscription=4"});
  return read_study(EQUIPOISE_SOURCE_DIR "/traces/studies/" + name + ".json", keys);
}

void BM_StudyStep(benchmark::State& state, const std::string& name, std::size_t row, const How& how) {
  Study study = study_of(name, how);
  study.policies = {study.policies.at(row)};
  study.baseline = study.policies.front().label;
  const StudyInputs inputs = load_inputs(study);
  RunStudyOptions options;
  options.steps.fidelity = how.fidelity;
  options.steps.op.contention = how.contention;
  options.ignore_memory = true;
  double pack_ms = 0;
  std::size_t steps = 0;
  for (auto _ : state) {
    const StudyResult result = run_study(study, inputs, options);
    if (!result.policies.front().simulated()) {
      state.SkipWithError(reason_text(result.policies.front().reasons).c_str());
      break;
    }
    pack_ms = result.policies.front().pack_ms;
    steps += result.policies.front().steps.size();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(steps));
  state.counters["step"] = benchmark::Counter(static_cast<double>(steps),
                                              benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["pack_ms"] = pack_ms;
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string study : kStudies)
    for (const How& how : kHow) {
      const std::vector<PolicyRun> rows = study_of(study, how).policies;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::string name = "StudyStep/" + study + "/" + how.name + "/" + rows[row].label;
        benchmark::RegisterBenchmark(name.c_str(), [study, row, &how](benchmark::State& state) {
          BM_StudyStep(state, study, row, how);
        })->Unit(benchmark::kMillisecond);
      }
    }
  return true;
}();

}  // namespace
}  // namespace equipoise
