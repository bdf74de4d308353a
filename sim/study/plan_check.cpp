#include "sim/study/plan_check.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "policies/base/error.h"
#include "policies/validator.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

std::string lane_text(std::size_t step, std::size_t lane) {
  return "steps[" + std::to_string(step) + "].lanes[" + std::to_string(lane) + "]";
}

// Whether the layout has CP groups of so many ranks.
std::string allowed_degrees(const Study& study, int degree) {
  const Layout& layout = study.layout;
  const int ranks = layout.data * layout.context;
  if (ranks % degree != 0) return "a divisor of data x context = " + std::to_string(ranks);
  const ContextForm& form = context_form(layout.context_comm);
  if (form.head_shares({degree, degree}) == 1) return "";
  const int heads = study.model.heads / layout.tensor;
  const bool power = std::has_single_bit(static_cast<unsigned>(degree));
  if ((power || degree == layout.context) && heads_suit(form, heads, degree)) return "";
  return "a power of two that divides the " + std::to_string(heads) +
         " query heads of a TP rank (context_comm " + std::string(name_of(layout.context_comm)) + ")";
}

// Barrier groups count up from 0 in the order of the lanes: that is what engines and traces run.
void check_lanes(const Study& study, const PolicyRun& run) {
  const auto refuse = [&](std::size_t s, std::size_t l, const std::string& key, const std::string& allowed,
                          int found) {
    throw UserError(run.plan_file + ": " + lane_text(s, l) + "." + key + ": expected " + allowed +
                    ", found " + std::to_string(found));
  };
  for (std::size_t s = 0; s < run.plan->steps.size(); ++s) {
    int group = 0;
    const std::vector<Lane>& lanes = run.plan->steps[s].lanes;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      if (const std::string allowed = allowed_degrees(study, lanes[l].context); !allowed.empty())
        refuse(s, l, "context", allowed, lanes[l].context);
      const int next = lanes[l].barrier_group;
      if (next != group && (next != group + 1 || l == 0))
        refuse(s, l, "barrier_group",
               l == 0 ? "0" : std::to_string(group) + " or " + std::to_string(group + 1), next);
      group = next;
    }
  }
}

// Where the plan begins and ends a piece that attends to nothing before it; sorted.
std::vector<std::pair<std::int64_t, std::int64_t>> cuts_of(const Plan& plan) {
  std::vector<std::pair<std::int64_t, std::int64_t>> cuts;
  for (const Slice& s : plan.dropped) {
    cuts.emplace_back(s.document, s.begin);
    cuts.emplace_back(s.document, s.end);
  }
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches)
        for (const Slice& s : m.slices) {
          if (m.chunk.index == 0) cuts.emplace_back(s.document, s.begin);
          if (m.chunk.index + 1 == m.chunk.count) cuts.emplace_back(s.document, s.end);
        }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The study's batches with every slice cut into the plan's pieces.
std::vector<GlobalBatch> cut_batches(const std::vector<GlobalBatch>& batches, const Plan& plan) {
  const auto cuts = cuts_of(plan);
  std::vector<GlobalBatch> cut(batches.size());
  for (std::size_t b = 0; b < batches.size(); ++b)
    for (const Slice& s : batches[b].slices) {
      Slice rest = s;
      auto at = std::upper_bound(cuts.begin(), cuts.end(), std::pair{s.document, s.begin});
      for (; at != cuts.end() && at->first == s.document && at->second < s.end; ++at) {
        cut[b].slices.push_back({s.document, rest.begin, at->second});
        rest.begin = at->second;
      }
      cut[b].slices.push_back(rest);
    }
  return cut;
}

void note_idle_ranks(const Study& study, const Plan& plan, std::vector<std::string>& notes) {
  const std::int64_t ranks = std::int64_t{study.layout.data} * study.layout.context;
  std::int64_t least = ranks;
  std::size_t steps = 0;
  for (const Step& step : plan.steps) {
    std::int64_t used = 0;
    for (const Lane& lane : step.lanes) used += lane.barrier_group == 0 ? lane.context : 0;
    least = std::min(least, used);
    steps += used < ranks ? 1 : 0;
  }
  if (steps > 0)
    notes.push_back("lanes use " + std::to_string(least) + " of the " + std::to_string(ranks) +
                    " ranks of data x context in " + std::to_string(steps) + " of " +
                    std::to_string(plan.steps.size()) + " steps; the others idle");
}

}  // namespace

void check_plan(const Study& study, const DocumentSet& documents, const PolicyRun& run,
                std::vector<std::string>& notes) {
  const Plan& plan = *run.plan;
  if (plan.steps.empty()) throw UserError(run.plan_file + ": steps: expected at least one step, found none");
  check_lanes(study, run);
  PlanLimits limits;
  limits.gpus = std::int64_t{study.layout.data} * study.layout.context;
  limits.rank_tokens = run.says("bucket_size") ? run.pack.bucket_size : 0;
  const std::optional<std::string> wrong = plan_violation(documents.batches, plan, limits);
  if (wrong && plan_violation(cut_batches(documents.batches, plan), plan, limits))
    throw UserError(run.plan_file + ": does not fit the study: " + *wrong);
  if (wrong) notes.push_back("the plan's pieces of documents run as documents of their own, in any order");
  note_idle_ranks(study, plan, notes);
}

}  // namespace equipoise
