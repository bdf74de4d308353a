// Measured training steps, in the columns of the public table of published runs, as studies to simulate.
//
// A row says what ran: GPU, model, layout, batch, precision and the seconds of a step. It becomes a study of
// documents of one length, as benchmarks train; what the row does not say is the framework preset's. An empty
// `act_recompute` means the cheaper of none and full that fits in memory; where it is given, the run existed
// and its time is asked, not whether it fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/calibration/slowdown_fit.h"
#include "sim/study/read/study.h"
#include "sim/study/run_study.h"

namespace equipoise {

// How much slower the experts' products are than other GEMMs, and what each takes in addition.
struct ExpertTimes {
  double gemm_slowdown = 1;
  double product_seconds = 0;
};

struct StepTables {
  std::string rows;     // files
  std::string models;   // if empty, model_id names built-in models
  std::string preset;   // name or file of a framework preset
  std::string profile;  // for every row; if empty, by the row's gpu (H100 or H200)
};

// Seconds of a predicted step, and what of them a GPU does not compute for the first time: waits for other
// stages, ranks and lanes; what of communication nothing hides (dp: gradients and parameters); repeated
// forwards. And bytes of the fullest GPU: what an allocator counts, without the profile's reserve, and
// whether that fits with it.
struct StepParts {
  double step = 0, waits = 0, tp = 0, cp = 0, ep = 0, pp = 0, dp = 0, recompute = 0;
  double allocated_bytes = 0;
  bool fits = true;
};

// One row, ready to be simulated at any slowdowns.
struct StepRow {
  std::string id;
  std::string group;
  std::string benchmark;  // the group without its version and precision; such rows differ little
  std::string precision;
  std::string recompute;  // as stated, or the cheapest that fits
  double published = 0;   // seconds
  Study study;
  StudyInputs inputs;

  // `experts` has the times of their products, `seconds_per_launch` the host's; the preset has the rest.
  [[nodiscard]] double seconds(const Slowdowns& slowdowns, std::optional<ExpertTimes> experts = std::nullopt,
                               std::optional<double> seconds_per_launch = std::nullopt) const;
  [[nodiscard]] double seconds_as_preset() const { return parts_as_preset().step; }
  [[nodiscard]] StepParts parts_as_preset() const;  // with the preset's own slowdowns
};

struct StepRows {
  std::vector<StepRow> rows;
  struct Excluded {
    std::string id, why;
  };
  std::vector<Excluded> excluded;
};

// Columns needed: gpu, model_id, seq_len, tp, cp, pp, dp, mbs, gbs_seqs, step_time_s. Also known:
// row_id, group, n_gpus, layers_run, vp, precision, act_recompute, notes, attention_impl,
// optimizer_state_dtype, tp_overlap, gradient_bytes. Throws UserError where a file is unreadable or lacks a
// column; a row that cannot be simulated is excluded with its reason. Independent of `jobs`.
StepRows read_step_rows(const StepTables& tables, int jobs);

// "dgxc_llama3.1-8b_bf16_v25.04.02" -> "dgxc_llama3.1-8b".
std::string benchmark_of(const std::string& group);

}  // namespace equipoise
