#include "sim/study/run_options.h"

#include <sstream>

#include "policies/base/error.h"
#include "policies/base/text.h"

namespace equipoise {

Fidelity parse_fidelity(const std::string& text) {
  return static_cast<Fidelity>(choice_of(text, "--fidelity", kFidelityNames));
}

// A slower GPU takes part in no real training, and its times would overflow the clock.
constexpr double kLeastSpeed = 1e-3, kMostSpeed = 10;

std::vector<std::pair<int, double>> parse_stragglers(const std::string& text) {
  std::vector<std::pair<int, double>> list;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    std::istringstream in(item);
    int gpu = -1;
    char colon = 0;
    double speed = 0;
    if (!(in >> gpu >> colon >> speed) || colon != ':' || gpu < 0 || !(speed >= kLeastSpeed) ||
        speed > kMostSpeed || in.peek() != EOF)
      throw UserError("--stragglers: expected GPU:SPEED pairs such as 12:0.8, with speeds from ",
                      short_number(kLeastSpeed), " to ", short_number(kMostSpeed), ", found ", item);
    for (const auto& [known, its_speed] : list)
      if (known == gpu) throw UserError("--stragglers: expected each GPU once, found GPU ", gpu, " twice");
    list.emplace_back(gpu, speed);
  }
  return list;
}

void check_stragglers(const StepSettings& settings, std::int64_t gpus) {
  for (const auto& [gpu, speed] : settings.op.stragglers)
    if (gpu < 0 || gpu >= gpus)
      throw UserError("--stragglers: expected GPUs 0 to ", gpus - 1, ", found ", gpu);
}

RunStudyOptions trial_options(const RunStudyOptions& options) {
  RunStudyOptions trial;
  trial.jobs = options.jobs;
  trial.row = options.row;
  trial.stop = options.stop;
  return trial;
}

void end_if_stopped(const RunStudyOptions& options) {
  if (options.stop != nullptr && *options.stop) throw Interrupted();
  if (options.row != nullptr && options.row->is_in_vain()) throw Interrupted();
}

}  // namespace equipoise
