#include "sim/cli/study_options.h"

#include <charconv>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

// "0,3" as numbers; none for "all" and for an empty text.
std::vector<int> numbers_of(const char* option, const std::string& text) {
  std::vector<int> numbers;
  if (text.empty() || text == "all") return numbers;
  std::istringstream items(text + ',');
  for (std::string item; std::getline(items, item, ',');) {
    int number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size())
      throw UserError(std::string(option) + ": expected numbers, such as 0,3, or all, found " +
                      printable(text));
    numbers.push_back(number);
  }
  return numbers;
}

CounterSelection parse_counters(const std::string& text) {
  CounterSelection selection{false, false};
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');)
    if (item == "memory")
      selection.memory = true;
    else if (item == "tokens")
      selection.tokens = true;
    else if (text != "none")
      throw UserError("--timeline-counters: expected memory, tokens or none, found " + item);
  return selection;
}

StepSettings step_settings(const StudyOptions& options) {
  StepSettings settings;
  settings.fidelity = parse_fidelity(options.fidelity);
  settings.op = {!options.no_fold_tp, options.contention, options.jitter, options.jitter_seed,
                 parse_stragglers(options.stragglers)};
  if (settings.fidelity == Fidelity::stage && (options.no_fold_tp || !settings.op.is_plain()))
    throw UserError(
        "--no-fold-tp, --contention, --jitter and --stragglers need --fidelity op, found --fidelity stage");
  return settings;
}

}  // namespace

RunStudyOptions run_options(const StudyOptions& options) {
  RunStudyOptions run;
  run.steps = step_settings(options);
  if (options.chakra && (options.out.empty() || run.steps.fidelity == Fidelity::stage))
    throw UserError("--chakra needs --out DIR and --fidelity op");
  run.jobs = threads_of(options.jobs);
  run.keep_plans = !options.out.empty();
  run.ignore_memory = options.ignore_memory;
  run.verify = options.verify;
  run.max_delay = options.max_delay;
  if (!options.tokens.empty()) run.tokens_of_job = parse_tokens(options.tokens, "--tokens");
  run.record_gpus = !options.out.empty() || options.format == Format::json;
  run.details.steps = options.timeline_steps;
  run.details.gzip = options.timeline_gzip;
  const auto selected = [&](const char* option, const std::string& text) {
    return run.steps.fidelity == Fidelity::op && text.empty() ? std::vector<int>{0}
                                                              : numbers_of(option, text);
  };
  run.details.selection = {selected("--timeline-lanes", options.timeline_lanes),
                           selected("--timeline-stages", options.timeline_stages),
                           numbers_of("--timeline-ranks", options.timeline_ranks), options.no_fold_tp,
                           parse_counters(options.timeline_counters)};
  run.details.chakra = options.chakra;
  return run;
}

void check_parts(const RunStudyOptions& run, const Study& study) {
  const auto check = [](const char* option, const std::vector<int>& items, int count) {
    for (const int item : items)
      if (item < 0 || item >= count)
        throw UserError(std::string(option) + ": expected 0 to " + std::to_string(count - 1) + ", found " +
                        std::to_string(item));
  };
  const Layout& layout = study.layout;
  check("--timeline-stages", run.details.selection.stages, layout.pipeline);
  // There may be as many lanes or CP ranks as all DP x CP ranks (hbp).
  check("--timeline-lanes", run.details.selection.lanes, layout.data * layout.context);
  check("--timeline-ranks", run.details.selection.ranks, layout.data * layout.context);
  check_stragglers(run.steps, layout.gpus());
}

}  // namespace equipoise
