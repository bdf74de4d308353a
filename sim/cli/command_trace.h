// `equipoise trace`: inspects, converts, draws and records traces of document lengths.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

struct TraceInfoOptions {
  std::string trace;
  std::string column;                      // csv, jsonl
  std::string input_format = "automatic";  // see trace_format_names
  std::int64_t context_window = 131072;
  int bins = 16;  // bins of the profile by position
  Format format = Format::table;
};

struct TraceConvertOptions {
  std::vector<std::string> inputs;  // several: a mixture
  std::vector<double> weights;      // shares of tokens, one per input; if empty, inputs follow one another
  std::string out;
  std::string column;
  std::string input_format = "automatic";
  std::int64_t longest = 0;    // longer documents are dropped and counted; 0 drops none
  std::int64_t documents = 0;  // 0: all
  std::uint64_t seed = 0;      // seed of the mixture
};

struct TraceSynthOptions {
  std::string distribution;
  std::int64_t documents = 1000000;
  std::uint64_t seed = 0;
  std::string out;  // if empty, one length per line on `out`
  MemoryLimit memory = default_memory_limit();
};

// Results go to `out`; `notes` says what was written.
void trace_info_command(const TraceInfoOptions&, std::ostream& out);
void trace_convert_command(const TraceConvertOptions&, std::ostream& notes);
void trace_synth_command(const TraceSynthOptions&, std::ostream& out, std::ostream& notes);

// Becomes the recorder, traces/record.py, with these arguments as typed. Returns only by throwing.
[[noreturn]] void trace_record_command(const std::vector<std::string>& arguments);

}  // namespace equipoise
