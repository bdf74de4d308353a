// The commands about the parts of a study: pack (documents to a plan), shard (a micro-batch to ranks),
// schedule (a pipeline), trace (documents), and list, which says what there is. Each is a function over a
// struct of options, which knows no parser, and throws UserError for wrong input.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "profiler/measure/session.h"
#include "profiler/profile/profile.h"
#include "sim/calibration/step_rows.h"
#include "sim/cli/commands.h"
#include "sim/study/pack_request.h"

namespace equipoise {

struct MicroBatch;
struct Schedule;
struct TimedSchedule;

// `equipoise pack`: only the plan, with its metrics; one policy or several side by side.
struct PackCommandOptions : PackRequest {
  std::string trace;                  // a trace file, or the name of a published distribution
  std::vector<std::string> policies;  // --policy or --compare
  std::string column;
  bool compare = false;
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
};

void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log);

// `equipoise shard`: where the queries of one micro-batch sit, and what each CP rank computes.
struct ShardCommandOptions {
  std::vector<std::int64_t> lengths;  // documents of the micro-batch
  int ranks = 1;                      // CP degree
  std::string policy = "per-sequence";
  std::string remainder = "slots";  // slots, tail, pad
  std::string pad = "error";        // error, tail
  std::int64_t tile = 128;
  std::int64_t block = 128;
  double top_p = 0, tolerance = 0.02;
  std::int64_t bucket_size = 0;
  std::string cost;          // of a document, for dacp: quadratic, flops, profiled; empty: flops
  std::string profile;       // empty: no seconds
  std::string model;         // built-in name or a Hugging Face config.json
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
};

// Seconds are those of one layer's attention forward with all heads of the model, null without a profile.
void shard_command(const ShardCommandOptions&, std::ostream& out);

// `equipoise schedule`: one pipeline as a text drawing and numbers.
struct ScheduleOptions {
  std::string schedule = "1f1b";
  int stages = 4;
  std::vector<std::int64_t> lengths = {};  // documents with a chunk size, else micro-batches
  std::int64_t chunk_size = 0;             // 0: none
  int keep = 1;
  bool strict_keep = false;
  int virtual_stages = 1;
  bool pairs = false;  // forward and backward of a turn issued together
  double backward_ratio = 2;
  double p2p = 0;  // time of a hop between two ranks
  // A profile's name or file: times in seconds of this model on `tensor` GPUs a stage, not lengths.
  std::string profile = {};
  std::string model = "llama2-7b";
  int tensor = 1;
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
  int columns = 100;
  bool color = false;
};

// Draws the schedule and its numbers. Without a profile time = length: a forward of n tokens takes n. Options
// that change nothing here draw a line on `notes`.
void schedule_command(const ScheduleOptions&, std::ostream& out, std::ostream& notes);

// The times in seconds of options.schedule by options.profile, with embedding, head and pipeline hops. Throws
// UserError where model and layout do not fit or the profile does not reach.
TimedSchedule time_by_profile(const ScheduleOptions& options, const Schedule& schedule,
                              std::span<const MicroBatch>);

// `equipoise trace`: inspect, convert, draw and record traces of document lengths.
struct TraceInfoOptions {
  std::string trace;
  std::string column;                      // csv, jsonl
  std::string input_format = "automatic";  // see trace_format_names
  std::int64_t context_window = 131072;
  int bins = 16;  // of the profile by position
  Format format = Format::table;
};

struct TraceConvertOptions {
  std::vector<std::string> inputs;  // several: a mixture
  std::vector<double> weights;      // shares of tokens, one an input; empty: the inputs one after another
  std::string out;
  std::string column;
  std::string input_format = "automatic";
  std::int64_t longest = 0;    // documents above it are left out and counted; 0: none is
  std::int64_t documents = 0;  // 0: all
  std::uint64_t seed = 0;      // of the mixture
};

struct TraceSynthOptions {
  std::string distribution;
  std::int64_t documents = 1000000;
  std::uint64_t seed = 0;
  std::string out;           // empty: one length a line on `out`
  double max_memory_GB = 0;  // 0: default_memory_limit()
};

// Results go to `out`, notes on what was written to `notes`.
void trace_info_command(const TraceInfoOptions&, std::ostream& out);
void trace_convert_command(const TraceConvertOptions&, std::ostream& notes);
void trace_synth_command(const TraceSynthOptions&, std::ostream& out, std::ostream& notes);

// Becomes the recorder: Python runs traces/record.py with these arguments, as typed, and its exit code is the
// program's. Returns only by throwing.
[[noreturn]] void trace_record_command(const std::vector<std::string>& arguments);

// `equipoise doctor`: what this machine has and whether the program works on it: build, memory, disk, shipped
// files, devices, solvers, a small study from end to end. 1 where something failed; what is merely absent is
// said. `version`: the program's.
int run_doctor_command(Format format, std::string_view version, std::ostream& out);

// `equipoise list`: what there is, one line each. `what`: policies, schedules, models, profiles, frameworks,
// traces or schema.
void run_list_command(const std::string& what, Format format, std::ostream& out);

// `equipoise explain`: what a word of a study's keys, a result's columns or those lists means, what it may be,
// and where it comes from. Without a word, which kinds there are. Throws UserError with the nearest names.
void run_explain_command(const std::string& word, Format format, std::ostream& out);

// The first words of those lines: what may be typed as the name of one.
std::vector<std::string> listed_names(const std::string& what);

// --- The commands about profiles: profile measures kernels, fit makes a profile (or a framework preset) of
// measurements, profiles shows it, predict tries it. Each is a function over a struct of options, which knows
// no parser, and throws UserError for wrong input.

// `equipoise profile`: measures this machine's kernels and writes a samples file for `equipoise fit`.
struct ProfileOptions {
  measure::SessionOptions session;        // without its lengths
  std::string lengths = "lmsys-chat-1m";  // a trace file, or the name of a published distribution
};

// Returns the exit status: 0, or 1 if a kernel is wrong (it is then not timed). Progress and notes go to
// `log`. `stop` ends the run cleanly after the current point.
int run_profile(const ProfileOptions& options, std::ostream& out, std::ostream& log,
                const std::atomic<bool>& stop);

// `equipoise fit`: samples in, a profile out.
struct FitCommandOptions {
  // .json as `profile` writes; .csv in the columns of the public tables; what nccl-tests printed, or its -J;
  // traces of torch.profiler. Each may be compressed.
  std::vector<std::string> samples;
  std::string recipe;              // which samples make which table; needed for .csv
  std::string document_histogram;  // of rows whose documents are named by their distribution only
  std::string base;                // a profile that the samples mend, instead of a recipe
  std::string base_network;        // of the base, where samples between nodes begin; empty: its default
  std::string network;             // what to call the fabric of samples between nodes; empty: "measured"
  double nic_GBps = 0;             // of one GPU, one direction; 0: not given
  std::string out = "profile.json";
};

// Prints the errors on samples the fit did not see; writes the profile whole or not at all.
void fit_command(const FitCommandOptions&, std::ostream& out, std::ostream& notes);

// `equipoise fit --steps`: measured training steps in, a framework preset out.
struct FitStepsOptions {
  StepTables tables;
  // Instead of a fit, print the rows at these: "G,A,E" (GEMM, attention, elementwise) or "G,A,E,X,U"
  // (the experts' products: X over other GEMMs, U microseconds each), or "preset".
  std::vector<std::string> slowdowns;
  std::string out = "framework.json";
  int jobs = 0;  // 0: all cores
};

// Prints the errors on benchmarks that the fit did not see; writes the preset whole or not at all.
void fit_steps_command(const FitStepsOptions&, std::ostream& out, std::ostream& notes);

// `equipoise profiles`: one line a profile.
void profiles_command(Format format, std::ostream& out);

// `equipoise profiles show`: facts with their sources, tables with provenance, both ranges and errors;
// measured against predicted where the profile holds its own samples. `json` prints the file.
void profiles_show_command(const std::string& profile, Format format, std::ostream& out);

// `equipoise predict`: published or measured rows, and what a profile says of them.
struct PredictOptions {
  std::string profile;
  std::string rows;     // a .csv in the columns of the public tables
  std::string kernel;   // attention table to use; empty: the one fitted to such rows, else the default
  std::string network;  // of rows between nodes; empty: the one whose name the row holds
  double nic_GBps = 0;  // of rows between nodes; 0: the rate the network was fitted at
  std::string document_histogram;  // of rows whose documents are named by their distribution only
  Format format = Format::csv;
};

// csv: the same rows with predicted_ms and error (predicted / measured - 1) on `out`, the errors by group on
// `notes`. json: rows and groups in one object. table: the groups alone. Rows that cannot be predicted keep
// both cells empty and are listed by reason with their lines; throws UserError where none can.
void predict_command(const PredictOptions&, std::ostream& out, std::ostream& notes);

// One fitted or derived table of a profile.
struct TableView {
  std::string path;  // "attention fa3 forward", "gemm bf16"
  const nlohmann::json* table = nullptr;
};

// The tables in the order of the file. The views point into the profile.
std::vector<TableView> tables_of(const Profile& profile);

// Where a profile's kernels come from, by its GEMM table: measured, published, derived, mended; empty: no
// table.
std::string kernels_are(const Profile& profile);

// Errors on samples that the fits did not see, one line a table and group.
void print_errors(const Profile& profile, std::ostream& out);

}  // namespace equipoise
