#include "sim/cli/command_tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_merge.h"
#include "sim/cli/merged_parts.h"
#include "sim/export/export.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/receipt.h"
#include "sim/report/words/words.h"
#include "sim/study/estimate.h"
#include "sim/study/models.h"
#include "sim/study/row/runs_in.h"
#include "sim/tune/journal.h"
#include "sim/tune/own_rows.h"
#include "sim/tune/time_limit.h"
#include "sim/tune/tune_page.h"
#include "sim/tune/tune_screen.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

void check_options(const TuneOptions& options) {
  if (!options.target.empty()) (void)exporter_of(options.target);
  if (options.resume && options.out.empty())
    throw UserError("--resume needs --out DIR, where the journal of the earlier run is");
  const std::filesystem::path out = options.out;
  if (!options.out.empty() && std::filesystem::exists(out) && !std::filesystem::is_directory(out))
    throw UserError("--out " + options.out + ": expected a folder, found a file");
}

// What to find, and everything that the search needs.
struct TuneJob {
  json file;  // the study with absolute paths
  Study study;
  StudyInputs inputs;
  std::int64_t gpus = 0;
  Space space;
  Candidates candidates;
  SearchOptions search;
  json names;          // names of the files as typed, for messages
  std::string target;  // a framework that must have flags for the layout; none if empty
};

// The contents of the files that a search reads, as a receipt has them: with other contents its results
// belong to another search.
json inputs_of(const TuneJob& job) {
  json hashes = hashes_of_inputs(job.inputs, job.file, "");  // with absolute paths
  add_hashes_of_files(space_json(job.space), std::filesystem::path(job.study.file).parent_path().string(),
                      hashes);
  return hashes;
}

// Everything that decides what the search finds. A journal of anything else is refused.
json asked_of(const TuneJob& job) {
  const auto bound = [](double delay) {
    return delay < std::numeric_limits<double>::infinity() ? json(delay) : json(nullptr);
  };
  json asked = {{"study", job.file},
                {"space", space_json(job.space)},
                {"budget", job.search.budget},
                {"gpus", job.gpus},
                {"max_delay", bound(job.search.most_delay)},
                {"max_longest_delay", bound(job.search.longest_delay)},
                {"names", job.names},
                {"inputs", inputs_of(job)}};
  if (!job.target.empty()) asked["for"] = job.target;
  return asked;
}

// "1,234 of 10,000 candidates, best 5,012 tokens/s/GPU, about 0:35 left", at the pace since the first of them
// and at most until the minutes are over.
class SearchProgress {
 public:
  SearchProgress(std::ostream& log, bool wanted, std::int64_t gpus, double minutes)
      : line_(log, wanted),
        gpus_(static_cast<double>(gpus)),
        most_seconds_(minutes > 0 ? 60 * minutes : std::numeric_limits<double>::infinity()),
        begin_(std::chrono::steady_clock::now()) {}

  void show(std::int64_t tried, std::int64_t most, double seconds_per_token) {
    using Seconds = std::chrono::duration<double>;
    const auto now = std::chrono::steady_clock::now();
    if (first_tried_ < 0) {  // layouts were looked at until now, and a journal may have told of candidates
      first_tried_ = tried;
      first_ = now;
    }
    std::string text = grouped(tried) + " of " + counted(most, "candidate");
    if (seconds_per_token > 0)
      text += ", best " + grouped(static_cast<std::int64_t>(1 / seconds_per_token / gpus_)) + " tokens/s/GPU";
    double left = std::max(0.0, most_seconds_ - Seconds(now - begin_).count());
    if (const std::int64_t timed = tried - first_tried_; timed >= kFewestTimed)
      left = std::min(left, Seconds(now - first_).count() / static_cast<double>(timed) *
                                static_cast<double>(std::max<std::int64_t>(0, most - tried)));
    if (std::isfinite(left)) {
      const auto whole = static_cast<std::int64_t>(left);
      const std::string seconds = std::to_string(whole % 60);
      text += ", about " + std::to_string(whole / 60) + (seconds.size() < 2 ? ":0" : ":") + seconds + " left";
    }
    line_.show(text);
  }

 private:
  static constexpr std::int64_t kFewestTimed = 16;  // the first candidates fill caches

  ProgressLine line_;
  double gpus_;
  double most_seconds_;
  std::chrono::steady_clock::time_point begin_, first_;
  std::int64_t first_tried_ = -1;
};

// What a search is for, from the options of `tune` or the journals of its shards.
struct TuneRequest {
  json file;                  // the study with absolute paths
  json names;                 // names of the files as typed, for messages
  std::optional<json> space;  // the default space if absent
  std::int64_t gpus = 0;      // 0: the study's
  std::string target;
  SearchOptions search;
};

TuneJob job_of(TuneRequest request, const MemoryLimit& limit) {
  const json& file = request.file;
  SearchOptions& search = request.search;
  search.name = request.names.at("study").get<std::string>();
  search.run.find_fits = false;
  Study study = parse_study(file, search.name);
  search.order_delay = std::isfinite(search.most_delay) ? search.most_delay : study.max_delay;
  StudyInputs inputs = load_inputs(study);
  RunStudyOptions whole = search.run;
  whole.steps_of_block = std::numeric_limits<std::size_t>::max();  // since candidates share plans
  check_estimate(study, inputs.documents, whole, limit);
  search.run.rows_in_turn = whole.rows_in_turn;
  const std::int64_t gpus = request.gpus > 0 ? request.gpus : study.layout.gpus();
  json of_candidates = file;
  if (gpus != study.layout.gpus()) set_study_keys(of_candidates, {"cluster.gpus=" + std::to_string(gpus)});
  if (!request.space)  // as it would be read from a file
    request.space =
        space_json(default_space(study, file, gpus, gpus_per_node(study.cluster, inputs.profile)));
  const std::string space_name = request.names.at("space").get<std::string>();
  Space space = parse_space(*request.space, space_name, file);
  Unwanted unwanted;
  if (!request.target.empty())
    unwanted = {
        [&to = exporter_of(request.target)](const Study& one) { return untold(to, one, Untold::layout); },
        [&to = exporter_of(request.target)](const Study& one) { return untold(to, one, Untold::row); }};
  Candidates candidates = candidates_of(space, of_candidates, gpus, space_name, search.run.jobs, unwanted);
  return {std::move(request.file),  std::move(study),      std::move(inputs), gpus,
          std::move(space),         std::move(candidates), std::move(search), std::move(request.names),
          std::move(request.target)};
}

// --max-delay: the most of the mean, as `study` has it, and of the largest where it is stated.
void bound_delay(const std::vector<double>& bounds, SearchOptions& search) {
  if (bounds.size() > 2)
    throw UserError("--max-delay: expected one bound, or two as MEAN,LARGEST, found " +
                    std::to_string(bounds.size()));
  if (bounds.empty()) return;
  search.most_delay = bounds.front();
  if (bounds.size() == 2) search.longest_delay = bounds.back();
  if (search.most_delay > search.longest_delay)
    throw UserError("--max-delay: expected a mean of at most the largest, found " +
                    fixed(search.most_delay, 3) + "," + fixed(search.longest_delay, 3));
}

TuneRequest request_of(const TuneOptions& options) {
  TuneRequest request;
  request.file = absolute_study(options.file, options.set);
  request.names = {{"study", printable(options.file)},
                   {"space", options.space.empty() ? "the default space" : printable(options.space)}};
  if (!options.space.empty()) request.space = read_json_file(options.space);
  request.gpus = options.gpus;
  request.target = options.target;
  request.search.budget = options.budget;
  request.search.run.jobs = options.jobs;
  bound_delay(options.max_delay, request.search);
  return request;
}

// Reads the request that a journal was made for.
TuneRequest request_of(const json& asked, int jobs) {
  TuneRequest request{asked.at("study"),      asked.at("names"),
                      asked.at("space"),      asked.at("gpus").get<std::int64_t>(),
                      asked.value("for", ""), {}};
  SearchOptions& search = request.search;
  search.budget = asked.at("budget").get<std::int64_t>();
  if (!asked.at("max_delay").is_null()) search.most_delay = asked["max_delay"].get<double>();
  if (!asked.at("max_longest_delay").is_null())
    search.longest_delay = asked["max_longest_delay"].get<double>();
  search.run.jobs = jobs;
  return request;
}

constexpr const char* kResultFiles[] = {"tune.json", "report.html", "best.json"};

void write_results(const std::string& folder, const TuneReport& report) {
  const std::filesystem::path out = folder;
  std::error_code ignored;
  std::filesystem::create_directories(out, ignored);
  write_file_atomically((out / "tune.json").string(), tune_json(report).dump(1) + "\n");
  write_file_atomically((out / "report.html").string(), tune_html(report));
  const std::string best = (out / "best.json").string();
  if (report.places.ranking.empty()) {
    std::filesystem::remove(best, ignored);  // of an earlier search
    return;
  }
  // Until the best candidates have run in full, the first one is the search's own.
  const bool ran = !report.ranking.empty();
  const Point first = ran ? report.ranking.front().point : report.places.ranking.front().point;
  const auto& alike = ran ? report.ranking.front().alike : report.places.ranking.front().alike;
  std::vector<std::string> omitted = report.places.omitted;
  omitted.insert(omitted.end(), report.places.alike_own.begin(), report.places.alike_own.end());
  json file = best_json(report.candidates, first, alike, omitted);
  const double bound = report.options.order_delay;
  if (file.value("max_delay", Study().max_delay) != bound) file["max_delay"] = bound;
  write_file_atomically(best, file.dump(2) + "\n");
}

// How the result is printed, and where it is written.
struct Outputs {
  const SimulationOptions& how;
  std::string folder;              // of --out; nothing is written if empty
  std::vector<std::string> again;  // the words that search so
};

void print_search(const TuneReport& report, const Outputs& outputs, std::ostream& out) {
  const Format format = outputs.how.format;
  if (format == Format::table && outputs.how.wide)
    out << tune_table(report);
  else if (format == Format::table)
    out << tune_screen(report, {outputs.folder, outputs.again, screen_width()});
  else if (format == Format::json)
    out << tune_json(report).dump(2) << '\n';
  else
    out << tune_csv(report);
}

// Keeps the journal of an earlier search next to the new one, since it may have taken hours.
void set_aside(const std::string& journal, std::ostream& log) {
  if (!has_whole_line(journal)) return;
  require_no_input(journal);
  std::error_code error;
  std::filesystem::rename(journal, journal + ".old", error);
  if (error) throw UserError("--out: cannot rename " + journal + " to .old: " + error.message());
  log << "note: " << journal << " of an earlier search is now " << journal
      << ".old; --resume goes on with one\n";
}

SearchResult searched(const TuneJob& job, Journal* journal, double minutes, bool quiet, std::ostream& log) {
  SearchProgress progress(log, !quiet, job.gpus, minutes);
  SearchOptions options = job.search;
  options.minutes = minutes;
  options.progress = [&](std::int64_t tried, std::int64_t most, double seconds) {
    progress.show(tried, most, seconds);
  };
  const SearchResult found = search(job.candidates, job.inputs, options, journal);
  if (!found.interrupted && !found.timed_out) return found;
  log << (found.interrupted ? "interrupted after " : "the time is over after ")
      << counted(found.tried.size(), "candidate")
      << (journal == nullptr ? "" : "; --resume goes on from there") << '\n';
  return found;
}

// Asks what-if questions about the winner until a share of the minutes is over. Returns whether it finished.
bool what_if_over(const TuneJob& job, const SearchResult& found, Point first, double minutes,
                  SearchOptions options, std::vector<WhatIf>& what_if) {
  constexpr double kShare = 0.25;
  const std::atomic<bool>& interrupted = *options.run.stop;
  std::optional<TimeLimit> time;
  if (minutes > 0) options.run.stop = &time.emplace(&interrupted, kShare * minutes).over();
  try {
    sensitivity(job.candidates, found, first, job.inputs, options, what_if);
  } catch (const Interrupted&) {
    if (interrupted) throw;
    return true;
  }
  return false;
}

// Whether the framework of --for has flags for the study's only row, which has one CP degree for all lanes.
bool has_flags(const TuneJob& job, const Study& study, const PolicyResult& row) {
  return job.target.empty() ||
         (other_degrees(row).empty() && untold(exporter_of(job.target), study, Untold::row).first.empty());
}

// Whether the part finished and was not ended by Ctrl-C.
bool ends(const std::function<void()>& part) {
  try {
    part();
    return true;
  } catch (const Interrupted&) {
    return false;
  }
}

// Announces what runs after the search, since that takes its time even where --minutes has ended the search.
void say_what_follows(const TuneJob& job, const Places& places, bool asks_what_if, bool interrupted,
                      std::ostream& log) {
  std::vector<std::string> parts;
  if (!places.ranking.empty()) {
    const Place& first = places.ranking.front();
    const std::size_t own = best_json(job.candidates, first.point, first.alike).at("policies").size() - 1;
    if (own > 0)
      parts.push_back("the study's " + counted(own, "row") +
                      " in full on the best layout, since best.json has them");
  }
  const auto again = std::ranges::count(places.ranking, nullptr, &Place::row) +
                     std::ranges::count(places.faster, nullptr, &Place::row);
  if (again > 0) parts.push_back(counted(again, "row") + " that only the journal tells of");
  if (asks_what_if) parts.push_back(concatenated("what ifs, up to ", kMostWhatIfs, " candidates in full"));
  if (!parts.empty())
    log << "after the search: " << all_joined(parts, "; ")
        << (interrupted ? "; Ctrl-C again ends that at once\n" : "\n");
}

// Writes the places of the search, runs them in full with the baseline and the what-ifs, then writes and
// prints the report. Ctrl-C during these runs keeps the rows that have ended. If Ctrl-C has already ended the
// search, the next one ends the program. --resume continues after both.
int report_search(TuneJob& job, const SearchResult& found, const Outputs& outputs, double minutes,
                  bool asks_what_if, std::ostream& out, std::ostream& log) {
  const std::string& folder = outputs.folder;
  SearchOptions options = job.search;
  if (found.interrupted) options.run.stop = nullptr;
  asks_what_if = asks_what_if && !found.interrupted;
  Baseline baseline = baseline_to_run(job.file);
  Places places = places_of(job.candidates, found, options.keep);
  std::vector<RankedRow> ranking, faster;
  std::vector<WhatIf> what_if;
  TuneReport report{job.candidates, job.space, options, found,   baseline,
                    places,         ranking,   faster,  what_if, true};
  if (!folder.empty()) write_results(folder, report);
  if (!outputs.how.quiet) say_what_follows(job, places, asks_what_if, found.interrupted, log);
  const ProgressLine line(log, !outputs.how.quiet);
  std::mutex writing;
  options.show = [&](const std::string& what) {
    const std::lock_guard lock(writing);
    line.show(what);
  };
  options.show("in full: the study's baseline");
  const bool has_baseline = ends([&] { run_baseline(baseline, job.inputs, options.run); });
  const bool has_rows = ends([&] {
    options.show("in full: the study's rows on the best layout");
    rank_own_rows(job.candidates, job.inputs, found, options, std::bind_front(has_flags, std::cref(job)),
                  places);
    if (folder.empty()) places.omitted.clear();  // there is no best.json
    run_ranked(job.candidates, places.ranking, job.inputs, baseline, options, ranking);
    run_ranked(job.candidates, places.faster, job.inputs, baseline, options, faster);
  });
  const bool has_rest = has_baseline && has_rows && ends([&] {
                          if (asks_what_if && !places.ranking.empty())
                            report.what_if_over = what_if_over(job, found, places.ranking.front().point,
                                                               minutes, options, what_if);
                        });
  report.cut_short = !has_rest;
  line.show("");
  if (!folder.empty()) write_results(folder, report);
  print_search(report, outputs, out);
  return found.interrupted || report.cut_short ? kInterrupted : 0;
}

}  // namespace

static std::vector<std::string> words_of(const TuneOptions& options) {
  std::vector<std::string> words = {"tune", options.file};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  for (const std::string& assignment : options.set) add("--set", assignment);
  const TuneOptions usual;
  const auto number = [](double value) { return formatted("%g", value); };
  add("--space", options.space);
  if (options.budget != usual.budget) add("--budget", std::to_string(options.budget));
  if (options.minutes > 0) add("--minutes", number(options.minutes));
  add("--max-delay", all_joined(options.max_delay, ",", number));
  if (options.gpus > 0) add("--gpus", std::to_string(options.gpus));
  add("--for", options.target);
  if (options.jobs != usual.jobs) add("--jobs", std::to_string(options.jobs));
  if (options.memory.typed) add("--max-memory-GB", number(options.memory.bytes / kBytesPerGB));
  if (options.what_if) words.push_back("--what-if");
  return words;
}

int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop) {
  check_options(options);
  const Share share = chosen_share(options.shard);
  if (!share.is_all() && options.out.empty())
    throw UserError("--shard, mpirun and srun need --out DIR, from which `equipoise merge` takes the shares");
  std::filesystem::path folder = options.out;
  if (!share.is_all()) folder /= share.folder();
  TuneJob job = job_of(request_of(options), options.memory);
  if (options.space.empty() && !options.quiet) {
    log << "note: no --space, so a default one: " << counted(job.candidates.rows.size(), "row") << " on "
        << counted(job.candidates.layouts.size(), "layout");
    log << (options.wide ? ", " + printable(space_json(job.space).dump()) : " (--wide prints it)") << '\n';
  }
  Layout all;  // the number of GPUs is the same for every layout
  all.data = static_cast<int>(job.gpus);
  Notes notes = unlikely_cluster(job.study.cluster, all, job.inputs.profile);
  add(notes, borrowed_network(job.study.cluster, job.gpus, job.inputs.profile));
  for (const Note& note : notes) log << "note: " << text_of(note) << '\n';  // they may change a decision
  job.search.share = share;
  job.search.run.stop = &stop;
  std::unique_ptr<Journal> journal;
  if (!options.out.empty()) {
    for (const char* const file : kResultFiles) require_no_input((folder / file).string());
    json asked = asked_of(job);
    if (!share.is_all()) asked["share"] = {share.index, share.count};
    if (!options.resume) set_aside((folder / kTuneJournal).string(), log);
    journal = std::make_unique<Journal>((folder / kTuneJournal).string(), asked, options.resume);
  }
  const SearchResult found = searched(job, journal.get(), options.minutes, options.quiet, log);
  if (journal && !found.interrupted && !found.timed_out) journal->close();
  if (share.is_all())
    return report_search(job, found, {options, options.out, words_of(options)}, options.minutes,
                         options.what_if, out, log);
  if (found.interrupted) return kInterrupted;
  if (!options.quiet)
    log << "shard " << share.index << '/' << share.count << ": " << counted(found.tried.size(), "candidate")
        << " tried; `equipoise merge OUT " << options.out << "` ranks those of all shards\n";
  return 0;
}

int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop) {
  KnownTrials known;
  PartsFound parts(kTuneJournalKind);
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / kTuneJournal).string();
    JournalText text = read_journal(path);
    parts.add(std::move(text.asked), path);
    known.add(std::move(text.tried));
  }
  TuneJob job = refusing_other_types(
      folders.front(), [&] { return job_of(request_of(parts.whole(), options.jobs), options.memory); });
  if (const json now = inputs_of(job), then = parts.whole().value("inputs", json()); now != then)
    throw UserError("merge: ", folders.front(),
                    ": expected the files that its search has read, found others (",
                    differing(then, now, "files"), ")");
  job.search.known = &known;
  job.search.run.stop = &stop;
  SearchResult found = searched(job, nullptr, options.minutes, options.quiet, log);
  if (found.timed_out) {  // known candidates may come later in the search's order
    const std::int64_t ran = found.ran;
    known.add(std::move(found.tried));
    known.add(std::move(found.few));
    SearchOptions all_known = job.search;
    all_known.only_known = true;
    all_known.budget = std::max(all_known.budget, static_cast<std::int64_t>(known.size()));
    found = search(job.candidates, job.inputs, all_known, nullptr);
    found.ran = ran;
    found.timed_out = true;
  }
  if (!options.quiet)
    log << "note: from the shards: " << grouped(found.trials - found.ran) << " of "
        << counted(found.trials, "trial") << "; the others were made here\n";
  return report_search(job, found, {options, options.out, {}}, options.minutes, options.what_if, out, log);
}

}  // namespace equipoise
