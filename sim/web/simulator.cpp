// The simulator for the page: one function that takes the name of a request and its argument as JSON, and
// gives JSON. A study is opened, its rows are run one by one in the order that the page wants, and the page's
// report is made of those that have run. Files are those of the virtual file system, in which worker.js puts
// them.
//
//   lists  {}                   {name, kind} of models, policies, profiles, frameworks and traces, and the
//                               folders, as none of which a file of the user's can be named
//   layout {study, gpus}        {parallel}: the fastest layout that fits, or null
//   open   {study, file, sweep} the cases, one without a sweep: [{name, baseline, rows: [{label, policy}]}]
//   run    {case, row}          runs the row, unless no row of the case runs
//   report {case}               {html, summary} of the rows that have run
//   plans  {case}               {text}: plan.json of the rows that have run
//   point  {case}               what the page of a sweep shows of the case
//   sweep  {points}             {html}
//   trace  {file}               reads a file of lengths: {text, html}
//   hash   {file}               {sha256}
//
// What a user can do wrong is {"error": one line}.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/cli/command_list.h"
#include "sim/cli/study_case.h"
#include "sim/report/plan_json.h"
#include "sim/report/sha256.h"
#include "sim/report/study_page.h"
#include "sim/report/summary_json.h"
#include "sim/report/sweep_page.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/run_study.h"
#include "sim/tune/proposed_layout.h"

namespace equipoise {
namespace {

using nlohmann::json;

const MemoryLimit kMemory{2 * kBytesPerGB, "a page's memory", true};

// Where a row writes what `study --out` has in addition to the report. These files are in memory, so that
// none outlives its row.
const std::filesystem::path kOut = "/tmp/out";

struct OutFolder {
  ~OutFolder() {
    std::error_code ignored;  // it is not there where no row ran
    std::filesystem::remove_all(kOut, ignored);
  }
};

// As `study --out` has them.
RunStudyOptions run_options(std::size_t rows) {
  RunStudyOptions options;
  options.record_gpus = true;
  options.details.directory = kOut.string();
  options.details.most_ops = kOpsOfPage / std::max<std::size_t>(1, rows);
  return options;
}

// A case and the rows of it that have run, by their place in the study.
struct OpenCase {
  StudyCase of;
  RunStudyOptions options;
  std::optional<CaseInputs> inputs;  // read when its first row runs
  std::map<std::size_t, PolicyResult> rows;
};

// The result of the rows so far, of a study that has only them. Throws UserError where none has run.
std::pair<Study, StudyResult> so_far(const OpenCase& one) {
  if (one.inputs && !one.inputs->read)
    return {one.of.study, refused_study(one.of.study, one.inputs->refused)};
  if (one.rows.empty()) throw UserError("a report: expected a row that has run, found none");
  Study study = one.of.study;
  study.policies.clear();
  std::vector<PolicyResult> rows;
  for (const auto& [place, row] : one.rows) {
    study.policies.push_back(one.of.study.policies[place]);
    rows.push_back(row);
  }
  StudyResult result = study_of_rows(study, *one.inputs->read, one.options, std::move(rows));
  result.incomplete = one.rows.size() < one.of.study.policies.size();
  return {std::move(study), std::move(result)};
}

class Simulator {
 public:
  json lists(const json&) {
    json lists;
    for (const char* what : {"models", "policies", "profiles", "frameworks", "traces"})
      for (const ListedName& one : list_of(what))
        lists[what].push_back({{"name", one.name}, {"kind", one.kind}});
    for (const auto& entry : std::filesystem::directory_iterator("/"))
      if (entry.is_directory()) lists["folders"].push_back(entry.path().filename().string());
    return lists;
  }

  json layout(const json& asked) {
    const auto found = proposed_layout(asked.at("study"), asked.at("gpus"), RunStudyOptions{});
    return {{"parallel", found ? found->parallel : json(nullptr)}};
  }

  json open(const json& asked) {
    cases_.clear();
    json opened = json::array();
    const AskedStudy study{
        asked.at("study"), asked.at("file"), {}, asked.value("sweep", std::vector<std::string>())};
    for (StudyCase& one : read_cases(study, kDefaultCases, kMemory)) {
      json rows = json::array();
      for (const PolicyRun& row : one.study.policies)
        rows.push_back({{"label", row.label}, {"slow", row.packs_slowly()}});
      opened.push_back({{"name", one.name}, {"rows", std::move(rows)}, {"baseline", one.study.baseline}});
      RunStudyOptions options = run_options(one.study.policies.size());
      options.keep_plans = one.name.empty();  // nobody asks for those of a sweep
      cases_.push_back({std::move(one), std::move(options), {}, {}});
    }
    return opened;
  }

  json run(const json& asked) {
    OpenCase& one = case_of(asked);
    const auto place = asked.at("row").get<std::size_t>();
    if (!one.inputs) one.inputs = inputs_of(one.of, one.options, kMemory);
    const OutFolder emptied_after;
    if (one.inputs->read)
      one.rows[place] =
          run_row(one.of.study, *one.inputs->read, one.of.study.policies.at(place), one.options);
    return json::object();
  }

  json report(const json& asked) {
    const auto [study, result] = so_far(case_of(asked));
    return {{"html", report_html(study, result)}, {"summary", summary_json(study, result)}};
  }

  json plans(const json& asked) {
    const auto [study, result] = so_far(case_of(asked));
    return {{"text", plans_json_text(study, result)}};
  }

  json point(const json& asked) {
    OpenCase& one = case_of(asked);
    const auto [study, result] = so_far(one);
    one.inputs.reset();
    one.rows.clear();
    return case_of_page(one.of.assignments, "", study, result);
  }

  json sweep(const json& asked) {
    SweepPage page;
    for (const json& point : asked.at("points")) page.add(point);
    return {{"html", page.html()}};
  }

  json trace(const json& asked) {
    const Trace read = read_trace(asked.at("file"));
    const std::string text =
        concatenated(counted(read.lengths.size(), "document"), ", ", grouped(sum_of(read.lengths)),
                     " tokens, longest ", grouped(std::ranges::max(read.lengths)));
    return {{"text", text}, {"html", lengths_html(asked.at("file"), text, read.lengths)}};
  }

  json hash(const json& asked) { return {{"sha256", sha256(read_text_file(asked.at("file")))}}; }

 private:
  OpenCase& case_of(const json& asked) { return cases_.at(asked.value("case", std::size_t{0})); }

  std::vector<OpenCase> cases_;
};

json answer(const std::string& request, const json& argument) {
  static Simulator simulator;
  using Answer = json (Simulator::*)(const json&);
  static const std::map<std::string, Answer> kAnswers = {
      {"lists", &Simulator::lists}, {"layout", &Simulator::layout}, {"open", &Simulator::open},
      {"run", &Simulator::run},     {"report", &Simulator::report}, {"plans", &Simulator::plans},
      {"point", &Simulator::point}, {"sweep", &Simulator::sweep},   {"trace", &Simulator::trace},
      {"hash", &Simulator::hash}};
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
