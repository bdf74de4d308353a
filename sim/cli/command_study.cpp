#include "sim/cli/command_study.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <thread>

#include "policies/error.h"
#include "sim/cli/staged_folder.h"
#include "sim/report/csv.h"
#include "sim/study/study_report.h"
#include "traces/atomic_file.h"

namespace equipoise {

using nlohmann::json;

namespace {

struct Case {
  std::vector<std::string> assignments;
  std::string name;  // "key=a key=b"; empty without a sweep
};

// The product of all sweeps, the last one varying fastest.
std::vector<Case> cases_of(const StudyOptions& options) {
  std::vector<Case> cases = {{options.set, ""}};
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
        next.name += (next.name.empty() ? "" : " ") + assignment;
        product.push_back(std::move(next));
      }
    }
    cases = std::move(product);
  }
  return cases;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path.string());
  file.write(text);
  file.commit();
}

void write_results(const std::filesystem::path& directory, const Study& study, const StudyResult& result) {
  write_file(directory / "summary.json", summary_json(study, result).dump(2) + "\n");
  write_file(directory / "steps.csv", steps_csv(result));
  write_file(directory / "gpus.csv", gpus_csv(study, result));
  write_file(directory / "plan.json", plans_json_text(study, result));
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

}  // namespace

void run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log) {
  const Format format = parse_format(options.format);
  const std::vector<Case> cases = cases_of(options);
  RunStudyOptions run;
  run.steps = step_settings(options);
  if (options.chakra && (options.out.empty() || run.steps.fidelity == Fidelity::stage))
    throw UserError("--chakra needs --out DIR and --fidelity op");
  run.jobs =
      options.jobs > 0 ? options.jobs : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  run.keep_plans = !options.out.empty();
  run.record_gpus = !options.out.empty() || format == Format::json;
  std::vector<json> summaries;
  std::string csv;
  for (const Case& c : cases) {
    const Study study = read_study(options.file, c.assignments);
    std::optional<StagedFolder> folder;
    if (!options.out.empty()) {
      folder.emplace(std::filesystem::path(options.out) / directory_name(c.name), "--out");
      run.details.directory = folder->path().string();
      run.details.steps = options.timeline_steps;
      run.details.selection = {options.timeline_lanes, options.timeline_stages, options.timeline_ranks,
                               options.no_fold_tp, parse_counters(options.timeline_counters)};
      run.details.chakra = options.chakra;
    }
    const StudyResult result = run_study(study, run);
    if (!options.quiet) {
      for (const std::string& note : study.notes) log << "note: " << note << '\n';
      for (const PolicyResult& policy : result.policies)
        for (const std::string& note : policy.notes) log << "note: " << note << '\n';
    }
    if (folder) {
      write_results(folder->path(), study, result);
      folder->commit();
    }
    if (format == Format::table) {
      if (!c.name.empty()) out << "== " << c.name << '\n';
      out << study_table(study, result) << std::flush;
    } else if (format == Format::json) {
      summaries.push_back(summary_json(study, result));
      if (!c.name.empty()) summaries.back()["case"] = c.name;
    } else {
      std::istringstream lines(summary_csv(study, result));
      std::string line;
      std::getline(lines, line);
      if (csv.empty()) csv = (options.sweep.empty() ? "" : "case,") + line + "\n";
      while (std::getline(lines, line))
        csv += (options.sweep.empty() ? "" : csv_cell(c.name) + ",") + line + "\n";
    }
  }
  if (format == Format::json)
    out << (options.sweep.empty() ? summaries.front() : json(summaries)).dump(2) << '\n';
  if (format == Format::csv) out << csv;
}

}  // namespace equipoise
