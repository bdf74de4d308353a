#include "sim/tune/space_facts.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"
#include "policies/steps.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/plan_row.h"

namespace equipoise {
namespace {

// Whether a policy leaves all lanes on the layout's CP ranks and no document on one of them.
bool spreads_documents(const PolicyRun& row) {
  constexpr std::string_view kSpread[] = {"plain", "fixed-greedy", "wlb", "chunkflow"};
  return std::ranges::count(kSpread, row.policy().name) > 0 && !row.rule().places_documents;
}

bool may_cut(const RowChoice& row) {
  return row.entry.contains("oversize") && row.entry["oversize"] != "error";
}

// Whether the row may even out stages, by its own value or its preset's, on layouts that allow it.
bool may_even_out(const RowChoice& row) {
  const auto preset = std::ranges::find(presets(), row.entry["name"], &Preset::name);
  return row.entry.value("stage_attention_exchange",
                         preset != presets().end() && preset->stage_attention_exchange);
}

// WLB-LLM's variable-length packing, whose micro-batches are as large as memory allows, so that it runs
// wherever anything does; where tokens may not wait so, windows as they arrive.
bool is_like_probe(const RowChoice& row, bool may_wait) {
  const nlohmann::json& name = row.entry["name"];
  return may_wait ? (name == "wlb-llm" || name == "wlb") && !row.entry.contains("max_tokens")
                  : name == "plain" || name == "plain-4d";
}

}  // namespace

SpaceFacts::SpaceFacts(const Candidates& candidates, const StudyInputs& inputs, const std::string& name,
                       bool may_wait)
    : candidates_(candidates), inputs_(inputs), name_(name) {
  for (std::size_t b = 0; b < candidates.bases.size(); ++b) least_.emplace_back(StepBound::kNear);
  for (std::uint32_t r = 0; r < candidates.rows.size(); ++r) {
    rows_.push_back(facts_of_row(r));
    rows_.back().like_probe = is_like_probe(candidates.rows[r], may_wait);
  }
  const auto probe = std::ranges::find(rows_, true, &RowFacts::like_probe);
  if (probe != rows_.end()) probe_ = static_cast<std::uint32_t>(probe - rows_.begin());
  pairs_ = visible_pairs(inputs.documents, study_of({}).model.reach());
  longest_ = longest_of(inputs.documents);
}

RowFacts SpaceFacts::facts_of_row(std::uint32_t r) const {
  RowFacts facts;
  facts.cuts = may_cut(candidates_.rows[r]) || may_even_out(candidates_.rows[r]);
  try {
    const Study study = study_of({0, r});
    const PolicyRun& row = study.policies.front();
    // A row's own recompute, and what hbp finds for each of its groups.
    facts.recomputes = row.has_recompute || row.policy().derives == Derives::groups;
    facts.exchanges = spreads_documents(row) && !row.context_comm;
    facts.packs_slowly = row.packs_slowly();
    if (row.context_comm) facts.cuts = true;  // since bounds on pairs assume the layout's own form
  } catch (const UserError&) {
    // It goes only with other layouts than the first.
  }
  return facts;
}

void SpaceFacts::price_layouts(const RunStudyOptions& options) {
  layouts_.resize(candidates_.layouts.size());
  parallel_for(std::max(1, options.jobs), layouts_.size(), [&](int, std::size_t i) {
    end_if_stopped(options);
    layouts_[i] = facts_of_layout(static_cast<std::uint32_t>(i));
  });
  for (std::uint32_t i = 0; i < layouts_.size(); ++i)
    if (layouts_[i].too_large.empty()) order_.push_back(i);
  std::ranges::stable_sort(order_, {}, [&](std::uint32_t i) { return layouts_[i].estimate; });
}

LayoutFacts SpaceFacts::facts_of_layout(std::uint32_t layout) {
  LayoutFacts facts;
  const Study study = study_of({layout, 0});
  try {
    bound_layout(study, layout, facts);
  } catch (const UserError&) {
    // Its rows are refused one by one, with their reasons.
  }
  if (facts.too_large.empty()) facts.has_room = probe_has_room(layout);
  return facts;
}

void SpaceFacts::bound_layout(const Study& study, std::uint32_t layout, LayoutFacts& facts) {
  const RunModels models(study, study.layout, inputs_.profile);
  for (int stage = 0; stage < study.layout.pipeline; ++stage)
    if (const double held = models.memory.fixed(stage).total(); held > models.memory.room_bytes()) {
      facts.too_large = concatenated(
          "stage ", stage, " holds ", static_cast<int>(held / kGiB), " GiB before any micro-batch, of ",
          static_cast<int>(models.memory.room_bytes() / kGiB), " GiB that may be filled");
      return;
    }
  // Bounds of a row without Skrull's placements hold for those with them: exchanges are excluded.
  const PolicyRun& row = study.policies.front();
  const StepBound bound(models, row, true, least_costs(layout).of(models.costs));
  // The bound of a row with its own recompute differs only where the layout repeats parts of layers.
  std::optional<RunModels> other_models;
  std::optional<StepBound> other_bound;
  if (study.layout.recompute == Recompute::selective || study.layout.recompute == Recompute::modules) {
    Layout keeps_all = study.layout;
    keeps_all.recompute = Recompute::none;
    other_models.emplace(study, keeps_all, inputs_.profile);
    other_bound.emplace(*other_models, row, true, least_costs(layout).of(other_models->costs));
  }
  const StepBound& keeping = other_bound ? *other_bound : bound;
  const auto tokens = static_cast<double>(inputs_.documents.tokens);
  const double micro_batches = static_cast<double>(micro_batches_of_step(row.pack)) / row.pack.lanes;
  const auto steps = static_cast<double>(inputs_.documents.batches.size());
  facts.estimate = bound.even_estimate(tokens, pairs_, micro_batches, steps) / tokens;
  for (const bool cuts : {false, true})
    for (const bool exchanges : {false, true}) {
      const double seen = cuts ? 0 : pairs_;
      facts.bound[cuts][0][exchanges] = bound.even_seconds(tokens, seen, true, exchanges) / tokens;
      facts.bound[cuts][1][exchanges] = keeping.even_seconds(tokens, seen, false, exchanges) / tokens;
    }
}

bool SpaceFacts::probe_has_room(std::uint32_t layout) const {
  try {
    const Study study = study_of({layout, probe_});
    StudyRow row(study, inputs_.documents, &inputs_.profile, study.policies.front());
    if (row.run.leaves_open()) return true;  // since each value has another schedule
    derive_sizes(row, false);
    if (row.no_room) return false;
    const auto hard_limit = row.run.policy().hard_limit;
    const std::int64_t most = hard_limit == nullptr ? 0 : hard_limit(row.run.pack);
    return most == 0 || may_cut(candidates_.rows[probe_]) || most >= longest_;
  } catch (const UserError&) {
    return true;  // it is refused with its reason when it is tried
  }
}

double SpaceFacts::bound_of(Point point) const {
  const RowFacts& row = rows_[point.row];
  return layouts_[point.layout].bound[row.cuts][row.recomputes][row.exchanges];
}

}  // namespace equipoise
