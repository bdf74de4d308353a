// One profiling run: test the ruler, check the kernels, then measure points of all families in turn, the most
// telling first, until the time is up.
#pragma once

#include <atomic>
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
  std::vector<std::string> models;    // GEMM shapes of these only
  std::vector<std::string> families;  // "attention", "gemm", "elementwise", "copy", "collective"; empty: all
  std::vector<std::int64_t> lengths;  // of documents, for packed mixes
  std::string lengths_origin;
  std::uint64_t seed = 0;
  bool quiet = false;
  std::size_t most_points = 0;  // of this run; 0: no limit but the time
};

struct SessionReport {
  bool checks_passed = false;  // all that this run's families need
  std::size_t left_out = 0;    // points whose kernels failed their check
  std::size_t failed = 0;      // points that could not be measured, in <out>.failed
  std::size_t measured = 0;    // in this run
  std::size_t finished = 0;    // in the file
  std::size_t planned = 0;
  std::size_t stolen_batches = 0;
  std::size_t throttled_batches = 0;
  std::size_t disturbed_samples = 0;
  double ruler_error = 0;  // of the ruler test, relative
  std::size_t checks = 0;
  std::string worst_check;
};

// Measures and writes the samples file; `log` gets progress and notes. Stops cleanly between points when
// `stop` becomes true. A kernel that fails its check is reported and not timed; the others are. A point that
// cannot be measured is reported and left out, of a resumed run too. Throws UserError for a device that is
// not there or a file that cannot be written, and std::runtime_error for a device that stopped working; what
// was measured is then written.
SessionReport run_session(const SessionOptions& options, std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise::measure
