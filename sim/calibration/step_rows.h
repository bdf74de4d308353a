// Measured training steps, in the columns of the public table of published runs, as studies to simulate.
//
// A row says what ran: GPU, model, layout, batch, precision and the seconds of a step. It becomes a study of
// documents of one length, as benchmarks train; what the row does not say is the framework preset's. An empty
// `act_recompute` means the cheaper of none and full that fits in memory; where it is given, the run existed
// and its time is asked, not whether it fits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/csv.h"
#include "sim/study/read/study.h"
#include "sim/study/run_study.h"

namespace equipoise {

// How much slower kernels run than alone: GEMM, attention, elementwise.
using Slowdowns = std::array<double, 3>;

// Of the experts' products: how much slower than other GEMMs, and what each takes beside that.
struct ExpertTimes {
  double gemm_slowdown = 1;
  double product_seconds = 0;
};

struct StepTables {
  std::string rows;     // files
  std::string models;   // empty: model_id names built-in models
  std::string preset;   // name or file of a framework preset
  std::string profile;  // of every row; empty: by the row's gpu (H100 or H200)
};

// Seconds of a predicted step, and what of them a GPU does not compute for the first time: waits for other stages,
// ranks and lanes; what of communication nothing hides (dp: gradients and parameters); repeated forwards.
struct StepParts {
  double step = 0, waits = 0, tp = 0, cp = 0, ep = 0, pp = 0, dp = 0, recompute = 0;
};

// One row, ready to be simulated at any slowdowns.
struct StepRow {
  std::string id;
  std::string group;
  std::string benchmark;  // the group without its version and precision: such rows differ little
  std::string precision;
  std::string recompute;  // stated, or the cheapest that fits
  double published = 0;   // seconds
  Study study;
  StudyInputs inputs;

  // `experts`: of their products; `seconds_per_launch`: of the host. The preset's where they are not given.
  [[nodiscard]] double seconds(const Slowdowns& slowdowns, std::optional<ExpertTimes> experts = std::nullopt,
                               std::optional<double> seconds_per_launch = std::nullopt) const;
  [[nodiscard]] double seconds_as_preset() const { return parts_as_preset().step; }
  [[nodiscard]] StepParts parts_as_preset() const;  // with the preset's own slowdowns
};

struct StepRows {
  std::vector<StepRow> rows;
  struct LeftOut {
    std::string id, why;
  };
  std::vector<LeftOut> left_out;
};

// Columns needed: gpu, model_id, seq_len, tp, cp, pp, dp, mbs, gbs_seqs, step_time_s. Known beside them:
// row_id, group, n_gpus, layers_run, vp, precision, act_recompute, notes, attention_impl,
// optimizer_state_dtype, tp_overlap, gradient_bytes. Throws UserError where a file is unreadable or lacks a
// column; a row that cannot be simulated is left out with its reason. Independent of `jobs`.
StepRows read_step_rows(const StepTables& tables, int jobs);

// "dgxc_llama3.1-8b_bf16_v25.04.02" -> "dgxc_llama3.1-8b".
std::string benchmark_of(const std::string& group);

// --- Fits the three slowdowns of a framework (GEMM, attention, elementwise) to measured steps, and says how
// wrong they are on benchmarks that the fit did not see.
//
// Problem: few rows, groups of which differ little, one of which may be misprinted; each prediction is a
// simulation. Idea: minimise, over ln s within [ln 1, ln 3],
//
//   sum over rows of 2 R^2 (sqrt(1 + (e / R)^2) - 1)  +  sum over k of (R ln s_k / P)^2,   e = ln(predicted /
//   published)
//
// with R = 0.08 (beyond 8 % a row counts linearly, so that one misprint does not bend the rest) and P = 0.5
// (a weak prior on "no slowdown" where the rows do not say). Kernels in training are not faster than alone:
// hence the bound at 1. A row's seconds are close to linear in the slowdowns and do not depend on which rows
// are fitted: they are simulated once at the corners of the lattice boxes that the search visits and
// interpolated between them, first on a coarse lattice from several starts, then on a fine one around the
// best of these (by profiler/fit/least_squares.h). Fewer than four benchmarks cannot tell three numbers
// apart: one number is fitted for all three kinds.
//
// Cost: a few dozen simulations of each row, shared by the fits that leave one benchmark out.

inline constexpr double kLeastSlowdown = 1, kMostSlowdown = 3;
inline constexpr double kRobustScale = 0.08;    // of a logarithm
inline constexpr double kPriorDeviation = 0.5;  // of a slowdown's logarithm
inline constexpr std::size_t kLeastBenchmarks = 4;

// A measured step and what predicts it.
struct StepSample {
  std::string benchmark;
  double published = 0;
  std::function<double(const Slowdowns&)> seconds;
};

struct BenchmarkError {
  std::string benchmark;
  std::size_t rows = 0;
  double mean_abs = 0, mean = 0, worst = 0;  // of predicted / published - 1, signed but for the first
  Slowdowns slowdowns{};                     // fitted without it
};

struct SlowdownFit {
  Slowdowns slowdowns{1, 1, 1};  // to all rows
  int numbers = 3;               // fitted: 3, or 1 for all kinds
  double cost = 0;
  std::vector<double> errors;            // of the rows, with `slowdowns`: in sample
  std::vector<BenchmarkError> left_out;  // each predicted by a fit without it; empty with one benchmark
  std::vector<double> left_out_errors;   // of the rows
};

// Independent of `jobs`, the threads that simulate rows.
SlowdownFit fit_slowdowns(std::span<const StepSample> samples, int jobs);

}  // namespace equipoise
