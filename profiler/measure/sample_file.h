// The files that a profiling run fills: the samples file (equipoise.samples/1, docs/reference/formats.md),
// the journal that it grows from, and the list of points that failed.
//
// The journal has one line of JSON per finished sample, written as soon as it exists, so that a stopped run
// loses nothing.
#pragma once

#include <cstddef>
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

inline constexpr const char* kCpuPace = "pace_gflops";
inline constexpr const char* kReach = "reach_seconds";  // of a collective's ranks

// The simulator's names of what was measured.
struct SampleContext {
  std::string attention_kernel;  // "cpu-blocked", "cudnn"
  std::string dtype;             // "fp32", "bf16"
  kernels::ElementType type = kernels::ElementType::f32;
  int ranks_per_node = 1;               // most ranks of a collective's group on one node
  std::string pace_name = "clock_mhz";  // what the backend's pace measures
};

// A line is {"family", "point", "key", "sample": {...}}. A second visit to a point has another key.
nlohmann::json sample_line(const Point& point, const Measurement& measured, const SampleContext& context,
                           const std::string& key);

class Journal {
 public:
  // Opens `path`, and keeps its finished samples with `resume`. Every line names the `device`, since all
  // samples of a run are of one device. Throws UserError, also for a kept sample of another device.
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

// All samples of the journal by family, in key order: {"attention": [...], "gemm": [...], ...}, and the
// launch sample under "launch". A point with several visits gives its fastest undisturbed one, and the times
// of all.
nlohmann::json samples_of_journal(const std::string& path);

// --- Points that could not be measured, which a resumed run skips. <out>.failed has a line with the key and
// the reason of each. A point that ends the whole program (as a wild access on a GPU does) writes no line
// itself; its key is left in <out>.trying, which names the point under way.

class Failures {
 public:
  // Keeps the points that failed before only with `resume`. Throws UserError.
  Failures(const std::string& out, bool resume);
  [[nodiscard]] bool has(const std::string& key) const { return keys_.count(key) > 0; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  void add(const std::string& key, const std::string& reason);

  void begin(const std::string& key) const;  // the point is under way
  void end() const;                          // the point has returned

 private:
  void keep_lines();
  std::string path_;
  std::string trying_;
  std::set<std::string> keys_;
};

// --- The kernel checks of a run, and how the samples file reports them.

// Runs the checks of `families`, or of all if empty. A check that throws fails its whole family and is
// reported under the family's name.
std::vector<kernels::CheckResult> checks_of(kernels::Backend& backend, const std::set<std::string>& families,
                                            std::uint64_t seed);

// The result with the highest error relative to its limit; null where there are no results.
const kernels::CheckResult* worst_of(const std::vector<kernels::CheckResult>& results);

// {"all": every result, "summary": the worst of each op and tensor}. A resumed run may have checked other
// kernels before: the results of `earlier`, its samples file, are kept for ops that are not among `results`
// (empty: no file).
nlohmann::json checks_json(const std::vector<kernels::CheckResult>& results, const std::string& earlier);

}  // namespace equipoise::measure
