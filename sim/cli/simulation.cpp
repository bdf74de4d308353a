#include "sim/cli/simulation.h"

#include <cmath>

#include "policies/base/error.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/estimate.h"

namespace equipoise {

Study possible_study(const std::string& file, const std::vector<std::string>& set) {
  Study study = read_study(file, set);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  return study;
}

StudyResult run_within(const SimulationOptions& options, const Study& study, const std::atomic<bool>& stop,
                       bool keep_plans) {
  RunStudyOptions run;
  run.keep_plans = keep_plans;
  run.details.steps = 0;
  run.jobs = options.jobs;
  run.stop = &stop;
  const StudyInputs inputs = load_inputs(study);
  check_estimate(study, inputs.documents, run, options.memory);
  return run_study(study, inputs, run);
}

}  // namespace equipoise
