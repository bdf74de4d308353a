// The samples file (equipoise.samples/1, profiler/README.md) and the journal it grows from: one line of JSON
// per finished sample, written as soon as it exists, so that a stopped run loses nothing.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "kernels/backend.h"
#include "profiler/measure/point.h"
#include "profiler/measure/ruler.h"

namespace equipoise::measure {

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

}  // namespace equipoise::measure
