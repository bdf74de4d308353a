// One profiling run: test the ruler, check the kernels, then measure points of all families in turn, the most
// telling first, until the time is up; and the files that it fills (sample_file.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/checks.h"
#include "profiler/measure/points.h"
#include "profiler/measure/ruler.h"

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

// --- The samples file (equipoise.samples/1, profiler/README.md) and the journal it grows from: one line of
// JSON per finished sample, written as soon as it exists, so that a stopped run loses nothing.

inline constexpr const char* kCpuPace = "pace_gflops";
inline constexpr const char* kReach = "reach_seconds";  // of a collective's ranks

// How the simulator names what was measured.
struct SampleContext {
  std::string attention_kernel;  // "cpu-blocked", "cudnn"
  std::string dtype;             // "fp32", "bf16"
  kernels::ElementType type = kernels::ElementType::f32;
  int ranks_per_node = 1;               // of a collective's group, at most
  std::string pace_name = "clock_mhz";  // what the backend's pace is
};

// {"family", "point", "key", "sample": {...}}: a point visited again has the same point and another key.
nlohmann::json sample_line(const Point& point, const Measurement& measured, const SampleContext& context,
                           const std::string& key);

class Journal {
 public:
  // Opens `path`; with `resume` its finished samples are kept, else it starts empty. Every line names the
  // `device`: one run's samples are of one. Throws UserError, also for a kept sample of another device.
  Journal(const std::string& path, bool resume, std::string device);
  [[nodiscard]] bool has(const std::string& key) const { return keys_.count(key) > 0; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  void add(nlohmann::json line);

 private:
  void keep_lines();
  std::string path_, device_;
  std::set<std::string> keys_;
  std::ofstream file_;
};

// All samples of the journal by family, in key order: {"attention": [...], "gemm": [...], ...} and, under
// "launch", the launch sample. Of a point visited several times: the fastest undisturbed visit, with all
// times beside it.
nlohmann::json samples_of_journal(const std::string& path);

// --- Points that could not be measured, so that a resumed run goes round them: <out>.failed has a line for
// each, its key and the reason. A point that takes the whole program down (a wild access ends all work on a
// GPU) writes no line itself; it is found in <out>.trying, which holds the key of the point under way.

class Failures {
 public:
  // With `resume` the points that failed before are kept, else none. Throws UserError.
  Failures(const std::string& out, bool resume);
  [[nodiscard]] bool has(const std::string& key) const { return keys_.count(key) > 0; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  void add(const std::string& key, const std::string& reason);

  void begin(const std::string& key) const;  // the point is under way
  void end() const;                          // and has returned

 private:
  void keep_lines();
  std::string path_;
  std::string trying_;
  std::set<std::string> keys_;
};

// --- The kernel checks of a run: those of its families, and what the samples file says of them.

// Empty `families`: all. A check that throws has failed for its whole family, under whose name it is
// reported.
std::vector<kernels::CheckResult> checks_of(kernels::Backend& backend, const std::set<std::string>& families,
                                            std::uint64_t seed);

// The one nearest to its limit, or farthest beyond; null where there is none.
const kernels::CheckResult* worst_of(const std::vector<kernels::CheckResult>& results);

// {"all": every result, "summary": the worst of each op and tensor}. A run that is resumed may have checked
// other kernels before: what `earlier`, its samples file, says of ops that are not among `results` is kept
// ("": none).
nlohmann::json checks_json(const std::vector<kernels::CheckResult>& results, const std::string& earlier);

}  // namespace equipoise::measure
