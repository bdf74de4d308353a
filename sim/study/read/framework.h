// The `framework` of a study: a preset by name or file, and what differs from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/framework/expected_error.h"
#include "sim/framework/framework.h"
#include "sim/workload/layout.h"

namespace equipoise {

// A measured step of a row, and the factor on all times of kernels with which the simulated step takes as
// long (sim/study/anchor.h).
struct Anchor {
  std::string row;
  double seconds = 0;
  double factor = 1;
  std::string layout;  // degrees_text of the measured run; unknown if empty
};
inline constexpr double kLeastAnchor = 0.5, kMostAnchor = 2;

struct Framework {
  FrameworkPreset preset;
  bool reduce_each_micro_batch = true;
  // What the study states in addition to the preset holds on any profile. The preset's slowdowns do not hold
  // for kernels that were measured on a machine.
  FrameworkOptions in_training;
  FrameworkOptions alone;
  // Whether slowdowns are carried over to kernels on which they were not fitted. The default is yes for
  // published and derived kernels, and no for measured ones.
  std::optional<bool> carry_slowdowns;
  bool says_kernel = false;     // whether the study names the attention kernel
  bool says_launch = false;     // whether it states the host's time per launch
  bool says_own_kernel = false;  // whether it states the host's time per kernel of PyTorch's own functions
  bool says_slowdowns = false;  // whether it states one or more slowdowns
  std::optional<Anchor> anchor;
  Notes notes;

  [[nodiscard]] SlowdownRule rule_on(const Profile& profile) const;
  // The options on a profile's GPU, for steps in this precision.
  [[nodiscard]] FrameworkOptions on(const Profile& profile, Precision precision = Precision::bf16) const;
  // What a user must know of the options on this profile; nothing if the preset applies as it is.
  [[nodiscard]] Notes notes_on(const Profile& profile) const;
  // How much slower than alone kernels run on this profile, and how well that is known.
  [[nodiscard]] Notes kernel_notes_on(const Profile& profile, Precision precision = Precision::bf16) const;
  // How far real steps are from those predicted with these options. Null if the preset's own slowdowns do not
  // apply or no published step is similar. Where a step was measured, it is the error of a ratio to that
  // step: of two rows of one layout, or of two layouts where the study has another or the measured one is
  // unknown.
  [[nodiscard]] std::optional<ExpectedError> error_of(const StepFamily& steps, const Layout& layout,
                                                      const Profile& profile) const;
  // The errors that the profile states for its kernels (measured_errors), if nothing else is known.
  [[nodiscard]] Notes kernel_errors_on(const Profile& profile, const std::string& network = {}) const;
  // The assumed balance of the router's load on the experts' ranks.
  [[nodiscard]] Note routing_note_on(const Profile& profile) const;
};

// A preset without changes.
Framework framework_with(FrameworkPreset preset);
Framework framework_of(std::string_view preset);  // by name or path. Throws UserError

}  // namespace equipoise
