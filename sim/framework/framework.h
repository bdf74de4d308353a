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

// How a preset's slowdowns apply to a profile. alone: they do not count, kernels run as fast as the profile
// has them; fitted: its GPU is of the family that they were fitted on; carried: it is of another.
enum class SlowdownRule : std::uint8_t { alone, fitted, carried };
inline constexpr std::string_view kSlowdownRuleNames[] = {"alone", "fitted", "carried"};
constexpr std::string_view name_of(SlowdownRule rule) {
  return kSlowdownRuleNames[at(rule)];
}

// What published steps of one GPU show of a preset that did not see them.
struct ErrorOnGpu {
  std::string gpu;  // a word of its name
  std::int64_t rows = 0;
  double mean_abs_error = 0, mean_error = 0;
};

// Slowdowns that published steps of some GPUs or of a precision ask for, instead of the preset's own.
struct SlowdownsThere {
  std::vector<std::string> gpu_families;  // as the preset's
  std::optional<Precision> precision;     // none: every one
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
  FrameworkOptions options;  // as on the GPUs that the slowdowns were fitted on
  KernelTimes kernels = KernelTimes::benchmark;
  std::string borrowed_from;              // of KernelTimes::borrowed
  std::vector<std::string> gpu_families;  // words of a device's name; one of Hopper's means all of them
  std::vector<ErrorOnGpu> on_gpus;
  std::vector<SlowdownsThere> there;      // the first that holds counts
  std::optional<double> error;  // mean absolute, on benchmarks that the fit did not see
  std::string skew_source;      // what is known of defaults.expert_skew, where the preset says it
  std::optional<Note> host;     // what a launch takes it; empty: no host is meant

  // `name_or_path`: a shipped preset's name or a file. Throws UserError.
  static FrameworkPreset load(std::string_view name_or_path);
  static FrameworkPreset read(const nlohmann::json& file, const std::string& origin);

  // The preset's options without what was fitted or assumed of its GPUs: kernels and host are as fast as the
  // profile has them.
  [[nodiscard]] FrameworkOptions alone() const;
  // Kernels that someone measured on a machine are that machine's: there the rule is `alone`.
  [[nodiscard]] SlowdownRule rule_on(const Profile& profile) const;
  // How far off it is on published steps of the profile's GPU. Empty where there are none.
  [[nodiscard]] std::optional<Note> error_on(const Profile& profile) const;
  // Puts the slowdowns of these steps in place of the preset's own, where published steps ask for others.
  void slow_down(FrameworkOptions& slowed, const std::string& gpu, Precision precision) const;
  // How much slower than alone its kernels run with these options, and how well that is known.
  [[nodiscard]] Note kernel_note(const FrameworkOptions& slowed) const;
};

// Whether someone measured its GEMMs on a machine, all of them or the few that calibrated another's.
bool kernels_are_measured(const Profile& profile);
// How many of the other tables that simulations use, those of an attention kernel (empty: the profile's
// default) and those of row-wise ops.
enum class Measured : std::uint8_t { none, some, all };
Measured attention_measured(const Profile& profile, const std::string& kernel);
Measured elementwise_measured(const Profile& profile);
// For each kind of kernel that was measured, the largest median error that the profile states of it, on
// samples which the fits did not see; empty where it states none.
// `network`: between nodes, by its name; empty: the profile's default.
Notes measured_errors(const Profile& profile, const std::string& kernel, const std::string& network);

// How much slower than alone kernels run by these options. `known`: how well that is known.
Note slowdowns_note(const FrameworkOptions& options, Notes known);

inline constexpr std::string_view kDefaultFramework = "megatron";

// Names of the presets that are found next to the program or in the source tree, sorted.
std::vector<std::string> shipped_frameworks();

}  // namespace equipoise
