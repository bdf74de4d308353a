// The commands about profiles: profile measures kernels, fit makes a profile (or a framework preset) of
// measurements, profiles shows it, predict tries it. Each is a function over a struct of options, which knows
// no parser, and throws UserError for wrong input.
#pragma once

#include <atomic>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/measure/session.h"
#include "profiler/profile/profile.h"
#include "sim/calibration/step_rows.h"
#include "sim/cli/commands.h"

namespace equipoise {

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
