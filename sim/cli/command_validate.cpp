#include "sim/cli/command_validate.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/backend.h"
#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/staged_folder.h"
#include "sim/cli/commands.h"
#include "sim/cli/own_profile.h"
#include "sim/cli/report_pages.h"
#include "sim/execution/launch.h"
#include "sim/study/row/details.h"
#include "sim/validation/calibrate.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/compose.h"
#include "sim/validation/figures.h"
#include "sim/validation/real_ranks.h"
#include "sim/validation/simulate_log.h"
#include "sim/validation/validation_report.h"

namespace equipoise {
namespace {

int threads() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// Prints the comparison and writes its files; `timelines` writes those that need the run itself.
int conclude(const Validation& validation, const ValidateOptions& options, std::ostream& out,
             const std::function<void(const std::filesystem::path&)>& timelines) {
  const ValidationFigures figures = figures_of(validation);
  const std::string json = validation_json(validation, figures).dump(1) + "\n";
  const std::string text = validation_text(validation, figures);
  if (!options.out.empty()) {
    StagedFolder folder(options.out, "--out");
    write_file_atomically((folder.path() / "validation.json").string(), json);
    write_file_atomically((folder.path() / "validation.txt").string(), text);
    write_file_atomically((folder.path() / "validation.svg").string(), validation_plot(validation, figures));
    write_file_atomically((folder.path() / "report.html").string(), validation_html(validation, figures));
    timelines(folder.path());
    folder.commit();
  }
  out << (parse_format(options.format) == Format::json ? json : text);
  return figures.passed() ? 0 : 1;
}

int validate_log(const Study& study, const ValidateOptions& options, std::ostream& out) {
  const MeasuredLog log = read_measured_log(options.measured);
  RunStudyOptions run;
  run.jobs = threads();
  const SimulatedForLog simulated = simulate_for_log(study, load_inputs(study), run, !log.ops.empty());
  Validation validation = compare_with_log(log, simulated.policies, kCudaLimits);
  validation.study = study.name;
  validation.profile = study.cluster.profile;
  validation.notes.insert(validation.notes.end(), simulated.notes.begin(), simulated.notes.end());
  return conclude(validation, options, out, [](const std::filesystem::path&) {});
}

// What the profile was not measured on is said, not hidden.
std::string profile_note(const Profile& profile, const kernels::Backend& backend) {
  if (covers(profile, backend)) return {};
  return "the profile was measured on " + profile.device().name + ", the ranks run on " +
         backend.describe().name + ": `equipoise profile --device " + std::string(backend.name()) +
         "` and `equipoise fit` make one of this device";
}

// Of the profile that is measured here, removed with all that is in it.
class ProfileFolder {
 public:
  ProfileFolder()
      : path_(std::filesystem::temp_directory_path() / ("equipoise-profile-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ProfileFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ProfileFolder(const ProfileFolder&) = delete;
  ProfileFolder& operator=(const ProfileFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The same run with a profile of this device, which is kept beside its results.
int validate_with_own_profile(const ValidateOptions& options, std::vector<std::string> arguments, int ranks,
                              std::ostream& out, std::ostream& log) {
  const ProfileFolder folder;
  const std::string profile = profile_here(options.device, options.minutes, ranks, folder.path(), log);
  ValidateOptions again = options;
  again.minutes = 0;
  again.set.push_back("cluster.profile=" + profile);
  arguments.insert(arguments.end(), {"--minutes", "0", "--set", again.set.back()});
  const int status = run_validate_command(again, arguments, out, log);
  if (status <= 1 && !options.out.empty())  // else the ranks failed, or were interrupted
    std::filesystem::copy_file(profile, std::filesystem::path(options.out) / "profile.json",
                               std::filesystem::copy_options::overwrite_existing);
  return status;
}

}  // namespace

int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log) {
  if (parse_format(options.format) == Format::csv)
    throw UserError("validate: --format csv; allowed: table, json");
  Study study = read_study(options.file, options.set);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  if (!options.measured.empty()) return validate_log(study, options, out);
  use_own_ranks(study);
  const auto ranks = static_cast<int>(study.layout.gpus());
  execution::HealthLimits limits;
  limits.same_op_seconds = options.op_timeout_seconds;
  if (options.minutes > 0 && !execution::under_launcher())
    if (const auto backend = backend_of(options.device);
        backend && !covers(Profile::load(study.cluster.profile), *backend))
      return validate_with_own_profile(options, arguments, ranks, out, log);
  if (needs_launcher(ranks, options.replay)) return execution::run_ranks(ranks, arguments, limits);

  int status = 0;
  const StudyInputs inputs = load_inputs(study);
  on_ranks(ranks, options.device, options.replay, limits, [&](const RealRank& rank) {
    const bool leads = rank.floats.rank() == 0;
    const std::vector<RealRow> rows = real_rows(
        study, inputs, {options.policy, options.steps, execution::LossNormalizer::token}, rank.floats);
    CalibrationOptions calibrating;
    calibrating.policy = options.policy;
    calibrating.steps = options.calibration_steps;
    calibrating.replay = options.replay;
    calibrating.seed = options.seed;
    if (leads && !options.quiet)
      calibrating.progress = [&](const std::string& what) { log << what << std::endl; };
    Calibration calibration(
        [&](std::int64_t window) {
          std::vector<std::string> set = options.set;
          set.push_back(std::string("batch.context_window=").append(std::to_string(window)));
          return read_study(options.file, set);
        },
        study.batch.context_window, inputs.trace, rank, calibrating);
    RealRunOptions run;
    run.check = false;
    run.warm_up = true;
    run.repetitions = 1;
    run.seed = options.seed;
    std::vector<RealResult> results;
    // In turn, so that a machine that gets slower or busier does so in both.
    for (int round = 1; round <= options.repetitions; ++round) {
      calibration.run_round();
      append_rounds(results, run_real(study, rows, rank, run));
      if (leads && !options.quiet) log << "round " << round << std::endl;
    }
    if (!leads) return;
    Validation validation;
    validation.study = study.name;
    validation.device = options.device;
    validation.profile = study.cluster.profile;
    validation.limits = options.device == "cpu" ? kCpuLimits : kCudaLimits;
    if (options.replay) {
      for (std::size_t i = 0; i < rows.size(); ++i) compose_steps(rows[i], results[i]);
      validation.notes.emplace_back(
          "replay: ranks ran one after the other, a measured step is composed of their kernels by the "
          "schedule; "
          "collectives and transfers are the profile's");
    }
    if (const std::string note = profile_note(inputs.profile, rank.backend); !note.empty())
      validation.notes.push_back(note);
    const InStepTimes in_step = calibration.times();
    const InStepTimes* times = in_step.empty() ? nullptr : &in_step;
    for (const std::string& note : calibration.notes()) validation.notes.push_back(note);
    compare_real(rows, results, times, validation);
    if (options.replay) keep_kernels(validation);
    status = conclude(validation, options, out, [&](const std::filesystem::path& folder) {
      std::filesystem::create_directories(folder / "timeline");
      for (std::size_t i = 0; i < rows.size(); ++i)
        write_real_timeline((folder / "timeline" / (file_name(rows[i].label) + ".pftrace")).string(), rows[i],
                            results[i], times);
    });
  });
  return status;
}

}  // namespace equipoise
