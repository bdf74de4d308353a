// One reader a form of log. Each takes the decompressed text and the file's name for errors.
#pragma once

#include <string>
#include <string_view>

#include "sim/validation/measured_log.h"

namespace equipoise::logs {

MeasuredLog read_csv(std::string_view text, const std::string& name);
MeasuredLog read_megatron(std::string_view text, const std::string& name);
MeasuredLog read_chrome_trace(std::string_view text, const std::string& name);

// What every Megatron-LM log has in its lines.
inline constexpr std::string_view kMegatronTime = "elapsed time per iteration (ms):";

// The longest step that is one: 10^7 s.
inline constexpr double kLongestStep = 1e7;
inline bool is_step_time(double seconds) {
  return seconds > 0 && seconds <= kLongestStep;
}

}  // namespace equipoise::logs
