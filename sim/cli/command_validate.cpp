// If the study's profile is of another device, `validate` first measures this one.
#include "sim/cli/command_validate.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "kernels/backend.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "sim/cli/device_profile.h"
#include "sim/cli/simulation.h"
#include "sim/execution/launch.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/words/words.h"
#include "sim/study/row/details.h"
#include "sim/validation/compare_log.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/figures.h"
#include "sim/validation/measured_log.h"
#include "sim/validation/real_run.h"
#include "sim/validation/two_timelines.h"
#include "sim/validation/validation_report.h"

namespace equipoise {
namespace {

// Prints the comparison and writes its files. `timelines` writes the files that need the run itself.
int conclude(const Validation& validation, const ValidateOptions& options, std::ostream& out,
             const std::function<void(const std::filesystem::path&)>& timelines) {
  const ValidationFigures figures = figures_of(validation);
  const std::string document = validation_json(validation, figures).dump(1) + "\n";
  if (!options.out.empty()) {
    StagedFolder folder(options.out, "--out");
    write_file_atomically((folder.path() / "validation.json").string(), document);
    write_file_atomically((folder.path() / "validation.txt").string(), validation_text(validation, figures));
    write_file_atomically((folder.path() / "report.html").string(), validation_html(validation, figures));
    timelines(folder.path());
    folder.commit();
  }
  out << (options.format == Format::json ? document : validation_text(validation, figures, screen_width()));
  return figures.passed() || !figures.judged() ? 0 : 1;
}

constexpr const char* kOtherLoadVariable =
    "EQUIPOISE_OTHER_LOAD";  // tells the ranks, which would only see themselves

// CPUs that are busy with other work before the ranks start, observed for a third of a second; 0 if that is
// unknown. The columns of /proc/stat are user, nice, system, idle, iowait, irq, softirq, steal.
double other_load() {
  const auto look = [] {
    std::ifstream file("/proc/stat");
    std::string cpu;
    std::array<double, 8> times{};
    file >> cpu;
    for (double& t : times) file >> t;
    const double idle = times[3] + times[4];
    return std::pair(sum_of(times) - idle, idle);
  };
  const auto [busy, idle] = look();
  std::this_thread::sleep_for(std::chrono::milliseconds(330));
  const auto [busy_after, idle_after] = look();
  const double all = busy_after - busy + idle_after - idle;
  return all > 0 ? (busy_after - busy) / all * std::thread::hardware_concurrency() : 0;
}

double told_load() {
  const char* const told = std::getenv(kOtherLoadVariable);
  return told != nullptr ? std::strtod(told, nullptr) : 0;
}

int validate_log(Study study, const ValidateOptions& options, std::ostream& out) {
  MeasuredLog log = read_measured_log(options.measured);
  keep_rows(options.policy, study, log);
  RunStudyOptions run;
  run.jobs = all_cores();
  const StudyInputs inputs = load_inputs(study);
  const SimulatedForLog simulated = simulate_for_log(study, inputs, run, !log.ops.empty());
  Validation validation = compare_with_log(log, simulated.policies, kCudaLimits);
  for (Note& note : unlike_runs(log, study, inputs.profile.device().name))
    validation.notes.push_back(std::move(note));
  validation.study = study.name;
  validation.profile = study.cluster.profile;
  validation.notes.insert(validation.notes.end(), simulated.notes.begin(), simulated.notes.end());
  validation.beyond_samples = simulated.beyond_samples;
  return conclude(validation, options, out, [](const std::filesystem::path&) {});
}

// Says which device the profile was not measured on.
std::optional<Note> profile_note(const Profile& profile, const kernels::Backend& backend) {
  if (covers(profile, backend)) return {};
  return Note{"profile_of_other_device",
              "",
              {{"measured_on", profile.device().name},
               {"runs_on", backend.describe().name},
               {"device", backend.name()}}};
}

// The steps next to the validated ones that show how long ops take inside a step.
Calibration calibration_of(const Study& study, const StudyInputs& inputs, const ValidateOptions& options,
                           const RealRank& rank, std::ostream* log) {
  CalibrationOptions calibrating;
  calibrating.policy = options.policy;
  calibrating.steps = options.calibration_steps;
  calibrating.replay = options.replay;
  calibrating.seed = options.seed;
  if (log != nullptr) calibrating.progress = [log](const std::string& what) { *log << what << std::endl; };
  const StudyOfWindow study_of = [&options](std::int64_t window) {
    std::vector<std::string> set = options.set;
    set.push_back(std::string("batch.context_window=").append(std::to_string(window)));
    return read_study(options.file, set);
  };
  return {study_of, study.batch.context_window, inputs.trace, rank, calibrating};
}

// The rows' steps, timed in rounds. Calibration and run alternate, so that a machine that gets slower or
// busier does so in both.
std::vector<RealResult> run_rounds(const Study& study, const std::vector<RealRow>& rows,
                                   const ValidateOptions& options, const RealRank& rank,
                                   Calibration& calibration, std::ostream* log) {
  RealRunOptions run;
  run.check = false;
  run.warm_up = true;
  run.repetitions = 1;
  run.seed = options.seed;
  std::vector<RealResult> results;
  if (log != nullptr)
    *log << counted(options.repetitions, "round") << " over the steps of " << counted(rows.size(), "row")
         << ", calibration included; after the first it is known how long they take" << std::endl;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 1; round <= options.repetitions; ++round) {
    calibration.run_round();
    append_rounds(results, run_real(study, rows, rank, run));
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (log != nullptr)
      *log << "round " << round << ": " << time_left(as_double(round) / options.repetitions, spent)
           << std::endl;
  }
  return results;
}

// Runs the rows on one rank. Rank 0 also compares and prints; returns the command's status, 0 on other ranks.
int validate_on_rank(const Study& study, const StudyInputs& inputs, const ValidateOptions& options,
                     const RealRank& rank, std::ostream& out, std::ostream& log) {
  const bool leads = rank.floats.rank() == 0;
  std::ostream* const progress = leads && !options.quiet ? &log : nullptr;
  const std::vector<RealRow> rows = real_rows(
      study, inputs, {options.policy, options.steps, execution::LossNormalizer::token}, rank.floats);
  Calibration calibration = calibration_of(study, inputs, options, rank, progress);
  std::vector<RealResult> results = run_rounds(study, rows, options, rank, calibration, progress);
  if (!leads) return 0;
  Validation validation;
  validation.study = study.name;
  validation.device = options.device;
  validation.profile = study.cluster.profile;
  validation.limits = options.device == "cpu" ? kCpuLimits : kCudaLimits;
  validation.other_load = told_load();
  validation.notes = study.notes;
  if (options.replay) {
    for (std::size_t i = 0; i < rows.size(); ++i) compose_steps(rows[i], results[i]);
    validation.notes.push_back({"replayed", "", {}});
  }
  add(validation.notes, profile_note(inputs.profile, rank.backend));
  const InStepTimes in_step = calibration.times();
  const InStepTimes* times = in_step.empty() ? nullptr : &in_step;
  for (Note& note : calibration.notes()) validation.notes.push_back(std::move(note));
  compare_real(rows, results, times, validation);
  if (options.replay) keep_kernels(validation);
  return conclude(validation, options, out, [&](const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder / "timeline");
    for (std::size_t i = 0; i < rows.size(); ++i)
      write_real_timeline((folder / "timeline" / (file_name(rows[i].label) + ".pftrace")).string(), rows[i],
                          results[i], times);
  });
}

// Repeats the run with a profile of this device, which is kept with its results.
int validate_with_own_profile(const ValidateOptions& options, std::vector<std::string> arguments, int ranks,
                              std::ostream& out, std::ostream& log) {
  // The next run removes the folder and its contents if this one is killed.
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) throw UserError("TMPDIR: expected a folder for what is measured, found none: ", error.message());
  const StagedFolder folder(temporary / "equipoise-profile", "TMPDIR");
  const std::string profile = profile_here(options.device, options.minutes, ranks, folder.path(), log);
  ValidateOptions again = options;
  again.minutes = 0;
  again.set.push_back("cluster.profile=" + profile);
  arguments.insert(arguments.end(), {"--minutes", "0", "--set", again.set.back()});
  const int status = run_validate_command(again, arguments, out, log);
  if (status <= 1 && !options.out.empty())  // otherwise the ranks failed or were interrupted
    std::filesystem::copy_file(profile, std::filesystem::path(options.out) / "profile.json",
                               std::filesystem::copy_options::overwrite_existing);
  return status;
}

}  // namespace

int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log) {
  Study study = study_of_ranks(options, "validate", log);
  require_folder(options.out, "--out");
  if (!options.measured.empty()) return validate_log(std::move(study), options, out);
  use_own_ranks(study);
  check_real_run(study, options, false);
  const auto ranks = static_cast<int>(study.layout.gpus());
  execution::HealthLimits limits;
  limits.same_op_seconds = options.op_timeout_seconds;
  if (std::getenv(kOtherLoadVariable) == nullptr)
    ::setenv(kOtherLoadVariable, std::to_string(other_load()).c_str(), 1);
  if (options.minutes > 0 && !execution::under_launcher())
    if (const auto backend = backend_of(options.device);
        backend && !covers(Profile::load(study.cluster.profile), *backend))
      return validate_with_own_profile(options, arguments, ranks, out, log);
  const StudyInputs inputs = load_inputs(study);
  check_real_rows(study, inputs, options.policy);
  if (needs_launcher(ranks, options.replay)) return execution::run_ranks(ranks, arguments, limits);

  int status = 0;
  on_ranks(ranks, options.device, options.replay, limits, [&](const RealRank& rank) {
    if (const int own = validate_on_rank(study, inputs, options, rank, out, log); own != 0) status = own;
  });
  return status;
}

}  // namespace equipoise
