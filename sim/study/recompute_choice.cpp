#include "sim/study/recompute_choice.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {
namespace {

PolicyRun with_layers(const PolicyRun& run, int layers) {
  PolicyRun changed = run;
  changed.has_recompute = true;
  changed.recompute = Recompute::layers;
  changed.recompute_layers = layers;
  return changed;
}

// How a row decides what it recomputes.
std::string rule_of(const Study& study, const PolicyRun& run) {
  if (run.recompute_chosen) return "chosen by memory";
  const Layout layout = layout_of(study, run);
  if (layout.recompute == Recompute::modules) return names_of(layout.recompute_modules);
  if (layout.recompute != Recompute::layers) return std::string(name_of(layout.recompute));
  return std::to_string(layout.recompute_layers) + (layout.recompute_layers == 1 ? " layer" : " layers");
}

void choose_for_groups(const Study& study, const RunModels& models, PolicyRun& run) {
  const int all = study.model.layers;
  for (Group& group : run.pack.groups) {
    const int layers = layers_of_group(study, models, run, group.length, group.context);
    group.recompute_layers = layers < 0 ? all : layers;
  }
  run = with_layers(run, all);  // only where no group fits: every micro-batch has its group's own
}

}  // namespace

bool recompute_is_automatic(const Study& study, const PolicyRun& run) {
  return (run.has_recompute ? run.recompute : study.layout.recompute) == Recompute::automatic;
}

void choose_recompute(const Study& study, const RunModels& models, PolicyRun& run,
                      const std::function<bool(const PolicyRun&)>& runs, std::vector<std::string>& notes) {
  run.recompute_chosen = true;
  if (run.policy().derives == Derives::groups) {
    choose_for_groups(study, models, run);
    return;
  }
  int least = 0, most = study.model.layers;
  if (!runs(with_layers(run, 0))) {
    while (most - least > 1) {
      const int middle = least + (most - least) / 2;
      (runs(with_layers(run, middle)) ? most : least) = middle;
    }
  } else {
    most = 0;
  }
  run = with_layers(run, most);
  notes.push_back(run.label + ": recompute auto is " + std::to_string(most) + " of " +
                  std::to_string(study.model.layers) + " layers");
}

std::string recompute_difference(const Study& study, const StudyResult& result) {
  std::vector<std::string> rules, rows;
  for (const PolicyResult& row : result.policies) {
    if (!row.simulated()) continue;
    const std::string rule = rule_of(study, row.run);
    const auto known = std::find(rules.begin(), rules.end(), rule);
    if (known == rules.end()) {
      rules.push_back(rule);
      rows.push_back(row.run.label);
    } else {
      rows[at(known - rules.begin())] += ", " + row.run.label;
    }
  }
  if (rules.size() < 2) return "";
  std::string text = "recompute differs between rows, and so part of their speed-up: ";
  for (std::size_t i = 0; i < rules.size(); ++i)
    text += (i == 0 ? "" : "; ") + rules[i] + " (" + rows[i] + ")";
  return text;
}

}  // namespace equipoise
