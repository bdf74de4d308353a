#include "sim/cli/command_tune.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "sim/cli/progress_line.h"
#include "sim/cli/report_pages.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/text_table.h"
#include "sim/study/hardware.h"
#include "sim/study/planned_memory.h"
#include "sim/tune/default_space.h"
#include "sim/tune/journal.h"
#include "sim/tune/study_json.h"
#include "sim/tune/tune_report.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr int kInterrupted = 130;  // as shells say it: 128 + SIGINT
constexpr const char* kJournal = "tune.journal";

void check_options(const TuneOptions& options) {
  if (options.budget < 1)
    throw UserError("--budget: expected 1 or more candidates, found " + std::to_string(options.budget));
  if (options.resume && options.out.empty())
    throw UserError("--resume needs --out DIR, where the journal of the earlier run is");
  const std::filesystem::path out = options.out;
  if (!options.out.empty() && std::filesystem::exists(out) && !std::filesystem::is_directory(out))
    throw UserError("--out " + options.out + ": expected a folder, found a file");
}

std::string path_in(const TuneOptions& options, const char* file) {
  return (std::filesystem::path(options.out) / file).string();
}

// All that decides what the search finds: a journal of anything else is refused.
json asked_of(const json& study, const Space& space, const SearchOptions& search, std::int64_t gpus) {
  const double delay = search.most_delay;
  return {{"study", study},
          {"space", space_json(space)},
          {"budget", search.budget},
          {"gpus", gpus},
          {"max_delay", delay < std::numeric_limits<double>::infinity() ? json(delay) : json(nullptr)}};
}

// "1,234 of 10,000 candidates, best 5,012 tokens/s/GPU, 0:35 left"
class Progress {
 public:
  Progress(std::ostream& log, bool wanted, std::int64_t gpus)
      : line_(log, wanted), gpus_(static_cast<double>(gpus)), begin_(std::chrono::steady_clock::now()) {}

  void show(std::int64_t tried, std::int64_t most, double seconds_per_token) {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begin_;
    const auto left =
        static_cast<std::int64_t>(since.count() / static_cast<double>(std::max<std::int64_t>(1, tried)) *
                                  static_cast<double>(std::max<std::int64_t>(0, most - tried)));
    const std::string seconds = std::to_string(left % 60);
    std::string text = grouped(tried) + " of " + grouped(most) + " candidates";
    if (seconds_per_token > 0)
      text += ", best " + grouped(static_cast<std::int64_t>(1 / seconds_per_token / gpus_)) + " tokens/s/GPU";
    line_.show(text + ", at most " + std::to_string(left / 60) + ":" + (seconds.size() < 2 ? "0" : "") +
               seconds + " left");
  }

 private:
  ProgressLine line_;
  double gpus_;
  std::chrono::steady_clock::time_point begin_;
};

Space space_of(const TuneOptions& options, const Study& study, const json& file, const StudyInputs& inputs,
               std::int64_t gpus) {
  if (!options.space.empty()) return read_space(options.space, file);
  return default_space(study, file, gpus, gpus_per_node(study.cluster, inputs.profile));
}

// Candidates share the documents; each thread plans and simulates one at a time.
void check_memory(const Study& study, const StudyInputs& inputs, const RunStudyOptions& run,
                  const MemoryLimit& limit) {
  Study threads = study;
  threads.policies.clear();
  for (int i = 0; i < run.jobs; ++i) threads.policies.push_back(study.policies.front());
  check_planned_memory(threads, totals_of(inputs.documents), run, limit);
}

void write_results(const TuneOptions& options, const TuneReport& report) {
  write_file_atomically(path_in(options, "tune.json"), tune_json(report).dump(1) + "\n");
  write_file_atomically(path_in(options, "report.html"), tune_html(report));
  if (report.ranking.empty()) {
    std::error_code ignored;  // of an earlier search
    std::filesystem::remove(path_in(options, "best.json"), ignored);
    return;
  }
  write_file_atomically(path_in(options, "best.json"),
                        candidate_json(report.candidates, report.ranking.front().point).dump(2) + "\n");
}

void print(const TuneReport& report, Format format, std::ostream& out) {
  if (format == Format::table)
    out << tune_table(report);
  else if (format == Format::json)
    out << tune_json(report).dump(2) << '\n';
  else
    out << tune_csv(report);
}

}  // namespace

int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop) {
  const Format format = parse_format(options.format);
  check_options(options);
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  const json file = absolute_study(options.file, options.set);
  const Study study = parse_study(file, options.file);
  SearchOptions search_options;
  search_options.budget = options.budget;
  if (options.max_delay >= 0) search_options.most_delay = options.max_delay;
  search_options.name = options.file;
  search_options.run.jobs =
      options.jobs > 0 ? options.jobs : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  search_options.run.find_fits = false;
  check_planned_memory(study, foreseen_documents(study), search_options.run, limit);
  const StudyInputs inputs = load_inputs(study);
  check_memory(study, inputs, search_options.run, limit);
  const std::int64_t gpus = options.gpus > 0 ? options.gpus : study.layout.gpus();
  const Space space = space_of(options, study, file, inputs, gpus);
  if (options.space.empty() && !options.quiet)
    log << "note: no --space, so this one: " << space_json(space).dump() << '\n';
  const std::string space_name = options.space.empty() ? "the default space" : options.space;
  const Candidates candidates = candidates_of(space, file, gpus, space_name, search_options.run.jobs);
  std::unique_ptr<Journal> journal;
  if (!options.out.empty())
    journal = std::make_unique<Journal>(path_in(options, kJournal),
                                        asked_of(file, space, search_options, gpus), options.resume);
  search_options.run.stop = &stop;
  SearchResult found;
  {
    Progress progress(log, !options.quiet, gpus);
    search_options.progress = [&](std::int64_t tried, std::int64_t most, double seconds) {
      progress.show(tried, most, seconds);
    };
    found = search(candidates, inputs, search_options, journal.get());
  }
  if (found.interrupted) {
    log << "interrupted after " << found.tried.size() << " candidates"
        << (options.out.empty() ? "" : "; --resume goes on from there") << '\n';
    return kInterrupted;
  }
  try {
    const Baseline baseline = run_baseline(file, inputs, search_options.run);
    const std::vector<RankedRow> ranking =
        ranked_rows(candidates, found, search_options.keep, inputs, baseline, search_options.run);
    const std::vector<WhatIf> what_if = sensitivity(candidates, found, inputs, search_options);
    const TuneReport report{candidates, space, search_options, found, baseline, ranking, what_if};
    if (!options.out.empty()) write_results(options, report);
    print(report, format, out);
  } catch (const Interrupted&) {
    log << "interrupted; --resume with --out goes on\n";
    return kInterrupted;
  }
  return 0;
}

}  // namespace equipoise
