// The simulator for the page: one function that takes the name of a request and its argument as JSON, and
// gives JSON. A study is opened, its rows are run one by one in the order that the page wants, and the page's
// report is made of those that have run. Files are those of the virtual file system, in which worker.js puts
// them.
//
//   lists  {}                   names of models, policies, profiles, frameworks, traces: `equipoise list`
//   layout {study, gpus}        {parallel}: the fastest layout that fits, or null
//   open   {study, file, sweep} the cases, one without a sweep: [{name, baseline, rows: [{label, policy}]}]
//   run    {case, row}          runs the row: {status}, or {refused} where no row of the case runs
//   report {case}               {html, summary} of the rows that have run
//   add    {case}               adds the case's rows to the page of the sweep
//   sweep  {}                   {html} of the cases that were added
//   trace  {file}               reads a file of lengths: {documents, tokens, longest}
//   hash   {file}               {sha256}
//
// What a user can do wrong is {"error": one line}.
#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "sim/cli/command_list.h"
#include "sim/cli/study_case.h"
#include "sim/report/sha256.h"
#include "sim/report/study_page.h"
#include "sim/report/summary_json.h"
#include "sim/report/sweep_page.h"
#include "sim/study/estimate.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/run_study.h"
#include "sim/tune/proposed_layout.h"

namespace equipoise {
namespace {

using nlohmann::json;

const MemoryLimit kMemory{2 * kBytesPerGB, "a page's memory", true};

// As `study --out` has them.
RunStudyOptions run_options(std::size_t rows) {
  RunStudyOptions options;
  options.record_gpus = true;
  options.details.directory = "/out";
  options.details.most_ops = kOpsOfPage / std::max<std::size_t>(1, rows);
  return options;
}

// A case and the rows of it that have run, by their place in the study.
struct OpenCase {
  StudyCase of;
  RunStudyOptions options;
  std::optional<StudyInputs> inputs;  // read when its first row runs
  std::map<std::size_t, PolicyResult> rows;
  std::string refused;  // why none runs
};

// The result of the rows so far, of a study that has only them. Throws UserError where none has run.
std::pair<Study, StudyResult> so_far(const OpenCase& one) {
  if (!one.refused.empty()) return {one.of.study, refused_study(one.of.study, one.refused)};
  if (one.rows.empty()) throw UserError("a report: expected a row that has run, found none");
  Study study = one.of.study;
  study.policies.clear();
  std::vector<PolicyResult> rows;
  for (const auto& [place, row] : one.rows) {
    study.policies.push_back(one.of.study.policies[place]);
    rows.push_back(row);
  }
  StudyResult result = study_of_rows(study, *one.inputs, one.options, std::move(rows));
  result.incomplete = one.rows.size() < one.of.study.policies.size();
  return {std::move(study), std::move(result)};
}

class Simulator {
 public:
  json lists(const json&) {
    json lists;
    for (const char* what : {"models", "policies", "profiles", "frameworks", "traces"})
      for (const ListedName& one : list_of(what))
        lists[what].push_back({{"name", one.name}, {"kind", one.kind}, {"summary", one.summary}});
    return lists;
  }

  json layout(const json& asked) {
    const auto found = proposed_layout(asked.at("study"), asked.at("gpus"), RunStudyOptions{});
    if (!found) return {{"parallel", nullptr}};
    return {
        {"parallel", found->parallel}, {"free_bytes", found->free_bytes}, {"simulated", found->simulated}};
  }

  json open(const json& asked) {
    cases_.clear();
    sweep_ = {};
    json opened = json::array();
    const AskedStudy study{
        asked.at("study"), asked.at("file"), {}, asked.value("sweep", std::vector<std::string>())};
    for (StudyCase& one : read_cases(study, kDefaultCases, kMemory)) {
      json rows = json::array();
      for (const PolicyRun& row : one.study.policies)
        rows.push_back({{"label", row.label}, {"slow", row.packs_slowly()}});
      opened.push_back({{"name", one.name}, {"rows", std::move(rows)}, {"baseline", one.study.baseline}});
      RunStudyOptions options = run_options(one.study.policies.size());
      std::string refused = one.study.impossible;
      cases_.push_back({std::move(one), std::move(options), {}, {}, std::move(refused)});
    }
    return opened;
  }

  json run(const json& asked) {
    OpenCase& one = case_of(asked);
    const auto place = asked.at("row").get<std::size_t>();
    if (one.refused.empty() && !one.inputs) read_inputs(one);
    if (!one.refused.empty()) return {{"refused", one.refused}};
    one.rows[place] = run_row(one.of.study, *one.inputs, one.of.study.policies.at(place), one.options);
    return {{"status", name_of(one.rows[place].status)}};
  }

  json report(const json& asked) {
    const auto [study, result] = so_far(case_of(asked));
    return {{"html", report_html(study, result)}, {"summary", summary_json(study, result)}};
  }

  json add(const json& asked) {
    OpenCase& one = case_of(asked);
    const auto [study, result] = so_far(one);
    sweep_.add(case_of_page(one.of.assignments, "", study, result));
    one.inputs.reset();
    one.rows.clear();
    return json::object();
  }

  json sweep(const json&) { return {{"html", sweep_.html()}}; }

  json trace(const json& asked) {
    const Trace read = read_trace(asked.at("file"));
    return {{"documents", read.lengths.size()},
            {"tokens", std::accumulate(read.lengths.begin(), read.lengths.end(), std::int64_t{0})},
            {"longest", *std::max_element(read.lengths.begin(), read.lengths.end())}};
  }

  json hash(const json& asked) { return {{"sha256", sha256(read_text_file(asked.at("file")))}}; }

 private:
  OpenCase& case_of(const json& asked) { return cases_.at(asked.value("case", std::size_t{0})); }

  // Of a sweep, a case whose documents do not do is a case without results, as the program has it.
  static void read_inputs(OpenCase& one) {
    try {
      one.inputs = load_inputs(one.of.study);
      check_estimate(one.of.study, one.inputs->documents, one.options, kMemory);
    } catch (const UserError& e) {
      one.inputs.reset();
      if (one.of.name.empty()) throw;
      one.refused = e.what();
    }
  }

  std::vector<OpenCase> cases_;
  SweepPage sweep_;
};

json answer(const std::string& request, const json& argument) {
  static Simulator simulator;
  using Answer = json (Simulator::*)(const json&);
  static const std::map<std::string, Answer> kAnswers = {
      {"lists", &Simulator::lists}, {"layout", &Simulator::layout}, {"open", &Simulator::open},
      {"run", &Simulator::run},     {"report", &Simulator::report}, {"add", &Simulator::add},
      {"sweep", &Simulator::sweep}, {"trace", &Simulator::trace},   {"hash", &Simulator::hash}};
  forget_inputs();  // a page's files change
  try {
    return (simulator.*kAnswers.at(request))(argument);
  } catch (const std::bad_alloc&) {
    return {{"error", "the page's memory does not suffice; the program has no such limit"}};
  } catch (const std::exception& e) {
    return {{"error", e.what()}};
  }
}

}  // namespace
}  // namespace equipoise

// The text belongs to this function until it is called again.
extern "C" __attribute__((used, visibility("default"))) const char* equipoise_answer(const char* request,
                                                                                     const char* argument) {
  static std::string text;
  using nlohmann::json;
  text =
      equipoise::answer(request, json::parse(argument)).dump(-1, ' ', false, json::error_handler_t::replace);
  return text.c_str();
}
