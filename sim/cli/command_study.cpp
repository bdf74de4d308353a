#include "sim/cli/command_study.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <thread>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/staged_folder.h"
#include "policies/base/utf8.h"
#include "sim/cli/progress_line.h"
#include "sim/report/csv.h"
#include "sim/study/json_object.h"
#include "sim/study/outputs.h"
#include "sim/study/planned_memory.h"
#include "sim/study/run_study.h"
#include "sim/study/study_html.h"
#include "sim/study/study_report.h"
#include "sim/study/sweep_table.h"

namespace equipoise {

using nlohmann::json;

namespace {

struct Case {
  std::vector<std::string> assignments;
  std::string name;  // "key=a key=b"; empty without a sweep
  Study study;
};

// "0,3" as numbers; none for "all" and for nothing.
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

// What options of the command name must be in the study. Lanes and CP ranks may be as many as all DP x CP
// ranks (hbp), so that is the bound for both.
void check_options(const StudyOptions& options, const Study& study) {
  const auto check = [](const char* option, const std::string& text, int count) {
    for (const int item : numbers_of(option, text))
      if (item < 0 || item >= count)
        throw UserError(std::string(option) + ": expected 0 to " + std::to_string(count - 1) + ", found " +
                        std::to_string(item));
  };
  const Layout& layout = study.layout;
  if (options.timeline_steps < 0)
    throw UserError("--timeline-steps: expected 0 or more, found " + std::to_string(options.timeline_steps));
  check("--timeline-stages", options.timeline_stages, layout.pipeline);
  check("--timeline-lanes", options.timeline_lanes, layout.data * layout.context);
  check("--timeline-ranks", options.timeline_ranks, layout.data * layout.context);
  StepSettings settings;
  settings.op.stragglers = parse_stragglers(options.stragglers);
  check_stragglers(settings, layout.gpus());
}

// Each profile once: a wrong name is wrong in every case that has it.
void check_profiles(const std::vector<Case>& cases) {
  std::set<std::string> known;
  for (const Case& c : cases) {
    if (c.name.empty() || !known.insert(c.study.cluster.profile).second) continue;
    (void)naming(c.name + ": " + c.study.file + ": cluster.profile",
                 [&] { return Profile::load(c.study.cluster.profile); });
  }
}

// Counted before the cases are made: a few long lists have more than fit anywhere.
void check_case_count(const StudyOptions& options) {
  double cases = 1;
  for (const std::string& sweep : options.sweep)
    cases *= static_cast<double>(std::count(sweep.begin(), sweep.end(), ',') + 1);
  if (cases <= static_cast<double>(options.max_cases)) return;
  std::ostringstream count;
  count << std::fixed << std::setprecision(0) << cases;
  throw UserError("--sweep: expected at most " + std::to_string(options.max_cases) + " cases, found " +
                  count.str() + "; fewer values, or --max-cases " + count.str());
}

// What one case holds until it has run.
double case_bytes(const Case& c) {
  std::size_t bytes = sizeof(Case) + c.name.size() + c.study.policies.size() * sizeof(PolicyRun);
  for (const std::string& assignment : c.assignments) bytes += sizeof(std::string) + assignment.size();
  return static_cast<double>(bytes);
}

// The product of all sweeps, the last one varying fastest. All are read before any runs: a wrong value in the
// last should not be found after hours. Values that are right and do not go together in one case (a TP degree
// that does not divide the heads) leave the other cases alone, unless no case is left.
std::vector<Case> cases_of(const StudyOptions& options, const MemoryLimit& limit) {
  check_case_count(options);
  std::vector<Case> cases(1);
  cases.front().assignments = options.set;
  for (const std::string& sweep : options.sweep) {
    const std::size_t equals = sweep.find('=');
    if (equals == std::string::npos || equals + 1 == sweep.size())
      throw UserError("--sweep " + sweep + ": expected key=a,b,c, e.g. batch.context_window=64K,128K");
    std::vector<Case> product;
    for (const Case& base : cases) {
      std::istringstream values(sweep.substr(equals + 1));
      for (std::string value; std::getline(values, value, ',');) {
        Case next = base;
        const std::string assignment = sweep.substr(0, equals + 1) + value;
        next.assignments.push_back(assignment);
        if (!next.name.empty()) next.name += ' ';
        next.name += printable(assignment);
        product.push_back(std::move(next));
      }
    }
    cases = std::move(product);
  }
  for (Case& c : cases) {
    const auto read = [&] {
      c.study =
          c.name.empty() ? read_study(options.file, c.assignments) : read_case(options.file, c.assignments);
      if (c.study.impossible.empty()) check_options(options, c.study);
      return 0;
    };
    (void)(c.name.empty() ? read() : naming(c.name, read));
    if (&c == &cases.front())
      require_memory("--sweep: " + std::to_string(cases.size()) + " cases",
                     case_bytes(c) * static_cast<double>(cases.size()), limit, "fewer values");
  }
  check_profiles(cases);
  const bool any_possible =
      std::any_of(cases.begin(), cases.end(), [](const Case& c) { return c.study.impossible.empty(); });
  if (!any_possible) throw UserError(cases.front().name + ": " + cases.front().study.impossible);
  return cases;
}

std::string directory_name(const std::string& case_name) {
  std::string name = case_name;
  for (char& c : name)
    if (c == '/' || c == ' ') c = '_';
  return name;
}

CounterSelection parse_counters(const std::string& text) {
  CounterSelection selection{false, false};
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == "memory")
      selection.memory = true;
    else if (item == "tokens")
      selection.tokens = true;
    else if (text != "none")
      throw UserError("--timeline-counters: expected memory, tokens or none, found " + item);
  }
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

RunStudyOptions run_options(const StudyOptions& options, Format format) {
  RunStudyOptions run;
  run.steps = step_settings(options);
  if (options.chakra && (options.out.empty() || run.steps.fidelity == Fidelity::stage))
    throw UserError("--chakra needs --out DIR and --fidelity op");
  run.jobs =
      options.jobs > 0 ? options.jobs : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  run.keep_plans = !options.out.empty();
  run.ignore_memory = options.ignore_memory;
  run.record_gpus = !options.out.empty() || format == Format::json;
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

// The results of all cases in one format. A single study is printed at once, a sweep at its end.
class Printer {
 public:
  Printer(Format format, bool sweep, std::ostream& out) : format_(format), sweep_(sweep), out_(out) {}

  void add(const std::string& name, const Study& study, const StudyResult& result) {
    if (format_ == Format::table) {
      if (sweep_)
        table_.add(name, study, result);
      else
        out_ << study_table(study, result) << std::flush;
    } else if (format_ == Format::json) {
      summaries_.push_back(summary_json(study, result));
      if (!name.empty()) summaries_.back()["case"] = name;
    } else {
      std::istringstream lines(summary_csv(study, result));
      std::string line;
      std::getline(lines, line);
      if (csv_.empty()) csv_ = (sweep_ ? "case," : "") + line + "\n";
      while (std::getline(lines, line)) csv_ += (sweep_ ? csv_cell(name) + "," : "") + line + "\n";
    }
  }

  void finish() {
    if (sweep_ && format_ == Format::json) out_ << json(summaries_).dump(2) << '\n';
    if (!sweep_ && !summaries_.empty()) out_ << summaries_.front().dump(2) << '\n';
    if (!table_.empty()) out_ << table_.text();
    out_ << csv_;
  }

 private:
  Format format_;
  bool sweep_;
  std::ostream& out_;
  SweepTable table_;
  std::vector<json> summaries_;
  std::string csv_;
};

// A case of a sweep that cannot run at all keeps the others' results: all its rows are refused.
StudyResult study_of(const Case& c, const StudyOptions& options, const RunStudyOptions& run,
                     const MemoryLimit& limit) {
  if (!c.study.impossible.empty()) return refused_study(c.study, c.study.impossible);
  std::optional<StudyInputs> inputs;
  try {
    inputs = load_inputs(c.study);
    check_planned_run(c.study, *inputs, run, limit, options.max_output_GB);
  } catch (const UserError& e) {
    if (c.name.empty()) throw;
    return refused_study(c.study, e.what());
  }
  return run_study(c.study, *inputs, run);
}

void run_case(const Case& c, const StudyOptions& options, RunStudyOptions& run, const MemoryLimit& limit,
              Printer& printer, SweepPage& page, std::ostream& log) {
  std::optional<StagedFolder> folder;
  if (!options.out.empty()) {
    folder.emplace(std::filesystem::path(options.out) / directory_name(c.name), "--out");
    run.details.directory = folder->path().string();
  }
  const StudyResult result = [&] {
    const ProgressLine progress(log, !options.quiet);
    std::string row;
    std::optional<TimeLeft> left;
    run.progress = [&](const std::string& label) {
      row = (c.name.empty() ? "" : c.name + ": ") + label;
      left.emplace();
      progress.show(row);
    };
    run.progress_of_row = [&](double share) {
      if (const std::string text = left->text(share); !text.empty()) progress.show(row + ": " + text);
    };
    return study_of(c, options, run, limit);
  }();
  if (!options.quiet) {
    const std::string which = c.name.empty() ? "note: " : "note: " + c.name + ": ";
    const auto print = [&](const std::vector<std::string>& notes) {
      for (const std::string& note : notes) log << which << printable(note) << '\n';
    };
    print(c.study.notes);
    print(result.notes);
    for (const PolicyResult& policy : result.policies) print(policy.notes);
  }
  if (folder) {
    write_outputs(folder->path().string(), c.study, result);
    folder->commit();
    if (!c.name.empty()) page.add(c.assignments, directory_name(c.name), c.study, result);
  }
  printer.add(c.name, c.study, result);
}

}  // namespace

int run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  const Format format = parse_format(options.format);
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  const std::vector<Case> cases = cases_of(options, limit);
  RunStudyOptions run = run_options(options, format);
  for (const Case& c : cases) {
    const auto check = [&] {
      check_planned_memory(c.study, foreseen_documents(c.study), run, limit);
      return 0;
    };
    (void)(c.name.empty() ? check() : naming(c.name, check));
  }
  run.stop = &stop;
  Printer printer(format, !options.sweep.empty(), out);
  SweepPage page;
  std::size_t finished = 0;
  try {
    for (const Case& c : cases) {
      const auto ran = [&] {
        run_case(c, options, run, limit, printer, page, log);
        return 0;
      };
      (void)(c.name.empty() ? ran() : naming(c.name, ran));
      ++finished;
    }
  } catch (const Interrupted&) {
    log << "interrupted";
    if (cases.size() > 1) log << ": " << finished << " of " << cases.size() << " cases are finished";
    log << '\n';
  }
  if (!options.out.empty() && !options.sweep.empty() && finished > 0)
    write_file_atomically((std::filesystem::path(options.out) / "report.html").string(), page.html());
  printer.finish();
  constexpr int kInterrupted = 130;  // as shells say it: 128 + SIGINT
  return finished == cases.size() ? 0 : kInterrupted;
}

}  // namespace equipoise
