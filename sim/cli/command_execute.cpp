#include "sim/cli/command_execute.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/base/staged_folder.h"
#include "sim/cli/commands.h"
#include "sim/execution/launch.h"
#include "sim/validation/compose.h"
#include "sim/validation/execution_report.h"
#include "sim/validation/real_ranks.h"

namespace equipoise {
namespace {

execution::LossNormalizer parse_normalizer(const std::string& text) {
  return static_cast<execution::LossNormalizer>(
      choice_of(text, "--loss-normalizer", execution::kLossNormalizerNames));
}

ExecutionReport report_of(const Study& study, const ExecuteOptions& options, int ranks,
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

void print(const ExecutionReport& report, const ExecuteOptions& options, std::ostream& out) {
  const std::string json = execution_json(report).dump(1) + "\n";
  if (!options.out.empty()) {
    StagedFolder folder(options.out, "--out");
    write_file_atomically((folder.path() / "execution.json").string(), json);
    folder.commit();
  }
  out << (parse_format(options.format) == Format::json ? json : execution_text(report));
}

}  // namespace

int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log) {
  if (parse_format(options.format) == Format::csv)
    throw UserError("execute: --format csv; allowed: table, json");
  Study study = read_study(options.file, options.set);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  use_own_ranks(study);
  const auto ranks = static_cast<int>(study.layout.gpus());
  execution::HealthLimits limits;
  limits.same_op_seconds = options.op_timeout_seconds;
  RealRowOptions row_options{options.policy, options.steps, parse_normalizer(options.normalizer)};
  if (!options.dump.empty() && row_options.normalizer != execution::LossNormalizer::token)
    throw UserError("--dump: gradients of the token mean are written; leave out --loss-normalizer " +
                    options.normalizer);
  if (needs_launcher(ranks, options.replay)) return execution::run_ranks(ranks, arguments, limits);

  int status = 0;
  const StudyInputs inputs = load_inputs(study);
  on_ranks(ranks, options.device, options.replay, limits, [&](const RealRank& rank) {
    const bool leads = rank.floats.rank() == 0;
    const std::vector<RealRow> rows = real_rows(study, inputs, row_options, rank.floats);
    RealRunOptions run;
    run.repetitions = options.repetitions;
    run.seed = options.seed;
    run.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    run.dump = options.dump;
    if (leads && !options.quiet) run.progress = [&](const std::string& what) { log << what << std::endl; };
    std::vector<RealResult> results = run_real(study, rows, rank, run);
    if (!leads) return;
    const ExecutionReport report = report_of(study, options, ranks, rows, std::move(results));
    print(report, options, out);
    status = report.all_equivalent() ? 0 : 1;
  });
  return status;
}

}  // namespace equipoise
