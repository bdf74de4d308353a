// The presets of training frameworks.
//
// A study gets these from a preset: one JSON file that says what a training framework overlaps, shards and
// keeps by default, and how much slower its kernels run in long training than alone, each with its source and
// its error.
//
// Why slowdowns at all: a profile times kernels one by one on a cool GPU. In training the power limit lowers
// the clock, shapes change from op to op and parts are not fused. The slowdowns are fitted to published steps
// (tests/fit_published_steps.py) or to one's own (`equipoise fit --steps`), so they hold for the family of
// GPUs of those runs. On another family they are carried over, and marked so: without them one GPU's training
// would be compared with another's benchmarks. On kernels that somebody measured, and where they are really
// executed, they are 1. What a framework overlaps and shards is its own choice on any GPU and stays.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"
#include "profiler/profile/profile.h"
#include "sim/framework/framework_options.h"

namespace equipoise {

enum class KernelTimes { benchmark, fitted, borrowed };

// How a preset's slowdowns apply to a profile. `alone`: not at all, kernels run as fast as in the profile.
// `fitted`: its GPU is of the family on which they were fitted. `carried`: it is of another family.
enum class SlowdownRule : std::uint8_t { alone, fitted, carried };
inline constexpr std::string_view kSlowdownRuleNames[] = {"alone", "fitted", "carried"};
constexpr std::string_view name_of(SlowdownRule rule) {
  return kSlowdownRuleNames[at(rule)];
}

// What published steps on one GPU show of a preset that was fitted without them.
struct ErrorOnGpu {
  std::string gpu;  // a word of the GPU's name
  std::int64_t rows = 0;
  double mean_abs_error = 0, mean_error = 0;
};

// Slowdowns that replace the preset's own on some GPUs or at one precision, as published steps there require.
struct SlowdownsThere {
  std::vector<std::string> gpu_families;  // as the preset's gpu_families
  std::optional<Precision> precision;     // every one if none is named
  std::optional<double> gemm, attention, expert_product_seconds;
  std::optional<Load> load;

  [[nodiscard]] bool hold_on(const std::string& gpu, Precision of_steps) const;
};

struct FrameworkPreset {
  std::string name;
  std::string summary;
  std::string origin;  // the file
  int zero = 1;
  bool reduce_each_micro_batch = true;
  FrameworkOptions options;  // as on the GPUs where the slowdowns were fitted
  KernelTimes kernels = KernelTimes::benchmark;
  std::string borrowed_from;              // as KernelTimes::borrowed
  std::vector<std::string> gpu_families;  // words of a device's name; one of a Hopper GPU means all of them
  std::vector<ErrorOnGpu> on_gpus;
  std::vector<SlowdownsThere> there;  // the first that matches applies
  std::optional<double> error;  // mean absolute, on benchmarks that the fit did not see
  std::string skew_source;      // what is known of defaults.expert_skew, if the preset says it
  std::optional<Note> host;     // the host and what a launch takes on it; none if no host is modelled

  // `name_or_path` is the name of a shipped preset or a file. Throws UserError.
  static FrameworkPreset load(std::string_view name_or_path);
  static FrameworkPreset read(const nlohmann::json& file, const std::string& origin);

  // The preset's options without what was fitted to or assumed about its GPUs: kernels and host are as fast
  // as the profile has them.
  [[nodiscard]] FrameworkOptions alone() const;
  // Kernels that were measured on a machine already run at its speed, so that their rule is `alone`.
  [[nodiscard]] SlowdownRule rule_on(const Profile& profile) const;
  // The preset's error on published steps of the profile's GPU; empty if there are none.
  [[nodiscard]] std::optional<Note> error_on(const Profile& profile) const;
  // Replaces the preset's slowdowns if published steps on this GPU or at this precision require others.
  void slow_down(FrameworkOptions& slowed, const std::string& gpu, Precision precision) const;
  // How much slower than alone its kernels run with these options, and how well that is known.
  [[nodiscard]] Note kernel_note(const FrameworkOptions& slowed) const;
};

// Whether its GEMMs were measured on a machine: all of them, or the few that calibrated another machine's.
bool kernels_are_measured(const Profile& profile);
// How many of the other tables that simulations use were measured: those of an attention kernel (the
// profile's default if empty) and of row-wise ops.
enum class Measured : std::uint8_t { none, some, all };
Measured attention_measured(const Profile& profile, const std::string& kernel);
Measured elementwise_measured(const Profile& profile);
// The largest median error that the profile states for each measured kind of kernel, on samples which the
// fits did not see; may be empty. `network` is the one between nodes, or empty for the profile's default.
Notes measured_errors(const Profile& profile, const std::string& kernel, const std::string& network);

// How much slower than alone kernels run with these options. `known` says how well that is known.
Note slowdowns_note(const FrameworkOptions& options, Notes known);

inline constexpr std::string_view kDefaultFramework = "megatron";

// Names of the presets that are next to the program or in the source tree, sorted.
std::vector<std::string> shipped_frameworks();

}  // namespace equipoise
