// `equipoise verify` and `study --verify`: that a result is what its inputs give, and can be given again.
//
// A receipt stands in the summary.json of `study --out`: the study as it was run, and hashes of its inputs
// and of each row. `verify` hashes the summary's rows again, then the inputs as they are now, then runs the
// study and hashes what comes out. `study --verify` looks at one result from the other side: plans by the
// validator, times by the engine of the other fidelity, a step's schedule, timeline and memory by the oracle,
// the table by its own sums.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/module.h"
#include "policies/base/text.h"
#include "profiler/profile/json_fields.h"
#include "sim/cli/study_commands.h"
#include "sim/metrics/metrics.h"
#include "sim/report/result_files.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/study/planned_memory.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/run_study.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr double kFidelitiesAgree = 0.001;  // specs/5: of a makespan, and they do to the picosecond

bool same(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

// What the row's table says of its steps, summed once more. Empty where it is right.
std::string wrong_sum(const PolicyResult& row, const PolicyResult& baseline, std::int64_t gpus) {
  const Metrics& m = row.metrics;
  double seconds = 0, full = 0;
  int full_steps = 0;
  for (std::size_t s = 0; s < row.steps.size(); ++s) {
    const double step = to_seconds(row.steps[s].times.makespan);
    seconds += step;
    if (row.tail[s] != 0) continue;
    full += step;
    ++full_steps;
  }
  if (!same(seconds, m.seconds)) return "total_seconds is not the sum of its steps";
  if (full_steps > 0 && m.step_seconds && !same(full / full_steps, *m.step_seconds))
    return "step_seconds is not the mean of its full steps";
  if (m.tokens_per_second_per_gpu &&
      !same(m.tokens / seconds / static_cast<double>(gpus), *m.tokens_per_second_per_gpu))
    return "tokens_per_second_per_gpu is not tokens / (seconds x GPUs)";
  const Metrics& b = baseline.metrics;
  if (m.speedup && !same(b.seconds / b.tokens / (m.seconds / m.tokens), *m.speedup))
    return "speedup is not the ratio of seconds a token";
  if (row.status == RowStatus::ok && row.peak.parts.total() > row.capacity_bytes)
    return "its memory is above the GPU's, and it is not out of memory";
  return "";
}

// Whether an engine that shares no event loop with the one that was used comes to the same times.
std::string wrong_time(const PolicyResult& row, const PolicyResult& other) {
  if (row.steps.size() != other.steps.size()) return "the other fidelity has another number of steps";
  for (std::size_t s = 0; s < row.steps.size(); ++s) {
    const double a = to_seconds(row.steps[s].times.makespan), b = to_seconds(other.steps[s].times.makespan);
    if (std::abs(a - b) > kFidelitiesAgree * std::max(a, b))
      return "step " + std::to_string(s) + " takes " + short_number(a) + " s and at the other fidelity " +
             short_number(b) + " s";
  }
  return "";
}

}  // namespace

std::vector<Check> checks_of(const Study& study, const StudyInputs& inputs, const StudyResult& result,
                             RunStudyOptions options, const StepChecks& of_steps) {
  const bool plain = options.steps.op.is_plain();
  std::optional<StudyResult> other;
  if (plain) {
    options.steps.fidelity = result.fidelity == Fidelity::stage ? Fidelity::op : Fidelity::stage;
    options.details = {};
    options.find_fits = false;
    options.check_step = nullptr;
    other = run_study(study, inputs, options);
  }
  std::vector<Check> checks;
  const auto baseline = std::ranges::find(result.policies, study.baseline,
                                          [](const PolicyResult& row) { return row.run.label; });
  for (std::size_t r = 0; r < result.policies.size(); ++r) {
    const PolicyResult& row = result.policies[r];
    if (!row.simulated()) continue;
    const auto add = [&](const char* what, std::string fault) {
      checks.push_back({row.run.label + ": " + what, fault.empty(), std::move(fault)});
    };
    add("plan, by the validator", "");  // it throws
    if (other) add("times, by the engine of the other fidelity", wrong_time(row, other->policies[r]));
    if (const auto found = of_steps.find(row.run.label); found != of_steps.end())
      for (const Check& check : found->second)
        checks.push_back({row.run.label + ": " + check.what, check.holds, check.found});
    add("table, by the sums of its steps",
        wrong_sum(row, baseline == result.policies.end() ? row : *baseline, study.layout.gpus()));
  }
  return checks;
}

std::function<void(const std::string&, const StepToCheck&)> checked_by_oracle(StepChecks& checks) {
  std::string reason;
  const auto check = reinterpret_cast<CheckStep>(
      module_symbol(kOracleFile, kOracleCheck, "this program was built without its oracle", reason));
  return [&checks, check, reason, several = std::make_shared<std::mutex>()](const std::string& label,
                                                                            const StepToCheck& step) {
    const std::scoped_lock one_at_a_time(*several);  // each takes memory
    if (check == nullptr)
      checks[label] = {{"schedule, timeline and memory", std::nullopt, reason}};
    else
      check(step, checks[label]);
  };
}

void print_checks(const std::vector<Check>& checks, Format format, std::ostream& out) {
  json list = json::array();
  TextTable table({"what", "", "found"});
  for (const Check& check : checks) {
    list.push_back({{"what", check.what},
                    {"holds", check.holds ? json(*check.holds) : json(nullptr)},
                    {"found", printable(check.found)}});
    table.add({check.what,
               !check.holds   ? "not looked at"
               : *check.holds ? "holds"
                              : "DIFFERS",
               printable(check.found)});
  }
  out << (format == Format::json ? list.dump(2) + "\n" : table.text());
}

namespace {

// The receipt, with what `verify` reads of it there and of its type.
json receipt_in(const json& summary, const std::string& file) {
  const auto found = summary.is_object() ? summary.find("receipt") : summary.end();
  if (!summary.is_object() || found == summary.end() || !found->is_object())
    throw UserError(
        file + ": receipt: expected one, as `equipoise study --out` leaves it in summary.json, found none");
  const std::pair<const char*, json::value_t> keys[] = {
      {"program", json::value_t::string}, {"file", json::value_t::string},   {"study", json::value_t::object},
      {"options", json::value_t::object}, {"inputs", json::value_t::object}, {"rows", json::value_t::object}};
  for (const auto& [key, type] : keys)
    if (!found->contains(key) || found->at(key).type() != type)
      throw UserError(file + ": receipt." + key + ": expected what `equipoise study --out` writes");
  if (const json hash = found->value("hash", json()); hash != kReceiptHash)
    throw UserError(file + ": receipt.hash: expected \"" + kReceiptHash + "\", found " + printable(hash.dump()) +
                    ": another version wrote it, and its study can be run again");
  return *found;
}

// Rows that functions of Python planned have the plans that were saved beside the summary. The labels of those
// whose plan was refused, and is not there.
std::vector<std::string> take_plans(Study& study, const std::string& summary) {
  std::vector<std::string> refused;
  const std::string file = (std::filesystem::path(summary).parent_path() / "plan.json").string();
  json plans;
  await_plans(study);
  for (PolicyRun& row : study.policies) {
    if (row.plan_file != kPlanOfCaller) continue;
    if (plans.is_null()) plans = read_json_file(file);
    try {
      const json& all = plans.at("plans");
      const auto own = std::ranges::find_if(all, [&](const json& p) { return p.at("name") == row.label; });
      if (own == all.end()) throw UserError(file + ": plans: no plan \"" + printable(row.label) + '"');
      if (own->at("steps").empty())
        refused.push_back(row.label);
      else
        give_plan(row, study, plans, row.label);
    } catch (const json::exception&) {
      throw UserError(file + ": plans: expected a list of plans as `study` writes it");
    }
  }
  return refused;
}

RunStudyOptions options_in(const json& receipt, const VerifyOptions& options, const std::string& file) {
  RunStudyOptions run;
  try {
    const json& o = receipt.at("options");
    run.steps.fidelity = parse_fidelity(o.at("fidelity"));
    run.steps.op = {o.value("fold_tp", true), o.value("contention", false), o.value("jitter", 0.0),
                    o.value("jitter_seed", std::uint64_t{0}), parse_stragglers(o.value("stragglers", ""))};
    run.ignore_memory = o.at("ignore_memory");
  } catch (const json::exception&) {
    throw UserError(file + ": receipt.options: expected what `equipoise study --out` writes");
  }
  run.jobs = threads_of(options.jobs);
  run.record_gpus = true;
  return run;
}

}  // namespace

int run_verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop) {
  const json summary = read_json_file(options.file);
  const json receipt = receipt_in(summary, options.file);
  RunStudyOptions run = options_in(receipt, options, options.file);
  run.stop = &stop;
  const std::string program = receipt.at("program");
  if (program != options.version && !options.quiet)
    log << "note: written by " << printable(program) << ", verified by " << options.version << '\n';

  std::vector<Check> checks;
  const auto add = [&](std::string what, bool holds, const std::string& fault) {
    checks.push_back({std::move(what), holds, holds ? "" : fault});
  };
  const json& rows = receipt.at("rows");
  std::size_t known = 0;
  try {
    for (const json& row : summary.at("policies")) {
      const std::string label = row.at("label");
      if (!rows.contains(label))
        throw UserError(options.file + ": receipt.rows: no row \"" + printable(label) + '"');
      add(label + ": as it was written", hash_of_row(row) == rows.at(label), "changed since");
      ++known;
    }
  } catch (const json::exception&) {
    throw UserError(options.file + ": policies[" + std::to_string(known) +
                    "]: expected a row as `equipoise study --out` writes it");
  }
  add("rows of the summary", known == rows.size(), "some are gone");

  Study study = parse_study(receipt.at("study"), receipt.at("file"));
  const std::vector<std::string> refused = take_plans(study, options.file);
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  check_planned_memory(study, foreseen_documents(study), run, limit);
  const StudyInputs inputs = load_inputs(study);
  const json now = hashes_of_inputs(inputs);
  for (const auto& [what, hash] : now.items())
    add(what + ", as it is now", receipt.at("inputs").value(what, json()) == hash, "another than then");
  const StudyResult result = run_study(study, inputs, run);
  for (const PolicyResult& row : result.policies) {
    const std::string& label = row.run.label;
    if (std::ranges::count(refused, label) > 0)
      checks.push_back({label + ": run again", std::nullopt, "a function's plan that was refused is not saved"});
    else
      add(label + ": run again", rows.value(label, json()) == hash_of_row(row), "another result");
  }
  print_checks(checks, options.format, out);
  return std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.holds.value_or(true); }) ? 0
                                                                                                          : 1;
}

}  // namespace equipoise
