#include "sim/study/group_search.h"

#include <algorithm>

#include "policies/packing/hbp_search.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

std::vector<std::int64_t> pack_lengths(const Study& study, const PolicyRun& run) {
  const std::vector<std::int64_t>& typed = run.pack.of<HbpOptions>().candidate_lengths;
  if (!typed.empty()) return typed;
  constexpr std::int64_t kShortest = 8192;
  std::vector<std::int64_t> lengths;
  for (std::int64_t l = kShortest; l <= study.batch.context_window; l *= 2) lengths.push_back(l);
  if (lengths.empty()) lengths.push_back(study.batch.context_window);
  return lengths;
}

// Groups are formed of the DP x CP ranks.
bool has_degree(const RunModels& models, int degree) {
  const Layout& layout = models.layout;
  if (layout.data * layout.context % degree != 0) return false;
  return heads_suit(context_form(layout.context_comm), models.costs.model().heads / layout.tensor, degree);
}

int layers_of(const Study& study, const RunModels& models, const PolicyRun& run, std::int64_t length,
              int degree) {
  return has_degree(models, degree) ? layers_of_group(study, models, run, length, degree) : -1;
}

}  // namespace

bool any_group_fits(const Study& study, const RunModels& models, const PolicyRun& run) {
  for (const std::int64_t length : pack_lengths(study, run))
    for (const int degree : hbp_degrees(run.pack))
      if (layers_of(study, models, run, length, degree) >= 0) return true;
  return false;
}

void choose_groups(const Study& study, const RunModels& models, const PackingProblem& problem,
                   const std::function<double(const Plan&)>& seconds, PolicyRun& run,
                   std::vector<std::string>& notes) {
  const std::vector<std::int64_t> lengths = pack_lengths(study, run);
  const GroupCosts costs{
      [&](std::int64_t length, int degree) { return layers_of(study, models, run, length, degree); },
      seconds};
  GroupSearch found = search_hbp_groups(problem, lengths, costs);
  for (const std::int64_t length : lengths) {
    bool fits = std::find(found.unused.begin(), found.unused.end(), length) != found.unused.end();
    for (const GroupCandidate& c : found.candidates) fits = fits || c.length == length;
    if (!fits)
      notes.push_back(run.label + ": no CP degree of the layout fits packs of " + std::to_string(length) +
                      " tokens into memory");
  }
  HbpOptions& own = run.pack.of<HbpOptions>();
  own.groups = std::move(found.groups);
  run.recompute_chosen = true;
  own.candidates = std::move(found.candidates);
}

}  // namespace equipoise
