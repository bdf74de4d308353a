// The metrics of a policy's run, with the names of docs/reference/columns.md. A metric that makes no sense
// for the policy is null.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "profiler/profile/profile.h"
#include "sim/metrics/step_figures.h"
#include "sim/step/step_result.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

using Metric = std::optional<double>;

// Watts of a GPU's board by activity; all zero if unknown. `memory` is for kernels that move data,
// `communication` for what compute does not hide, `idle` for all other time of a step.
struct PowerDraw {
  double attention = 0, gemm = 0, memory = 0, communication = 0, idle = 0;
  [[nodiscard]] bool known() const { return idle > 0; }
};

// A profile's `power`; unknown if it has none. Throws UserError, which names file and key.
PowerDraw power_of(const Profile& profile);

// How much faster one run is than another, with a 95 % interval (below).
struct SpeedUp {
  Metric speedup, speedup_low, speedup_high;
};

struct Metrics : PlanMetrics, SpeedUp {  // the speed-up is over the baseline
  Metric step_seconds, tokens_per_second_per_gpu, mfu, bubble_ratio, imbalance_degree, cp_imbalance,
      kv_useful_ratio, peak_memory_bytes;
  // Over all GPUs: slowest / mean, and slowest / fastest (null if the fastest has no work).
  Metric gpu_compute_imbalance, gpu_attention_imbalance, gpu_compute_slowest_over_fastest,
      gpu_attention_slowest_over_fastest;
  Metric gpu_hours_per_billion_tokens;
  Metric dollars_per_billion_tokens;                     // if the study states a price
  Metric joules_per_token, kwh_per_step, watts_per_gpu;  // if the watts of a GPU are known
  std::array<Metric, kStreams> exposed_comm_ratio;       // by Stream; compute is unused
  Metric recompute_ratio;                                // recompute / step time
  // The losses that the blame line names: shares of a step in which each second of a GPU counts once.
  struct Losses {
    Metric waiting;     // for other stages and ranks of its lane, without transfers and recompute
    Metric lanes_wait;  // for the slowest lane
    Metric recompute;   // without its communication, which is in exposed_comm_ratio
  } losses;
  Metric expected_error_low, expected_error_high;  // for step_seconds: measured over predicted, 90 % interval
  double seconds = 0;                // all steps
  double tokens = 0;
  int steps = 0;
  int tail_steps = 0;
  double gpus = 0;  // in the whole run; 0 if unknown
};

struct MetricInputs {
  const ModelShape& model;
  const Layout& layout;
  double peak_flops = 0;  // per GPU at the study's precision
  const Plan& plan;       // its steps are not read
  std::span<const StepFigures> steps;
};

// Everything but memory and the comparison with a baseline (speed_up). Means are over full steps; time and
// tokens are over all.
Metrics metrics_of(const MetricInputs& inputs);

// Fills in the energy of all GPUs' boards: watts times the mean time by kind, which steps have. A step's
// compute outside attention is not kept by kernel, so the share `gemm_share` of it counts as GEMMs, and the
// rest and the optimizer as moving data. Communication under compute draws no more than the compute.
void add_energy(const MetricInputs& inputs, const PowerDraw& watts, double gemm_share, Metrics& metrics);

// --- Speed-ups
//
// How much faster a run is than another, and how much of that may be the sampling error of these documents.
//
// `speedup` is the other's seconds per token over this run's, both over the same documents run to the end.
// Its interval comes from a paired bootstrap. Policies make other numbers of steps of other sizes (pack
// windows, whole-set packers, tails), so steps have no partners. Both runs are therefore cut at the same
// fractions of their tokens into as many blocks as there are global batches, 20 at most, where the time of a
// step is spread evenly over its tokens: block i of both runs holds (about) the documents of the same
// consecutive batches, so that a batch of long documents, slow for both, is drawn for both or for neither.
// Policies that shuffle the whole set have other documents in a block; their interval is only wider for it.
// All blocks together are the whole runs: the ratio of their sums is `speedup` itself, and two equal runs
// have the interval [1, 1] exactly. Block times are whole picoseconds and draws are SplitMix64's: the same
// bits on every machine.

// All are null if one of the runs has no time. `batches` is the number of global batches that the loader
// made; fewer than 4 give no interval.
struct Run {
  const Metrics& metrics;
  std::span<const StepFigures> steps;  // whose steps these are
};
SpeedUp speed_up(const Run& run, const Run& other, std::size_t batches);

// Picoseconds of each of `blocks` parts of a run that hold equally many tokens.
std::vector<Picoseconds> block_times(std::span<const StepFigures> steps, std::size_t blocks);

// --- The columns of a study's result: one table, from which come the printed table and report.html's,
// summary.json's metrics, the columns of its CSV, the keys under which a study states a paper's figures, and
// the page for users (docs/reference/columns.md).
//
// To add a column: its row in metrics.cpp. What it shows is computed by metrics_of, or is one of
// RowFigures.

struct RowFigures {
  const Metrics& metrics;
  double capacity_bytes = 0;  // per GPU; 0 if nothing was planned
  double peak_bytes = 0;      // on the fullest GPU
  double pack_ms = 0;         // measured; 0 if its plan came from elsewhere
  bool memory_tight = false;  // too little room is left for memory that the model does not see
  std::string_view runs_in = "-";

  [[nodiscard]] bool planned() const { return capacity_bytes > 0; }
};

inline constexpr unsigned kWhole = 1;      // an integer in JSON
inline constexpr unsigned kOfPlan = 2;     // known for a plan that nobody simulates
inline constexpr unsigned kFlag = 4;       // true or false in JSON
inline constexpr unsigned kDiffering = 8;  // printed only if rows differ
inline constexpr unsigned kStated = 16;    // printed only if some row has it
inline constexpr unsigned kUnlessYes = 32;  // printed only if some row has another word than yes

// A figure of a row, and how a saved one is read back; that is null if it is no member of Metrics.
struct RowFigure {
  Metric (*get)(const RowFigures&);
  void (*set)(Metrics&, double) = nullptr;

  Metric operator()(const RowFigures& row) const { return get(row); }
};

struct ResultColumn {
  std::string_view title;  // in printed tables; empty if it is in none
  std::string_view key;    // in JSON and CSV, in its own unit; "group.axis" is in an object, in JSON only
  RowFigure value;
  int digits;  // decimals of the printed number
  std::string_view unit;
  std::string_view help;
  unsigned flags = 0;
  double scale = 1;                                  // factor from the value to the printed number
  std::string (*text)(const RowFigures&) = nullptr;  // prints it if that is more than a number

  [[nodiscard]] bool has(unsigned flag) const { return (flags & flag) != 0; }
  [[nodiscard]] bool is_printed() const { return !title.empty(); }
  // Whether it is a single number in summary.json's metrics.
  [[nodiscard]] bool is_metric() const {
    return !key.empty() && key.find('.') == std::string_view::npos && !has(kFlag);
  }
  // The printed figure; "-" if there is none.
  [[nodiscard]] std::string printed(const RowFigures& row) const;
};

// In the order of the printed table, followed by columns that are not printed.
std::span<const ResultColumn> result_columns();

// Metrics by their keys; absent ones are null. The second form has only those that need no simulation.
nlohmann::json metrics_json(const Metrics& metrics);
nlohmann::json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance);
// Reads what metrics_json wrote; absent metrics stay empty. Throws json::exception if one is no number.
Metrics read_metrics(const nlohmann::json& saved);

}  // namespace equipoise
