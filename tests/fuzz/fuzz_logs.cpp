// Logs that somebody else measured, by form, and their comparison with a simulation.
#include <nlohmann/json.hpp>

#include "sim/validation/compare_log.h"
#include "sim/validation/figures.h"
#include "sim/validation/measured_log.h"
#include "sim/validation/validation_report.h"
#include "tests/fuzz/law.h"
#include "traces/formats/bytes.h"

using namespace equipoise;

namespace {

const std::string kCsv =
    "policy,step,tokens,step_seconds,op,seconds\nplain,0,100,1.5,,\nplain,1,100,1.25,gemm,0.5\nplain,1,,,"
    "rope,0.1\n";
const std::string kMegatron =
    " [2025-03-01 10:00:00] iteration       10/     100 | elapsed time per iteration (ms): 1234.5 | lr: "
    "3.0E-05 |\n"
    " [2025-03-01 10:01:00] iteration       20/     100 | elapsed time per iteration (ms): 1034.5 | lr: "
    "3.0E-05 |\n"
    " [2025-03-01 10:02:00] iteration       30/     100 | elapsed time per iteration (ms): 1054.5 | lr: "
    "3.0E-05 |\n";
const std::string kTrace = R"({"traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 100, "dur": 50},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#1", "ts": 120, "dur": 50},
  {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "ts": 130, "dur": 10},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather", "ts": 131, "dur": 7}]})";

// `seconds` of a step: those of the log, as a factor of 50 between them asks for the unit.
std::vector<SimulatedPolicy> simulated(double seconds) {
  SimulatedPolicy policy;
  policy.label = "plain";
  for (int i = 0; i < 40; ++i)
    policy.steps.push_back(
        {seconds, 100, {{OpName::attention, 0.25 * seconds}, {OpName::qkv_gemm, 0.5 * seconds}}});
  return {policy};
}

void check_log(const std::string& name, const std::vector<std::string>& seeds, double seconds = 1) {
  const std::vector<SimulatedPolicy> policies = simulated(seconds);
  test::check_reader(name, seeds, [&](const std::string& text) {
    const Validation validation = compare_with_log(parse_measured_log(text, "log"), policies, {});
    const ValidationFigures figures = figures_of(validation);
    (void)validation_json(validation, figures).dump();  // throws for what is no UTF-8
    (void)validation_text(validation, figures);
    (void)validation_html(validation, figures);
  });
}

}  // namespace

TEST_CASE("Measured tables are read and compared, or refused") {
  check_log("log-csv", {kCsv});
}
TEST_CASE("Megatron-LM logs are read and compared, or refused") {
  check_log("log-megatron", {kMegatron});
}
TEST_CASE("Traces of torch.profiler are read and compared, or refused") {
  check_log("log-torch", {kTrace}, 5e-5);
}
