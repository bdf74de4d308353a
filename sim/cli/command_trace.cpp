#include "sim/cli/command_trace.h"

#include <algorithm>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/cli/python_script.h"
#include "sim/limits/memory_limit.h"
#include "traces/synth.h"
#include "traces/trace.h"

namespace equipoise {
namespace {

TraceReadOptions read_options(const std::string& column, const std::string& input_format) {
  TraceReadOptions options;
  options.column = column;
  options.format = trace_format(input_format);
  return options;
}

Trace one_after_another(std::vector<Trace>& traces) {
  Trace all = std::move(traces.front());
  for (std::size_t i = 1; i < traces.size(); ++i) {
    all.lengths.insert(all.lengths.end(), traces[i].lengths.begin(), traces[i].lengths.end());
    all.origin += " + " + traces[i].origin;
  }
  return all;
}

Trace combined(std::vector<Trace>& traces, const TraceConvertOptions& options) {
  if (options.weights.empty()) return one_after_another(traces);
  if (options.weights.size() != traces.size())
    throw UserError("--weights: found " + std::to_string(options.weights.size()) +
                    "; expected one for each of the " + std::to_string(traces.size()) + " traces");
  std::vector<WeightedTrace> sources;
  for (std::size_t i = 0; i < traces.size(); ++i) sources.push_back({&traces[i], options.weights[i]});
  return mix_traces(sources, options.documents, options.seed);
}

// Drops longer documents, as corpora with such a limit do: they drop large files and do not cut them.
void drop_longer(Trace& trace, std::int64_t longest, std::ostream& notes) {
  const std::size_t before = trace.lengths.size();
  std::erase_if(trace.lengths, [longest](std::int64_t length) { return length > longest; });
  if (trace.lengths.size() == before) return;
  notes << trace.origin << ": dropped " << before - trace.lengths.size() << " of " << before
        << " documents, those above " << longest << " tokens\n";
  if (trace.lengths.empty())
    throw UserError("--longest: found " + std::to_string(longest) + "; every document of " + trace.origin +
                    " is longer");
}

void note_written(const Trace& trace, const std::string& path, std::ostream& notes) {
  const std::int64_t tokens = sum_of(trace.lengths);
  notes << printable(path) << ": " << counted(trace.lengths.size(), "document") << ", " << tokens
        << " tokens\n";
}

}  // namespace

void trace_info_command(const TraceInfoOptions& options, std::ostream& out) {
  const Trace trace = read_trace(options.trace, read_options(options.column, options.input_format));
  const TraceStats stats = trace_stats(trace, options.context_window, options.bins);
  switch (options.format) {
    case Format::table:
      print_stats_table(stats, out);
      break;
    case Format::json:
      print_stats_json(stats, out);
      break;
    case Format::csv:
      print_stats_csv(stats, out);
      break;
  }
}

void trace_convert_command(const TraceConvertOptions& options, std::ostream& notes) {
  if (options.inputs.empty()) throw UserError("trace convert: expected at least one trace, found none");
  if (options.documents < 0)
    throw UserError("--documents: found " + std::to_string(options.documents) + "; expected 0 (all) or more");
  std::vector<Trace> traces;
  for (const std::string& input : options.inputs) {
    traces.push_back(read_trace(input, read_options(options.column, options.input_format)));
    if (options.longest > 0) drop_longer(traces.back(), options.longest, notes);
  }
  Trace trace = combined(traces, options);
  if (options.documents > 0)
    trace.lengths.resize(std::min(trace.lengths.size(), static_cast<std::size_t>(options.documents)));
  write_trace(trace, options.out);
  note_written(trace, options.out, notes);
}

void trace_synth_command(const TraceSynthOptions& options, std::ostream& out, std::ostream& notes) {
  // Bytes per length in memory, in text and in compressed text.
  constexpr double kText = 16, kCompressed = 8;
  const double each = sizeof(std::int64_t) + (options.out.empty() ? 0 : kText + kCompressed);
  require_memory("--documents " + std::to_string(options.documents),
                 each * static_cast<double>(options.documents), options.memory, "fewer documents");
  const Trace trace = synthesize(options.distribution, options.documents, options.seed);
  const Distribution& about = distribution(options.distribution);
  if (options.out.empty()) {
    for (const std::int64_t length : trace.lengths) out << length << '\n';
  } else {
    write_trace(trace, options.out);
    note_written(trace, options.out, notes);
  }
  notes << about.name << ": synthetic, " << about.source << "; assumed: " << about.assumption << '\n';
}

void trace_record_command(const std::vector<std::string>& arguments) {
  become_python({"trace record", "traces/record.py", "traces/record.py"}, arguments);
}

}  // namespace equipoise
