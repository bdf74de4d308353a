// One run of a program of nccl-tests, whatever it was read from: its ranks, its rows, which collective it
// was.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "profiler/fit/foreign_files.h"
#include "profiler/fit/samples.h"

namespace equipoise::nccl {

struct Rank {
  int rank = 0;
  int group = 0;
  std::string host;
  std::string gpu;
};

// One side of a row, out of place or in place.
struct Side {
  std::optional<double> us, algbw, busbw;
  std::optional<double> wrong;  // elements; nothing where results were not checked
};

struct Row {
  std::string where;  // file:line
  double bytes = 0;
  std::string redop;  // "none", "sum", ...; "" where the file does not say
  Side out, in;
};

struct Run {
  std::string where;       // of its table, file:line
  std::string program;     // "all_reduce_perf"; "" where nothing says it
  std::string said_where;  // which line, or the file's name, says so
  std::vector<Rank> ranks;
  std::vector<Row> rows;
};

// The programs' name in a text, e.g. "all_reduce_perf"; "" where none or several are in it.
std::string program_in(std::string_view text);

// The run's samples; notes in `file` what they are of and what is left out. `name`: of the file. Throws
// UserError.
void add_run(const Run& run, const std::string& name, const std::string& network, ForeignFile& file,
             SampleSet& set);

}  // namespace equipoise::nccl
