// A receipt is in the summary.json of `study --out`: the study as it was run, and hashes of its inputs
// and of each row. `verify` hashes the summary's rows again, then the inputs as they are now, then runs the
// study and hashes what comes out.
#include "sim/cli/command_verify.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/report/receipt.h"
#include "sim/report/saved_result.h"
#include "sim/report/text_table.h"
#include "sim/study/estimate.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/run_study.h"
#include "sim/study/study_inputs.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

void print_checks(const std::vector<Check>& checks, Format format, std::ostream& out) {
  TextTable table({"what", "", "found"});
  for (const std::size_t left : {1U, 2U}) table.align_left(left);
  for (const Check& check : checks)
    table.add({check.what,
               !check.holds   ? "not looked at"
               : *check.holds ? "holds"
                              : "DIFFERS",
               printable(check.found)});
  out << (format == Format::json ? checks_json(checks).dump(2) + "\n" : table.text(screen_width()));
}

// The receipt, with the parts that `verify` reads checked for presence and type.
static json receipt_in(const json& summary, const std::string& file) {
  const auto found = summary.find("receipt");
  if (summary.value("incomplete", false))
    throw UserError(file, ": receipt: expected that of a whole study, found one that was interrupted");
  if (found == summary.end() || !found->is_object())
    throw UserError(
        file, ": receipt: expected one, as `equipoise study --out` leaves it in summary.json, found none");
  const std::pair<const char*, json::value_t> keys[] = {
      {"program", json::value_t::string}, {"file", json::value_t::string},   {"study", json::value_t::object},
      {"options", json::value_t::object}, {"inputs", json::value_t::object}, {"rows", json::value_t::object},
      {"written", json::value_t::object}};
  for (const auto& [key, type] : keys)
    if (!found->contains(key) || found->at(key).type() != type)
      throw UserError(file, ": receipt.", key, ": expected what `equipoise study --out` writes");
  if (const json hash = found->value("hash", json()); hash != kReceiptHash)
    throw UserError(file, ": receipt.hash: expected \"", kReceiptHash, "\", found ", printable(hash.dump()),
                    ": another version wrote it, and its study can be run again");
  return *found;
}

// Gives rows that Python functions planned the plans that were saved next to the summary. Returns the labels
// whose plan was refused and is not there.
static std::vector<std::string> take_plans(Study& study, const std::string& summary) {
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
      if (own == all.end()) throw UserError(file, ": plans: no plan \"", printable(row.label), '"');
      if (own->at("steps").empty())
        refused.push_back(row.label);
      else
        give_plan(row, study, plans, row.label);
    } catch (const json::exception&) {
      throw UserError(file, ": plans: expected a list of plans as `study` writes it");
    }
  }
  return refused;
}

static RunStudyOptions options_in(const json& receipt, const std::string& file) {
  try {
    return options_of_json(receipt.at("options"));
  } catch (const json::exception&) {
    throw UserError(file, ": receipt.options: expected what `equipoise study --out` writes");
  }
}

int run_verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop) {
  const SavedResult saved = read_summary(read_json_file(options.file), options.file);
  const json receipt = receipt_in(saved.summary, options.file);
  RunStudyOptions run = options_in(receipt, options.file);
  run.jobs = options.jobs;
  run.record_gpus = true;
  run.stop = &stop;
  const std::string program = receipt.at("program");
  if (program != options.version && !options.quiet)
    log << "note: written by " << printable(program) << ", verified by " << options.version << '\n';

  std::vector<Check> checks;
  const auto add = [&](std::string what, bool holds, const std::string& fault) {
    checks.push_back({std::move(what), holds, holds ? "" : fault});
  };
  const json& rows = receipt.at("rows");
  const SummaryHashes found = hashes_of_summary(saved.summary);
  const json& said = receipt.at("written");
  const json of_rows = said.value("rows", json::object());
  const std::vector<PolicyResult>& written = saved.result.policies;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::string& label = written[i].run.label;
    if (!rows.contains(label))
      throw UserError(options.file, ": receipt.rows: no row \"", printable(label), '"');
    const bool same = hash_of_row(saved.summary["policies"][i]) == rows.at(label) &&
                      found.rows.value(label, json()) == of_rows.value(label, json(""));
    add(label + ": as it was written", same, "changed since");
  }
  add("rows of the summary", written.size() == rows.size(), "some are gone");
  add("what it says of the study, as it was written", json(found.rest) == said.value("rest", json()),
      "changed since");

  Study study = parse_study(receipt.at("study"), receipt.at("file"));
  const std::vector<std::string> refused = take_plans(study, options.file);
  const StudyInputs inputs = load_inputs(study);
  check_estimate(study, inputs.documents, run, options.memory);
  const std::string folder =
      std::filesystem::path(receipt.at("file").get<std::string>()).parent_path().string();
  const json now = hashes_of_inputs(inputs, receipt.at("study"), folder);
  for (const auto& [what, hash] : receipt.at("inputs").items())
    add(what + ", as it is now", now.value(what, json()) == hash, "another than then");
  const StudyResult result = run_study(study, inputs, run);
  for (const PolicyResult& row : result.policies) {
    const std::string& label = row.run.label;
    if (std::ranges::count(refused, label) > 0)
      checks.push_back(
          {label + ": run again", std::nullopt, "a function's plan that was refused is not saved"});
    else
      add(label + ": run again", rows.value(label, json()) == hash_of_row(row), "another result");
  }
  print_checks(checks, options.format, out);
  return std::ranges::all_of(checks, [](const Check& c) { return c.holds.value_or(true); }) ? 0 : 1;
}

}  // namespace equipoise
