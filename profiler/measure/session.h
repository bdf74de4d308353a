// One profiling run: it tests the ruler, checks the kernels, and then measures points of all families in
// turn, the most informative first, until the time is up. It fills the files of sample_file.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace equipoise::measure {

struct SessionOptions {
  std::string device = "cpu";  // "cpu" or "cuda"
  double minutes = 3;
  std::string out = "samples.json";  // its journal is <out>.journal
  bool resume = false;
  std::vector<std::string> models;    // models whose GEMM shapes are measured; empty: all
  std::vector<std::string> families;  // "attention", "gemm", "elementwise", "copy", "collective"; empty: all
  std::vector<std::int64_t> lengths;  // document lengths for packed mixes
  std::string lengths_origin;
  std::uint64_t seed = 0;
  bool quiet = false;
  std::size_t most_points = 0;  // limit for this run; 0: only the time limits it
};

struct SessionReport {
  bool checks_passed = false;  // whether the kernels of this run's families passed
  std::size_t skipped = 0;     // points skipped since their kernels failed a check
  std::size_t failed = 0;      // points that could not be measured, in <out>.failed
  std::size_t measured = 0;    // points measured in this run
  std::size_t finished = 0;    // points in the file
  std::size_t planned = 0;
  std::size_t stolen_batches = 0;
  std::size_t throttled_batches = 0;
  std::size_t disturbed_samples = 0;
  double ruler_error = 0;  // relative error of the ruler test
  std::size_t checks = 0;
  std::string worst_check;
};

// Measures points and writes the samples file; `log` gets progress and notes. Stops between two points when
// `stop` becomes true. A kernel that fails its check is reported and its points are skipped. A point that
// cannot be measured is reported, and a resumed run skips it too. Throws UserError for a device that is
// missing or a file that cannot be written, and std::runtime_error for a device that stopped working, after
// writing what was measured.
SessionReport run_session(const SessionOptions& options, std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise::measure
