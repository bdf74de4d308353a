// What a study's `framework` says: a preset by name or file, and what differs from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/framework/expected_error.h"
#include "sim/framework/framework.h"

namespace equipoise {

// A row's step as somebody measured it, and the factor on all times of kernels with which the simulated one
// takes as long (sim/study/anchor.h).
struct Anchor {
  std::string row;
  double seconds = 0;
  double factor = 1;
};
inline constexpr double kLeastAnchor = 0.5, kMostAnchor = 2;

struct Framework {
  FrameworkPreset preset;
  bool reduce_each_micro_batch = true;
  // What the study states in addition to the preset counts on any profile; the preset's slowdowns not on
  // kernels that somebody measured.
  FrameworkOptions in_training;
  FrameworkOptions alone;
  // Whether slowdowns are carried over to kernels that they were not fitted on: by default to published and
  // derived ones, not to measured ones.
  std::optional<bool> carry_slowdowns;
  bool says_kernel = false;     // the study names the attention kernel
  bool says_launch = false;     // and what a launch takes the host
  bool says_slowdowns = false;  // and one or more slowdowns
  std::optional<Anchor> anchor;
  Notes notes;

  [[nodiscard]] SlowdownRule rule_on(const Profile& profile) const;
  // The options on a profile's GPU, for steps in this precision.
  [[nodiscard]] FrameworkOptions on(const Profile& profile, Precision precision = Precision::bf16) const;
  // What a user must know of them there; nothing if the preset applies as it is.
  [[nodiscard]] Notes notes_on(const Profile& profile) const;
  // How much slower than alone kernels run there, and how well that is known.
  [[nodiscard]] Notes kernel_notes_on(const Profile& profile, Precision precision = Precision::bf16) const;
  // How long steps predicted with these options really take. Null where the preset's own slowdowns do not
  // count, where no published step is like them, and where a step was measured: then only ratios to it are
  // predicted.
  [[nodiscard]] std::optional<ExpectedError> error_of(const StepFamily& steps, const Profile& profile) const;
  // What the profile states of its kernels where that is all that is known (measured_errors); else empty.
  [[nodiscard]] Notes kernel_errors_on(const Profile& profile, const std::string& network = {}) const;
  // How evenly the router is taken to load the experts' ranks there.
  [[nodiscard]] Note routing_note_on(const Profile& profile) const;
};

// A preset and nothing else.
Framework framework_with(FrameworkPreset preset);
Framework framework_of(std::string_view preset);  // by name or path. Throws UserError

}  // namespace equipoise
