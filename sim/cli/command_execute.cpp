#include "sim/cli/command_execute.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/execution/launch.h"
#include "sim/study/study_inputs.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/execution_report.h"
#include "sim/validation/real_run.h"

namespace equipoise {
namespace {

execution::LossNormalizer parse_normalizer(const std::string& text) {
  return static_cast<execution::LossNormalizer>(
      choice_of(text, "--loss-normalizer", execution::kLossNormalizerNames));
}

ExecutionReport execution_of(const Study& study, const ExecuteOptions& options, int ranks,
                             const std::vector<RealRow>& rows, std::vector<RealResult> results) {
  ExecutionReport report;
  report.study = study.name;
  report.device = options.device;
  report.normalizer = options.normalizer;
  report.replay = options.replay;
  report.ranks = std::to_string(ranks) + (options.replay ? " ranks, one after the other"
                                          : ranks == 1   ? " rank"
                                                         : " ranks, processes");
  const double nominal =
      static_cast<double>(study.batch.context_window) * static_cast<double>(study.batch.sequences_per_step);
  for (std::size_t i = 0; i < results.size(); ++i) {
    ExecutionRow row{std::move(results[i]), {}};
    if (options.replay) compose_steps(rows[i], row.result);
    if (!row.result.losses.empty())
      row.biases = execution::loss_biases(rows[i].steps.front().step, row.result.losses, nominal);
    report.rows.push_back(std::move(row));
  }
  return report;
}

void print_execution(const ExecutionReport& report, const ExecuteOptions& options, std::ostream& out) {
  const std::string document = execution_json(report).dump(1) + "\n";
  if (!options.out.empty()) {
    StagedFolder folder(options.out, "--out");
    write_file_atomically((folder.path() / "execution.json").string(), document);
    folder.commit();
  }
  out << (options.format == Format::json ? document : execution_text(report));
}

}  // namespace

int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log) {
  Study study = study_of_ranks(options, "execute", log);
  use_own_ranks(study);
  const auto ranks = static_cast<int>(study.layout.gpus());
  execution::HealthLimits limits;
  limits.same_op_seconds = options.op_timeout_seconds;
  RealRowOptions row_options{options.policy, options.steps, parse_normalizer(options.normalizer)};
  if (!options.dump.empty() && row_options.normalizer != execution::LossNormalizer::token)
    throw UserError("--dump: gradients of the token mean are written; omit --loss-normalizer " +
                    options.normalizer);
  require_folder(options.dump, "--dump");
  check_real_run(study, options, true);
  const StudyInputs inputs = load_inputs(study);
  check_real_rows(study, inputs, options.policy);
  if (needs_launcher(ranks, options.replay)) return execution::run_ranks(ranks, arguments, limits);

  int status = 0;
  on_ranks(ranks, options.device, options.replay, limits, [&](const RealRank& rank) {
    const bool leads = rank.floats.rank() == 0;
    const std::vector<RealRow> rows = real_rows(study, inputs, row_options, rank.floats);
    RealRunOptions run;
    run.repetitions = options.repetitions;
    run.seed = options.seed;
    run.threads = all_cores();
    run.dump = options.dump;
    if (leads && !options.quiet) run.progress = [&](const std::string& what) { log << what << std::endl; };
    std::vector<RealResult> results = run_real(study, rows, rank, run);
    if (!leads) return;
    const ExecutionReport report = execution_of(study, options, ranks, rows, std::move(results));
    print_execution(report, options, out);
    status = report.all_equivalent() ? 0 : 1;
  });
  return status;
}

}  // namespace equipoise
