#include "sim/cli/command_study.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_verify.h"
#include "sim/cli/commands.h"
#include "sim/cli/job.h"
#include "sim/cli/measured_step.h"
#include "sim/cli/sweep.h"
#include "sim/report/receipt.h"
#include "sim/report/result_csv.h"
#include "sim/report/seed_spread.h"
#include "sim/report/study_outputs.h"
#include "sim/report/study_screen.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/sweep_page.h"
#include "sim/report/words/words.h"
#include "sim/study/check_result.h"
#include "sim/study/estimate.h"
#include "sim/study/read/naming.h"
#include "sim/study/row/details.h"
#include "sim/study/share.h"
#include "traces/json_text.h"

namespace equipoise {

namespace {

// "0,3" as numbers; none for "all" and for an empty text.
std::vector<int> numbers_of(const char* option, const std::string& text) {
  std::vector<int> numbers;
  if (text.empty() || text == "all") return numbers;
  std::istringstream items(text + ',');
  for (std::string item; std::getline(items, item, ',');) {
    int number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size())
      throw UserError(std::string(option) + ": expected numbers, such as 0,3, or all, found " +
                      printable(text));
    numbers.push_back(number);
  }
  return numbers;
}

CounterSelection parse_counters(const std::string& text) {
  CounterSelection selection{false, false};
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');)
    if (item == "memory")
      selection.memory = true;
    else if (item == "tokens")
      selection.tokens = true;
    else if (text != "none")
      throw UserError("--timeline-counters: expected memory, tokens or none, found " + item);
  return selection;
}

StepSettings step_settings(const StudyOptions& options) {
  StepSettings settings;
  settings.fidelity = parse_fidelity(options.fidelity);
  settings.op = {!options.no_fold_tp, options.contention, options.jitter, options.jitter_seed,
                 parse_stragglers(options.stragglers)};
  if (settings.fidelity == Fidelity::stage && (options.no_fold_tp || !settings.op.is_plain()))
    throw UserError(
        "--no-fold-tp, --contention, --jitter and --stragglers need --fidelity op, found --fidelity stage");
  return settings;
}

RunStudyOptions run_options(const StudyOptions& options) {
  RunStudyOptions run;
  run.steps = step_settings(options);
  if (options.chakra && (options.out.empty() || run.steps.fidelity == Fidelity::stage))
    throw UserError("--chakra needs --out DIR and --fidelity op");
  run.jobs = threads_of(options.jobs);
  run.keep_plans = !options.out.empty();
  run.ignore_memory = options.ignore_memory;
  run.max_delay = options.max_delay;
  if (!options.tokens.empty()) run.tokens_of_job = parse_tokens(options.tokens, "--tokens");
  run.record_gpus = !options.out.empty() || options.format == Format::json;
  run.details.steps = options.timeline_steps;
  run.details.gzip = options.timeline_gzip;
  const auto selected = [&](const char* option, const std::string& text) {
    return run.steps.fidelity == Fidelity::op && text.empty() ? std::vector<int>{0}
                                                              : numbers_of(option, text);
  };
  run.details.selection = {selected("--timeline-lanes", options.timeline_lanes),
                           selected("--timeline-stages", options.timeline_stages),
                           numbers_of("--timeline-ranks", options.timeline_ranks), options.no_fold_tp,
                           parse_counters(options.timeline_counters)};
  run.details.chakra = options.chakra;
  return run;
}

// The lanes and ranks that options name must exist. There may be as many lanes or CP ranks as all DP x CP
// ranks (hbp), so that is the bound for both.
void check_parts(const RunStudyOptions& run, const Study& study) {
  const auto check = [](const char* option, const std::vector<int>& items, int count) {
    for (const int item : items)
      if (item < 0 || item >= count)
        throw UserError(std::string(option) + ": expected 0 to " + std::to_string(count - 1) + ", found " +
                        std::to_string(item));
  };
  const Layout& layout = study.layout;
  check("--timeline-stages", run.details.selection.stages, layout.pipeline);
  check("--timeline-lanes", run.details.selection.lanes, layout.data * layout.context);
  check("--timeline-ranks", run.details.selection.ranks, layout.data * layout.context);
  check_stragglers(run.steps, layout.gpus());
}

void print_study(const StudyOptions& options, const Study& study, const StudyResult& result,
                 std::ostream& out) {
  const auto width = static_cast<std::size_t>(
      std::clamp(terminal_columns(int{kScreenWidth}), int{kLeastScreenWidth}, int{kScreenWidth}));
  if (options.format == Format::table)
    out << (options.wide
                ? study_table(study, result)
                : study_screen(study, result, {options.out, options.set, words_of(options.job), width}));
  else if (options.format == Format::json)
    out << summary_json(study, result).dump(2) << '\n';
  else
    out << summary_csv(study, result);
}

SavedRun saved_run(const StudyCase& c, const StudyOptions& options) {
  return {options.version, options.file, file_of(c, options.content),
          nlohmann::json{{"fidelity", options.fidelity},
                         {"fold_tp", !options.no_fold_tp},
                         {"contention", options.contention},
                         {"jitter", options.jitter},
                         {"jitter_seed", options.jitter_seed},
                         {"stragglers", options.stragglers},
                         {"ignore_memory", options.ignore_memory}}};
}

struct CaseRun : CheckedResult {
  nlohmann::json receipt;  // with --out
};

// Runs one case. If it cannot run at all, its rows are refused and the other cases keep their results.
CaseRun study_of(const StudyCase& c, const StudyOptions& options, RunStudyOptions run,
                 const MemoryLimit& limit) {
  if (!c.study.impossible.empty()) return {{refused_study(c.study, c.study.impossible), {}}, {}};
  std::optional<StudyInputs> inputs;
  try {
    for (const PolicyRun& row : c.study.policies)
      if (options.chakra && layout_of(c.study, row).evens_out_stages())
        throw UserError(c.study.file, ": ", row.label,
                        ".stage_attention_exchange: expected false with --chakra, found true");
    inputs = load_inputs(c.study);
    check_estimate(c.study, inputs->documents, run, limit, options.max_output_GB);
  } catch (const UserError& e) {
    if (c.name.empty()) throw;
    return {{refused_study(c.study, e.what()), {}}, {}};
  }
  if (!options.out.empty())  // before work whose result could not be written
    for (const StudyOutput& output : study_outputs())
      require_no_input((std::filesystem::path(options.out) / file_name(c.name) / output.file).string());
  CaseRun done{run_checked(c.study, *inputs, run, options.verify), {}};
  if (!options.out.empty() && !done.result.incomplete)  // because no other run would repeat it
    done.receipt = receipt_of(saved_run(c, options), c.study, *inputs, done.result, done.checks);
  return done;
}

// Prints the checks to stderr, like notes. Returns whether all hold.
bool print_verified(const std::vector<Check>& checks, const StudyOptions& options, std::ostream& log) {
  const auto failed = std::ranges::count_if(checks, [](const Check& k) { return !k.holds.value_or(true); });
  if (failed > 0 || !options.quiet) print_checks(checks, Format::table, log);
  return failed == 0;
}

// Prints warnings to stderr if the result has no place for them; --quiet does not drop the decisive ones.
void print_warnings(const std::vector<Warning>& warnings, std::size_t most, std::ostream& log) {
  const std::size_t shown = std::min(most, warnings.size());
  for (std::size_t i = 0; i < shown; ++i) log << "warning: " << printable(warnings[i].text) << '\n';
  if (shown < warnings.size())
    log << "warning: " << counted(warnings.size() - shown, "more warning") << " (--notes)\n";
}

// Runs the case and writes its folder. `verified` becomes false if a check of --verify fails. `place` is the
// case's place among the others, for the progress line.
StudyResult run_case(const StudyCase& c, const std::string& folder_of_all, const StudyOptions& options,
                     RunStudyOptions& run, const MemoryLimit& limit, std::ostream& log, bool& verified,
                     const std::string& place = "") {
  std::optional<StagedFolder> folder;
  if (!folder_of_all.empty()) {
    folder.emplace(std::filesystem::path(folder_of_all) / file_name(c.name), "--out");
    run.details.directory = folder->path().string();
  }
  CaseRun done = [&] {
    const ProgressLine progress(log, !options.quiet);
    std::string row;
    std::optional<TimeLeft> left;
    std::size_t begun = 0;
    // Rows take milliseconds or minutes, so the number of finished rows does not predict the time left.
    run.progress = [&](const std::string& label) {
      row = concatenated(place, c.name.empty() ? "" : c.name + ": ", label, ", row ", ++begun, " of ",
                         c.study.policies.size());
      left.emplace();
      progress.show(row);
    };
    run.progress_of_row = [&](double share) {
      if (const std::string text = left->text(share); !text.empty()) progress.show(row + ": " + text);
    };
    return study_of(c, options, run, limit);
  }();
  StudyResult& result = done.result;
  if (options.notes) {
    const std::string which = c.name.empty() ? "note: " : "note: " + c.name + ": ";
    const auto add_notes = [&](const Notes& notes) {
      for (const Note& note : notes) log << which << printable(text_of(note)) << '\n';
    };
    add_notes(c.study.notes);
    add_notes(result.notes);
    if (result.network_note) add_notes({*result.network_note});
    for (const PolicyResult& policy : result.policies) add_notes(policy.notes);
  } else if (options.sweep.empty() && (options.format != Format::table || options.wide)) {
    print_warnings(noted_of(c.study, result).warnings, kWarningsShown,
                   log);  // the first output already has them
  }
  if (folder) {
    write_outputs(folder->path().string(), c.study, result, done.receipt);
    folder->commit();
  }
  if (options.verify) verified = print_verified(done.checks, options, log) && verified;
  return std::move(done.result);
}

std::string interruption(const StudyResult& result) {
  const auto finished = std::ranges::count_if(result.policies, [](const PolicyResult& row) {
    return row.reasons.empty() || row.reasons.front().kind != "interrupted_row";
  });
  return concatenated("interrupted: ", finished, " of ", counted(result.policies.size(), "row"), " finished");
}

int run_one(const StudyCase& c, const StudyOptions& options, RunStudyOptions& run, const MemoryLimit& limit,
            std::ostream& out, std::ostream& log) {
  bool verified = true;
  const StudyResult result = run_case(c, options.out, options, run, limit, log, verified);
  print_study(options, c.study, result, out);
  if (!result.incomplete) return verified ? 0 : 1;
  log << interruption(result) << '\n';
  return kInterrupted;
}

// Everything that decides what is written. A journal of anything else is refused.
nlohmann::json asked_of(const std::vector<StudyCase>& cases, const StudyOptions& options,
                        const Share& share) {
  nlohmann::json asked = {
      {"study", options.content},
      {"set", options.set},
      {"fidelity", options.fidelity},
      {"fold_tp", !options.no_fold_tp},
      {"contention", options.contention},
      {"jitter", {options.jitter, options.jitter_seed}},
      {"stragglers", options.stragglers},
      {"timelines",
       {options.timeline_steps, options.timeline_lanes, options.timeline_stages, options.timeline_ranks,
        options.timeline_counters}},
      {"timeline_gzip", options.timeline_gzip},
      {"chakra", options.chakra},
      {"ignore_memory", options.ignore_memory},
      {"limits", {options.max_memory_GB, options.max_output_GB}},  // a case beyond the limits is refused
      {"cases", nlohmann::json::array()}};
  asked["inputs"] = nlohmann::json::object();
  const std::string folder = std::filesystem::path(options.file).parent_path().string();
  for (const StudyCase& c : cases) {
    asked["cases"].push_back(c.name);
    add_hashes_of_files(file_of(c, options.content), folder, asked["inputs"]);
  }
  if (options.seeds > 0) asked["seeds"] = options.seeds;
  if (!share.is_all()) asked["share"] = {share.index, share.count};
  return asked;
}

// The cases of this process's share. Each is kept in the journal when it finishes and printed at the end.
class Sweep {
 public:
  Sweep(const std::vector<StudyCase>& cases, const StudyOptions& options, std::ostream& out)
      : cases_(cases),
        share_(chosen_share(options.shard)),
        folder_(options.out),
        printer_(options.format, options.seeds > 0, out) {
    if (!share_.is_all() && folder_.empty())
      throw UserError(
          "--shard, mpirun and srun need --out DIR, from which `equipoise merge` takes the shares");
    if (!share_.is_all()) folder_ = (std::filesystem::path(folder_) / share_.folder()).string();
    if (!folder_.empty())
      journal_ = std::make_unique<SweepJournal>((std::filesystem::path(folder_) / kSweepJournal).string(),
                                                asked_of(cases, options, share_), options.resume);
  }

  // Returns 0, or 130 after an interruption, which also prints the finished cases.
  int run_cases(const StudyOptions& options, RunStudyOptions& run, const MemoryLimit& limit,
                std::ostream& log) {
    std::size_t finished = 0, mine = 0;
    for (std::size_t i = 0; i < cases_.size(); ++i) mine += share_.has(i) ? 1 : 0;
    TimeLeft left;
    std::string time;  // the time that was printed last
    try {
      for (std::size_t i = 0; i < cases_.size(); ++i) {
        if (!share_.has(i)) continue;
        if (std::string text = left.text(static_cast<double>(finished) / static_cast<double>(mine));
            !text.empty())
          time = std::move(text);
        const std::string place = "case " + std::to_string(finished + 1) + " of " + std::to_string(mine) +
                                  (time.empty() ? ", " : ", " + time + ", ");
        naming(cases_[i].name, [&] { finish(i, place, options, run, limit, log); });
        ++finished;
      }
    } catch (const Interrupted&) {
      log << "interrupted: " << finished << " of " << counted(mine, "case") << " finished"
          << (journal_ ? "; --resume goes on from there" : "") << '\n';
    }
    if (share_.is_all()) {
      if (!folder_.empty() && finished > 0) printer_.write(folder_);
      printer_.finish();
    }
    if (const std::string note = printer_.page().gpus_note(); !note.empty())
      log << "note: " << printable(note) << '\n';
    if (!options.notes) print_warnings(warnings_, warnings_.size(), log);
    if (finished < mine) return kInterrupted;
    if (share_.is_all() && journal_) journal_->remove();
    if (!share_.is_all() && !options.quiet)
      log << "shard " << share_.index << '/' << share_.count << ": " << mine << " of "
          << counted(cases_.size(), "case") << "; `equipoise merge OUT " << options.out
          << "` puts those of all shards together\n";
    return verified_ ? 0 : 1;
  }

 private:
  void finish(std::size_t i, const std::string& place, const StudyOptions& options, RunStudyOptions& run,
              const MemoryLimit& limit, std::ostream& log) {
    if (const CaseText* known = journal_ ? journal_->find(i) : nullptr) return printer_.add(*known);
    const StudyCase& c = cases_[i];
    const StudyResult result = run_case(c, folder_, options, run, limit, log, verified_, place);
    const CaseText text =
        case_text(c.name, c.study, result, case_of_page(c.assignments, file_name(c.name), c.study, result));
    for (Warning& warning :
         noted_of(c.study, result).warnings)  // the first of each kind; the table has the others
      if (text.table.reasons.find(warning.text) == std::string::npos &&
          std::ranges::find(warnings_, warning.kind, &Warning::kind) == warnings_.end())
        warnings_.push_back({warning.kind, c.name + ": " + warning.text});
    printer_.add(text);
    if (result.incomplete) throw Interrupted();
    if (journal_) journal_->add(i, text);
  }

  const std::vector<StudyCase>& cases_;
  Share share_;
  std::string folder_;
  SweepPrinter printer_;
  std::vector<Warning> warnings_;  // for all cases
  bool verified_ = true;
  std::unique_ptr<SweepJournal> journal_;
};

void check_resume(const StudyOptions& options) {
  if (!options.resume && options.shard.empty()) return;
  const char* option = options.resume ? "--resume" : "--shard";
  if (options.sweep.empty() && options.seeds == 0)
    throw UserError(std::string(option) + ": expected a sweep's cases, found no --sweep");
  if (options.out.empty())
    throw UserError(std::string(option) + " needs --out DIR, where finished cases are kept");
}

// Reads the study's file or its job, and its anchor. Returns false if the job fits on no layout.
bool read_content(StudyOptions& options, const RunStudyOptions& run, std::ostream& out, std::ostream& log) {
  if (options.job.model.empty() == options.file.empty())
    throw UserError("study: expected a study file, or --model and --gpus, found ",
                    options.file.empty() ? "neither" : "both");
  if (!options.job.policies.empty() && options.job.model.empty())
    throw UserError("--policies: expected --model, whose rows it names; a study file has its own");
  if (options.job.model.empty()) {
    options.content = read_json_file(options.file);
  } else {
    JobStudy job = study_of_job(options.job, run);
    (options.format == Format::table ? out : log) << text_of(job.fits) << '\n';
    log << text_of(job.assumed) << '\n';
    if (!job.has_layout) {
      if (options.format == Format::json)
        out << nlohmann::json{{"schema", "equipoise.job/1"}, {"fits", false}, {"note", text_of(job.fits)}}
                   .dump(2)
            << '\n';
      return false;
    }
    options.content = std::move(job.file);
    options.file = kJobName;
  }
  if (!options.measured_step.empty()) {
    Notes notes;
    options.set.push_back(anchor_assignment(
        options.measured_step, options.row,
        parse_study(file_of({options.set, "", {}}, options.content), options.file), run, notes));
    for (const Note& note : notes) log << "warning: " << printable(text_of(note)) << '\n';
  }
  return true;
}

// --seeds becomes a sweep of trace.seed, whose cases are printed as one.
void sweep_seeds(StudyOptions& options) {
  if (options.seeds == 0) return;
  for (const std::string& sweep : options.sweep)
    if (sweep.starts_with(kSeedKey))
      throw UserError("--seeds: expected no --sweep trace.seed, which it sweeps itself, found ",
                      printable(sweep));
  const TraceSource trace = parse_case(file_of({options.set, "", {}}, options.content), options.file).trace;
  if (!trace.is_drawn())
    throw UserError(
        "--seeds: ", options.file,
        ": trace.shuffle: expected true, or documents that are drawn (trace.distribution), since no "
        "seed changes this trace");
  std::string seeds;
  for (int i = 0; i < options.seeds; ++i)
    seeds += (i > 0 ? "," : "") + std::to_string(trace.seed + static_cast<std::uint64_t>(i));
  options.sweep.push_back(kSeedKey + seeds);
}

}  // namespace

int run_study_command(const StudyOptions& asked, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  StudyOptions options = asked;
  check_resume(options);
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  RunStudyOptions run = run_options(options);
  run.stop = &stop;
  run.keep_finished = true;
  if (!read_content(options, run, out, log)) return 0;
  sweep_seeds(options);
  const std::vector<StudyCase> cases =
      read_cases(options.content, options.file, options.set, options.sweep, options.max_cases, limit);
  for (const StudyCase& c : cases) {
    const auto check = [&] {
      if (c.study.impossible.empty()) check_parts(run, c.study);
    };
    c.name.empty() ? check() : naming(c.name, check);
  }
  if (!options.sweep.empty() && !options.tokens.empty())
    log << "note: " << text_of(no_effect("--tokens", "a single case")) << '\n';
  if (!options.sweep.empty() && !options.out.empty()) check_folders(cases);
  if (options.sweep.empty()) return run_one(cases.front(), options, run, limit, out, log);
  return Sweep(cases, options, out).run_cases(options, run, limit, log);
}

}  // namespace equipoise
