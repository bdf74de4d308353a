// A framework preset: one JSON file that says what a training framework overlaps, shards and keeps by
// default, and how much slower its kernels run in long training than alone, each with its source and its
// error.
//
// Why slowdowns at all: a profile times kernels one by one on a cool GPU. In training the power limit lowers
// the clock, shapes change from op to op and parts are not fused. The slowdowns are fitted to published steps
// (tests/fit_published_steps.py) or to one's own (`equipoise fit --steps`), so they hold for the GPUs of
// those runs: on others, and where kernels are really executed, they are 1. What a framework overlaps and
// shards is its own choice on any GPU and stays.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/framework/framework_options.h"

namespace equipoise {

enum class KernelTimes { benchmark, fitted, borrowed };

struct FrameworkPreset {
  std::string name;
  std::string summary;
  std::string origin;  // the file
  int zero = 1;
  bool reduce_each_micro_batch = true;
  FrameworkOptions options;  // as on the GPUs that the slowdowns were fitted on
  KernelTimes kernels = KernelTimes::benchmark;
  std::string borrowed_from;              // of KernelTimes::borrowed
  std::vector<std::string> gpu_families;  // words of a device's name, e.g. "H100"
  std::optional<double> error;            // mean absolute, on benchmarks that the fit did not see
  std::string skew_source;                // what is known of defaults.expert_skew, where the preset says it

  // `name_or_path`: a shipped preset's name or a file. Throws UserError.
  static FrameworkPreset load(std::string_view name_or_path);
  static FrameworkPreset read(const nlohmann::json& file, const std::string& origin);

  // The preset's options without what was fitted or assumed of its GPUs: kernels and host are as fast as the
  // profile has them.
  [[nodiscard]] FrameworkOptions elsewhere() const;
  // Whether the slowdowns hold on a profile: its GPU is of a family that they were fitted on, and its kernels
  // are published times like those of the fit. What someone measured on a machine is that machine's.
  [[nodiscard]] bool fitted_on(const Profile& profile) const;
  // "GEMM x1.21, attention x1.00, elementwise x1.44, fitted, 5.1 % off on benchmarks it did not see".
  [[nodiscard]] std::string kernels_text() const;
};

// "GEMM x1.21, attention x1.00, elementwise x1.44".
std::string slowdowns_text(const FrameworkOptions& options);

inline constexpr std::string_view kDefaultFramework = "megatron";

// Names of the presets that are found beside the program or in the source tree, sorted.
std::vector<std::string> shipped_frameworks();

}  // namespace equipoise
