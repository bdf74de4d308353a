#include "sim/python/core/open_study.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "sim/limits/memory_limit.h"
#include "sim/python/core/bindings.h"
#include "sim/report/plan_json.h"
#include "sim/report/receipt.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_outputs.h"
#include "sim/report/study_screen.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/study/check_result.h"
#include "sim/study/estimate.h"
#include "sim/study/read/naming.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/judge.h"
#include "traces/json_text.h"

namespace equipoise::python {
namespace {

using nlohmann::json;

struct RunArguments {
  std::string fidelity = "stage";
  int jobs = 0;  // 0: all cores
  bool ignore_memory = false;
  std::string out;  // folder; nothing is written if empty
  double max_memory_GB = 0;
  bool verify = false;
};

// A study's results as text: what the program prints and writes.
struct Texts {
  std::string summary, table, steps, gpus, plans, checks;
  std::vector<std::string> notes;
};

class OpenStudy {
 public:
  // Errors name the study by `path`, and the study's paths are relative to its folder. In a named case of a
  // sweep, keys that do not go together make refused rows instead of an error.
  OpenStudy(const std::string& text, const std::string& path, const std::vector<std::string>& assignments,
            std::string case_name)
      : case_(std::move(case_name)) {
    const nb::gil_scoped_release released;
    forget_inputs();  // from the study before
    json file = parse_json(text, path);
    set_study_keys(file, assignments);
    text_ = file.dump();
    study_ = case_.empty() ? parse_study(file, path) : naming(case_, [&] { return parse_case(file, path); });
    await_plans(study_);
  }

  [[nodiscard]] std::vector<std::string> labels() const {
    return each_of(study_.policies, &PolicyRun::label);
  }

  // The file's values, including the assignments.
  [[nodiscard]] const std::string& text() const { return text_; }

  // Which cases of a sweep, in their order, carry slowdowns over, so that all have one rule as in the
  // program's sweeps.
  static std::vector<bool> one_rule(const std::vector<OpenStudy*>& cases) {
    const nb::gil_scoped_release released;
    std::vector<Study*> studies;
    for (OpenStudy* const one : cases) studies.push_back(&one->study_);
    std::vector<bool> carried;
    for (const Study* study : studies) carried.push_back(study->framework.carry_slowdowns == true);
    use_one_rule(studies);
    for (std::size_t i = 0; i < studies.size(); ++i)
      carried[i] = !carried[i] && studies[i]->framework.carry_slowdowns == true;
    return carried;
  }
  void carry_slowdowns() { equipoise::carry_slowdowns(study_); }

  // What a row's policy receives in addition to the documents.
  [[nodiscard]] std::string shape(const std::string& label) const {
    return shape_of(row_of(label)->pack, study_.steps, inputs_ ? &inputs_->documents : nullptr);
  }

  // How the row is sharded, by the keys of its entry: where the entry says nothing, as the baseline is.
  [[nodiscard]] std::string sharding(const std::string& label) const {
    const PolicyRun& row = *row_of(label);
    json keys{{"shard", row.shard}};
    for (const ShardParameter& key : shard_parameters())
      if (const ParameterValue value = key.get(row.sharding); value != key.get(default_sharding()))
        keys[std::string(key.key)] = std::visit([](const auto& held) { return json(held); }, value);
    return keys.dump();
  }

  // The study's documents as its global batches: rows of batch, document, begin, end.
  nb::object documents(double max_memory_GB) {
    {
      const nb::gil_scoped_release released;
      if (!study_.impossible.empty()) throw UserError(study_.impossible);
      load();
      RunStudyOptions planned;
      planned.keep_plans = true;
      check_estimate(study_, inputs_->documents, planned, memory_limit(max_memory_GB), kDefaultOutputGB);
    }
    return rows_of(inputs_->documents);
  }

  // Refuses a row whose function failed; the reason is one line.
  void refuse(const std::string& label, const std::string& reason) { failed_[label] = reason; }

  void set_plan(const std::string& label, const std::string& text) {
    const nb::gil_scoped_release released;
    give_plan(study_.policies[at(row_of(label) - study_.policies.begin())], study_,
              parse_json(text, "policy " + label));
  }

  Texts run(const RunArguments& arguments) {
    return interruptible([&](const std::atomic<bool>& stop) { return run_until(arguments, stop); });
  }

 private:
  [[nodiscard]] std::vector<PolicyRun>::const_iterator row_of(const std::string& label) const {
    const auto row = std::ranges::find(study_.policies, label, &PolicyRun::label);
    if (row == study_.policies.end() || row->plan == nullptr)
      throw UserError("no row \"", label, "\" that waits for a plan");
    return row;
  }

  void load() {
    if (!inputs_) inputs_ = load_inputs(study_);
  }

  CheckedResult result_of(RunStudyOptions options, const MemoryLimit& limit) {
    if (!study_.impossible.empty()) return {refused_study(study_, study_.impossible), {}};
    try {
      load();
      check_estimate(study_, inputs_->documents, options, limit, kDefaultOutputGB);
    } catch (const UserError& e) {
      if (case_.empty()) throw;
      return {refused_study(study_, e.what()), {}};
    }
    CheckedResult checked = run_checked(study_, *inputs_, options);
    for (PolicyResult& row : checked.result.policies)  // because its plan is empty, the validator refused it
      if (const auto why = failed_.find(row.run.label); why != failed_.end())
        row.reasons = {fault_note(why->second)};
    return checked;
  }

  Texts run_until(const RunArguments& arguments, const std::atomic<bool>& stop) {
    RunStudyOptions options;
    options.steps.fidelity = parse_fidelity(arguments.fidelity);
    options.jobs = arguments.jobs > 0 ? arguments.jobs
                                      : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    options.record_gpus = true;
    options.keep_plans = true;
    options.ignore_memory = arguments.ignore_memory;
    options.verify = arguments.verify;
    options.stop = &stop;
    // The command draws the same lanes and stages by default.
    if (options.steps.fidelity == Fidelity::op)
      options.details.selection.lanes = options.details.selection.stages = {0};
    std::optional<StagedFolder> folder;
    if (!arguments.out.empty()) {
      folder.emplace(arguments.out, "out");
      options.details.directory = folder->path().string();
    }
    const auto [result, checks] = result_of(options, memory_limit(arguments.max_memory_GB));
    if (folder) {
      write_outputs(folder->path().string(), study_, result, receipt(options, result, checks));
      folder->commit();
    }
    Texts texts{summary_json(study_, result).dump(),
                study_screen(study_, result, {.is_program = false}),
                steps_csv(result),
                gpus_csv(result),
                plans_json_text(study_, result),
                checks_json(checks).dump(),
                {}};
    auto [warnings, others] = noted_of(notes_of(study_, result), result);
    for (Warning& warning : warnings) texts.notes.push_back(std::move(warning.text));
    texts.notes.insert(texts.notes.end(), others.begin(), others.end());
    return texts;
  }

  // The receipt that `equipoise study --out` writes; a case that cannot run has none.
  [[nodiscard]] json receipt(const RunStudyOptions& options, const StudyResult& result,
                             const std::vector<Check>& checks) const {
    if (!inputs_) return nullptr;
    return receipt_of({EQUIPOISE_VERSION, study_.file, json::parse(text_), options_json(options)}, study_,
                      *inputs_, result, checks);
  }

  std::string case_;  // its name in a sweep; empty outside one
  std::string text_;
  Study study_;
  std::optional<StudyInputs> inputs_;
  std::map<std::string, std::string> failed_;  // by label: the exception of a function
};

}  // namespace

std::string shape_of(PackOptions batch, std::int64_t steps, const DocumentSet* documents) {
  if (documents != nullptr) batch.global_tokens = mean_global_tokens(documents->batches, batch);
  return json{{"context_window", batch.context_window},
              {"sequences_per_step", batch.sequences_per_step},
              {"documents_per_step", batch.documents_per_step},
              {"micro_batch_size", batch.micro_batch_size},
              {"micro_batches", micro_batches_of_step(batch)},
              {"lanes", batch.lanes},
              {"context", batch.context},
              {"stages", batch.stages},
              {"steps", steps}}
      .dump();
}

nb::object rows_of(const DocumentSet& documents) {
  std::vector<std::int64_t> rows;
  for (std::size_t b = 0; b < documents.batches.size(); ++b)
    for (const Slice& s : documents.batches[b].slices)
      rows.insert(rows.end(), {static_cast<std::int64_t>(b), s.document, s.begin, s.end});
  return array_of(std::move(rows), 4);
}

void bind_studies(nb::module_& m) {
  m.def(
      "read_json",
      [](const std::string& path) {
        const std::string text = read_json_file(path).dump();
        forget_inputs();  // because another plan may have been written to the place of one that was read
        return text;
      },
      nb::arg("path"), "A file's JSON, without its comments.");
  m.def(
      "write_text",
      [](const std::string& path, const std::string& text) { write_file_atomically(path, text); },
      nb::arg("path"), nb::arg("text"), "Writes a file completely or not at all.");
  m.attr("PLAN_OF_CALLER") = std::string(kPlanOfCaller);
  nb::class_<Texts>(m, "Texts", "What a study prints and writes.")
      .def_ro("summary", &Texts::summary, "equipoise.summary/1")
      .def_ro("table", &Texts::table)
      .def_ro("steps", &Texts::steps, "CSV, a line for each policy and step")
      .def_ro("gpus", &Texts::gpus, "CSV, a line for each policy and GPU")
      .def_ro("plans", &Texts::plans, "equipoise.plans/1")
      .def_ro("checks", &Texts::checks, "JSON: what `verify` checked")
      .def_ro("notes", &Texts::notes);
  nb::class_<OpenStudy>(m, "OpenStudy", "A study that was read and not yet run.")
      .def(nb::init<const std::string&, const std::string&, const std::vector<std::string>&, std::string>(),
           nb::arg("text"), nb::arg("path"), nb::arg("assignments"), nb::arg("case_name") = "")
      .def_prop_ro("text", &OpenStudy::text)
      .def_prop_ro("labels", &OpenStudy::labels)
      .def("shape", &OpenStudy::shape, nb::arg("label"), "What the policy of a row is told, as JSON.")
      .def("sharding", &OpenStudy::sharding, nb::arg("label"), "The keys of its entry that shard a row.")
      .def_static("one_rule", &OpenStudy::one_rule, nb::arg("cases"))
      .def("carry_slowdowns", &OpenStudy::carry_slowdowns)
      .def("documents", &OpenStudy::documents, nb::arg("max_memory_GB") = 0.0,
           "Rows of batch, document, begin, end.")
      .def("refuse", &OpenStudy::refuse, nb::arg("label"), nb::arg("reason"))
      .def("set_plan", &OpenStudy::set_plan, nb::arg("label"), nb::arg("plan"))
      .def(
          "run",
          [](OpenStudy& study, const std::string& fidelity, int jobs, bool ignore_memory,
             const std::string& out, double max_memory_GB, bool verify) {
            return study.run({fidelity, jobs, ignore_memory, out, max_memory_GB, verify});
          },
          nb::arg("fidelity") = "stage", nb::arg("jobs") = 0, nb::arg("ignore_memory") = false,
          nb::arg("out") = "", nb::arg("max_memory_GB") = 0.0, nb::arg("verify") = false);
}

}  // namespace equipoise::python
