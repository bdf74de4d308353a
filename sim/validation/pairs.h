// What a comparison of simulated with measured times is made of: plain data, whoever measured it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equipoise {

// One optimizer step of one policy.
struct StepPair {
  std::int64_t step = 0;
  double predicted_seconds = 0;
  std::vector<double> measured_seconds;  // one a repetition that was kept; empty: not measured
  std::int64_t tokens = 0;               // 0: unknown
  double alone_seconds = 0;  // predicted from the profile alone; 0: predicted_seconds is that
};

struct PolicyPairs {
  std::string label;
  std::vector<StepPair> steps;
  int runs = 0;          // measured repetitions, dropped ones included; 0: as many as a step has
  int dropped_runs = 0;  // of them: disturbed by something else on the machine
};

// One op of one rank. -1: of none, or of all.
struct OpPair {
  std::string op;     // kind
  std::string label;  // of the policy
  std::int64_t step = 0;
  int lane = -1;
  int stage = -1;
  int micro_batch = -1;
  int rank = -1;
  double predicted_seconds = 0;
  std::vector<double> measured_seconds;  // repetitions
  double alone_seconds = 0;              // as a step's
};

// Largest errors that pass, as shares of the measured time.
struct ValidationLimits {
  double step = 0.05;
  double op = 0.08;  // of an op kind
};
inline constexpr ValidationLimits kCpuLimits{0.05, 0.08};
inline constexpr ValidationLimits kCudaLimits{0.05, 0.05};

struct Validation {
  std::string study;   // for titles
  std::string device;  // what measured: "cpu", "cuda", a log's form
  std::string profile;
  ValidationLimits limits;
  std::vector<PolicyPairs> policies;
  std::vector<OpPair> ops;
  std::vector<std::string> notes;  // what the reader has to know: which runs were used, what was left out
};

}  // namespace equipoise
