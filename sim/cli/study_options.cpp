#include "sim/cli/study_options.h"

#include "policies/base/error.h"

namespace equipoise {

RunStudyOptions run_options(const StudyOptions& options) {
  RunStudyOptions run = options.run;
  const OpFidelity& op = run.steps.op;
  const bool is_op = run.steps.fidelity == Fidelity::op;
  if (!is_op && (!op.fold_tp || !op.is_plain()))
    throw UserError(
        "--no-fold-tp, --contention, --jitter and --stragglers need --fidelity op, found --fidelity stage");
  if (run.details.chakra && (options.out.empty() || !is_op))
    throw UserError("--chakra needs --out DIR and --fidelity op");
  run.jobs = options.jobs;
  run.keep_plans = !options.out.empty();
  run.record_gpus = run.keep_plans || options.format == Format::json;
  TimelineSelection& drawn = run.details.selection;
  const std::vector<int> usual = is_op ? std::vector<int>{0} : std::vector<int>{};
  drawn.lanes = options.timeline_lanes.value_or(usual);
  drawn.stages = options.timeline_stages.value_or(usual);
  drawn.all_tensor_ranks = !op.fold_tp;
  return run;
}

void check_parts(const RunStudyOptions& run, const Study& study) {
  const auto check = [](const char* option, const std::vector<int>& items, int count) {
    for (const int item : items)
      if (item < 0 || item >= count)
        throw UserError(std::string(option) + ": expected 0 to " + std::to_string(count - 1) + ", found " +
                        std::to_string(item));
  };
  const Layout& layout = study.layout;
  check("--timeline-stages", run.details.selection.stages, layout.pipeline);
  // There may be as many lanes or CP ranks as all DP x CP ranks (hbp).
  check("--timeline-lanes", run.details.selection.lanes, layout.data * layout.context);
  check("--timeline-ranks", run.details.selection.ranks, layout.data * layout.context);
  check_stragglers(run.steps, layout.gpus());
}

}  // namespace equipoise
