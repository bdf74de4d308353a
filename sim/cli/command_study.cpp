#include "sim/cli/command_study.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/case_run.h"
#include "sim/cli/measured_step.h"
#include "sim/cli/sweep.h"
#include "sim/report/result_csv.h"
#include "sim/report/seed_spread.h"
#include "sim/report/study_screen.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/words/words.h"
#include "sim/study/read/naming.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

void print_study(const StudyOptions& options, const AskedStudy& asked, const Study& study,
                 const StudyResult& result, std::ostream& out) {
  if (options.format == Format::table && options.wide)
    out << study_table(study, result);
  else if (options.format == Format::table)
    out << study_screen(study, result, {options.out, asked.set, words_of(options.job), screen_width()});
  else if (options.format == Format::json)
    out << summary_json(study, result).dump(2) << '\n';
  else
    out << summary_csv(study, result);
}

std::string interruption(const StudyResult& result) {
  const auto finished = std::ranges::count_if(result.policies, [](const PolicyResult& row) {
    return row.reasons.empty() || row.reasons.front().kind != "interrupted_row";
  });
  return concatenated("interrupted: ", finished, " of ", counted(result.policies.size(), "row"), " finished");
}

int run_one(const StudyCase& c, const StudyOptions& options, const AskedStudy& asked, CaseRunner& runner,
            std::ostream& out, std::ostream& log) {
  const StudyResult result = runner.run(c, options.out);
  print_study(options, asked, c.study, result, out);
  if (!result.incomplete) return runner.verified() ? 0 : 1;
  log << interruption(result) << '\n';
  return kInterrupted;
}

void check_resume(const StudyOptions& options) {
  if (!options.resume && options.shard.empty()) return;
  const char* option = options.resume ? "--resume" : "--shard";
  if (options.sweep.empty() && options.seeds == 0)
    throw UserError(std::string(option) + ": expected a sweep's cases, found no --sweep");
  if (options.out.empty())
    throw UserError(std::string(option) + " needs --out DIR, where finished cases are kept");
}

// Finds the study of the job and says whether it fits; none if no layout does.
std::optional<AskedStudy> asked_job(const StudyOptions& options, const RunStudyOptions& run,
                                    std::ostream& out, std::ostream& log) {
  JobStudy job = study_of_job(options.job, run);
  (options.format == Format::table ? out : log) << text_of(job.fits) << '\n';
  nlohmann::json file = job.file;
  set_study_keys(file, options.set);
  std::vector<std::string> said = options.set;
  said.insert(said.end(), options.sweep.begin(), options.sweep.end());
  log << text_of(assumed_of(options.job, said, file)) << '\n';
  if (job.has_layout) return AskedStudy{std::move(job.file), kJobName, options.set, options.sweep};
  if (options.format == Format::json)
    out << nlohmann::json{{"schema", "equipoise.job/1"}, {"fits", false}, {"note", text_of(job.fits)}}.dump(2)
        << '\n';
  return std::nullopt;
}

// The study's file or the job; none if the job fits on no layout.
std::optional<AskedStudy> asked_study(const StudyOptions& options, const RunStudyOptions& run,
                                      std::ostream& out, std::ostream& log) {
  if (options.job.model.empty() == options.file.empty())
    throw UserError("study: expected a study file, or --model and --gpus, found ",
                    options.file.empty() ? "neither" : "both");
  if (!options.job.policies.empty() && options.job.model.empty())
    throw UserError("--policies: expected --model, whose rows it names; a study file has its own");
  if (!options.job.model.empty()) return asked_job(options, run, out, log);
  return AskedStudy{read_json_file(options.file), options.file, options.set, options.sweep};
}

// --measured-step becomes the study's anchor.
void anchor(const StudyOptions& options, const RunStudyOptions& run, AskedStudy& asked, std::ostream& log) {
  if (options.measured_step.empty()) return;
  Notes notes;
  asked.set.push_back(anchor_assignment(options.measured_step, options.row,
                                        parse_study(file_of(asked.file, asked.set), asked.path), run, notes));
  for (const Note& note : notes) log << "warning: " << printable(text_of(note)) << '\n';
}

// --seeds becomes a sweep of trace.seed, whose cases are printed as one.
void sweep_seeds(int count, AskedStudy& asked) {
  if (count == 0) return;
  for (const std::string& sweep : asked.sweep)
    if (sweep.starts_with(kSeedKey))
      throw UserError("--seeds: expected no --sweep trace.seed, which it sweeps itself, found ",
                      printable(sweep));
  const TraceSource trace = parse_case(file_of(asked.file, asked.set), asked.path).trace;
  if (!trace.is_drawn())
    throw UserError(
        "--seeds: ", asked.path,
        ": trace.shuffle: expected true, or documents that are drawn (trace.distribution), since no "
        "seed changes this trace");
  std::string seeds;
  for (int i = 0; i < count; ++i)
    seeds += (i > 0 ? "," : "") + std::to_string(trace.seed + static_cast<std::uint64_t>(i));
  asked.sweep.push_back(kSeedKey + seeds);
}

}  // namespace

int run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  check_resume(options);
  RunStudyOptions run = run_options(options);
  run.stop = &stop;
  run.keep_finished = true;
  std::optional<AskedStudy> asked = asked_study(options, run, out, log);
  if (!asked) return 0;
  anchor(options, run, *asked, log);
  sweep_seeds(options.seeds, *asked);
  const std::vector<StudyCase> cases = read_cases(*asked, options.max_cases, options.memory);
  for (const StudyCase& c : cases) {
    const auto check = [&] {
      if (c.study.impossible.empty()) check_parts(run, c.study);
    };
    c.name.empty() ? check() : naming(c.name, check);
  }
  CaseRunner runner(options, *asked, std::move(run), options.memory, log);
  if (asked->sweep.empty()) return run_one(cases.front(), options, *asked, runner, out, log);
  if (options.run.tokens_of_job > 0)
    log << "note: " << text_of(no_effect("--tokens", "a single case")) << '\n';
  if (!options.out.empty()) check_folders(cases);
  return Sweep(cases, options, *asked, out).run(runner, log);
}

}  // namespace equipoise
