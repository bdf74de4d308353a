#include "sim/tune/proposed_layout.h"

#include <algorithm>

#include "sim/export/export.h"
#include "sim/framework/framework_runs.h"
#include "sim/study/models.h"
#include "sim/study/study_inputs.h"
#include "sim/tune/search.h"

namespace equipoise {
namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kFewestTried = 48;

// Every layout that the model's sizes allow, under one policy: which layout is best hangs far less on the
// policy than on memory and on what each axis sends.
Space layouts_of(const Study& study, const nlohmann::json& file, std::int64_t gpus, int gpus_per_node) {
  Space space = default_space(study, file, gpus, gpus_per_node);
  std::erase_if(space.shared, [](const TriedKey& axis) {
    return axis.key == "parallel.context_comm" || axis.key == "parallel.context_inner";
  });
  space.policies = {{{"name", {"plain-4d"}}}};
  return space;
}

// The object that a study would have: axes of degree 1 are the default.
nlohmann::json parallel_of(const nlohmann::json& keys) {
  nlohmann::json parallel = nlohmann::json::object();
  for (const auto& [key, value] : keys.items())
    if (value != 1 || key == "parallel.tensor" || key == "parallel.data")
      parallel[key.substr(std::string_view("parallel.").size())] = value;
  return parallel;
}

// Recompute never counts, since a line of code sets it where no flag does.
Unwanted not_in_framework(const std::string& framework) {
  const FrameworkRuns* runs = framework_runs(framework);
  if (runs == nullptr || runs->target.empty()) return {};
  return {[&to = exporter_of(std::string(runs->target))](Study one) {
            one.layout.recompute = Recompute::none;
            return untold(to, one, Untold::layout);
          },
          {}};
}

}  // namespace

std::optional<ProposedLayout> proposed_layout(nlohmann::json file, std::int64_t gpus,
                                              const RunStudyOptions& options) {
  file["parallel"] = nlohmann::json::object();
  file["policies"] = {"plain-4d"};
  file.erase("baseline");
  file["batch"]["steps"] = kSteps;
  const std::string name = file.value("name", "");
  const Study study = parse_study(file, name);
  const StudyInputs inputs = load_inputs(study);
  const Space space = layouts_of(study, file, gpus, gpus_per_node(study.cluster, inputs.profile));
  const Candidates candidates =
      candidates_of(space, file, gpus, name, options.jobs, not_in_framework(study.framework.preset.name));
  SearchOptions search_options;
  search_options.keep = 1;
  search_options.run = trial_options(options);
  search_options.run.find_fits = false;
  search_options.name = name;
  SearchResult found;
  // The most promising layouts are tried first, which need not be those that need least memory.
  for (search_options.budget = kFewestTried; found.ranking.empty(); search_options.budget *= 4) {
    found = search(candidates, inputs, search_options, nullptr);
    if (found.interrupted) throw Interrupted();
    if (search_options.budget >= candidates.count()) break;
  }
  if (found.ranking.empty()) return std::nullopt;
  const Tried& best = found.tried[found.ranking.front()];
  const LayoutChoice& choice = candidates.layouts[best.point.layout];
  return ProposedLayout{parallel_of(choice.keys), choice.layout, best.trial.seconds_per_token,
                        inputs.profile.device().memory_bytes - best.trial.peak_bytes,
                        static_cast<std::int64_t>(found.tried.size())};
}

}  // namespace equipoise
