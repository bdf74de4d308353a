#include "sim/cli/command_pack.h"

#include <filesystem>
#include <ostream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/number_text.h"
#include "policies/base/utf8.h"
#include "sim/report/plan_json.h"
#include "sim/report/text_table.h"
#include "sim/study/load_trace.h"
#include "sim/study/planned_memory.h"

namespace equipoise {

using nlohmann::json;

namespace {

Study study_of(const PackCommandOptions& options) {
  Study study = study_of_request(options);
  if (std::filesystem::exists(options.trace) || options.trace.find('.') != std::string::npos ||
      options.trace.find('/') != std::string::npos)
    study.trace.file = options.trace;
  else
    study.trace.distribution = options.trace;
  study.trace.column = options.column;
  study.trace.seed = options.seed;
  for (const std::string& name : options.policies)
    study.policies.push_back(row_of_request(options, study, name));
  if (!study.trace.distribution.empty() && study.steps == 0) study.steps = 100;
  return study;
}

void print_notes(const std::vector<std::string>& notes, std::ostream& log) {
  for (const std::string& note : notes) log << "note: " << printable(note) << '\n';
}

void print_table(const std::vector<Packed>& all, const DocumentSet& documents, std::ostream& out) {
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
      return v.is_null() ? std::string("-") : fixed(v.get<double>(), 3);
    });
  }
  row("pack ms (measured)", [](const Packed& p) { return fixed(p.pack_ms, 3); });
  out << grouped(documents.tokens) << " tokens in " << documents.batches.size() << " global batches\n"
      << table.text();
}

// The plans of all policies are held as JSON, and once more as text.
void check_json(const Study& study, const DocumentTotals& totals, const MemoryLimit& limit) {
  double bytes = documents_bytes(totals);
  for (const PolicyRun& run : study.policies) {
    const PlanSize size = plan_size(run, totals);
    bytes += plan_bytes(size, run.pack) + plan_json_memory(size);
  }
  require_memory("--format json", bytes, limit, "--format table or csv");
}

}  // namespace

void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log) {
  const Study study = study_of(options);
  const MemoryLimit limit = memory_limit(options.max_memory_GB);
  RunStudyOptions planned;
  planned.keep_plans = true;
  if (study.steps > 0) check_planned_memory(study, foreseen_documents(study), planned, limit);
  const Trace trace = load_trace(study);
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  const DocumentSet documents = load_documents(trace.lengths, study.batch, load);
  check_planned_memory(study, totals_of(documents), planned, limit);
  if (options.format == Format::json) check_json(study, totals_of(documents), limit);
  print_notes(idle_request_notes(options, study), log);
  std::vector<Packed> all;
  for (const PolicyRun& run : study.policies) {
    all.push_back(pack(options, study, documents, run));
    print_notes(all.back().notes, log);
  }
  if (options.format == Format::json) {
    if (!options.compare) {
      out << packed_json(all.front()).dump() << '\n';
      return;
    }
    json plans = json::array();
    for (const Packed& p : all) plans.push_back(packed_json(p));
    out << json{{"schema", "equipoise.plans/1"}, {"plans", std::move(plans)}}.dump() << '\n';
  } else if (options.format == Format::csv) {
    bool header = false;
    for (const Packed& p : all) {
      const json metrics = metrics_json(p.metrics, p.imbalance);
      if (!header) {
        out << "policy";
        for (const auto& [key, value] : metrics.items()) out << ',' << key;
        out << '\n';
        header = true;
      }
      out << csv_cell(p.label);
      for (const auto& [key, value] : metrics.items()) out << ',' << (value.is_null() ? "" : value.dump());
      out << '\n';
    }
  } else {
    print_table(all, documents, out);
  }
}

}  // namespace equipoise
