#include "sim/cli/command_pack.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/limits/memory_limit.h"
#include "sim/metrics/metrics.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/report/words/words.h"
#include "sim/study/estimate.h"
#include "sim/study/study_inputs.h"

namespace equipoise {
namespace {

using nlohmann::json;

// A file where there is one of the name, or where the name is a path; else a published distribution.
json trace_of(const PackCommandOptions& options) {
  const bool is_file =
      std::filesystem::exists(options.trace) || options.trace.find_first_of("./") != std::string::npos;
  json trace = {{is_file ? "file" : "distribution", options.trace}, {"seed", options.seed}};
  if (!options.column.empty()) trace["column"] = options.column;
  return trace;
}

Study study_of_pack(const PackCommandOptions& options) {
  PackRequest request = options;
  request.trace = trace_of(options);
  Study study = study_of_request(request);
  for (const std::string& name : options.policies)
    study.policies.push_back(row_of_request(request, study, name));
  if (!study.trace.distribution.empty() && study.steps == 0) study.steps = 100;
  return study;
}

void print_pack_notes(const Notes& notes, std::ostream& log) {
  for (const Note& note : notes) log << "note: " << printable(text_of(note)) << '\n';
}

void print_pack_table(const std::vector<Packed>& all, const DocumentSet& documents, std::ostream& out) {
  std::vector<std::string> header = {"metric"};
  for (const Packed& p : all) header.push_back(p.label);
  TextTable table(header);
  const auto row = [&](const char* name, auto&& value) {
    std::vector<std::string> cells = {name};
    for (const Packed& p : all) cells.push_back(value(p));
    table.add(std::move(cells));
  };
  row("steps", [](const Packed& p) { return std::to_string(p.plan.steps.size()); });
  row("micro-batches", [](const Packed& p) {
    std::int64_t count = 0;
    for (const Step& s : p.plan.steps)
      for (const Lane& l : s.lanes) count += static_cast<std::int64_t>(l.micro_batches.size());
    return grouped(count);
  });
  const json first = metrics_json(all.front().metrics, all.front().imbalance);
  for (const auto& [key, value] : first.items()) {
    const std::string name = key;
    row(name.c_str(), [&name](const Packed& p) {
      const json v = metrics_json(p.metrics, p.imbalance)[name];
      if (v.is_boolean()) return std::string(v.get<bool>() ? "yes" : "no");
      return v.is_null() ? std::string("-") : fixed(v.get<double>(), 3);
    });
  }
  row("pack ms (measured)", [](const Packed& p) { return fixed(p.pack_ms, 3); });
  out << grouped(documents.tokens) << " tokens in " << counted(documents.batches.size(), "global batch")
      << "\n"
      << table.text();
}

void print_pack_json(const std::vector<Packed>& all, bool compare, std::ostream& out) {
  if (!compare) {
    out << packed_json(all.front()).dump() << '\n';
    return;
  }
  json plans = json::array();
  for (const Packed& p : all) plans.push_back(packed_json(p));
  out << json{{"schema", "equipoise.plans/1"}, {"plans", std::move(plans)}}.dump() << '\n';
}

void print_pack_csv(const std::vector<Packed>& all, std::ostream& out) {
  out << "policy";
  const json first = metrics_json(all.front().metrics, all.front().imbalance);
  for (const auto& [key, value] : first.items()) out << ',' << key;
  out << '\n';
  for (const Packed& p : all) {
    out << csv_cell(p.label);
    const json metrics = metrics_json(p.metrics, p.imbalance);
    for (const auto& [key, value] : metrics.items()) out << ',' << (value.is_null() ? "" : value.dump());
    out << '\n';
  }
}

void print_pack(const PackCommandOptions& options, const std::vector<Packed>& all,
                const DocumentSet& documents, std::ostream& out) {
  switch (options.format) {
    case Format::table:
      return print_pack_table(all, documents, out);
    case Format::json:
      return print_pack_json(all, options.compare, out);
    case Format::csv:
      return print_pack_csv(all, out);
  }
}

}  // namespace

void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log) {
  const Study study = study_of_pack(options);
  const Trace trace = load_trace(study);
  const DocumentSet documents = documents_of(study, trace);
  RunStudyOptions planned;
  planned.jobs = 0;  // nothing is simulated
  planned.keep_plans = options.format == Format::json;
  check_estimate(study, documents, planned, options.memory);
  Notes notes = idle_request_notes(options, study);
  add(notes, cut_note(documents, study.batch, "max_length"));
  print_pack_notes(notes, log);
  std::vector<Packed> all;
  const ProgressLine progress(log, true);
  for (const PolicyRun& run : study.policies) {
    progress.show(run.label + ": packing " + counted(documents.documents, "document"));
    all.push_back(pack(options, study, documents, run));
    progress.show("");
    print_pack_notes(all.back().notes, log);
  }
  print_pack(options, all, documents, out);
}

}  // namespace equipoise
