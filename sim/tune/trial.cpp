#include "sim/tune/trial.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "policies/base/error.h"
#include "policies/plan_metrics.h"
#include "policies/policy.h"
#include "policies/unplaceable.h"
#include "sim/study/ready_row.h"
#include "sim/study/simulate_plan.h"
#include "sim/study/step_runner.h"
#include "sim/tune/bound.h"
#include "sim/tune/plan_cache.h"

namespace equipoise {
namespace {

Trial ended(Outcome outcome, std::string reason) {
  Trial trial;
  trial.outcome = outcome;
  trial.reason = std::move(reason);
  return trial;
}

double tokens_of(const Step& step) {
  double tokens = 0;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      tokens += static_cast<double>(micro_batch.tokens());
  return tokens;
}

// The last of trial.least is above the limit.
void end_early(Trial& trial) {
  const double first = trial.least.front(), last = trial.least.back();
  trial.outcome = Outcome::slower;
  trial.seconds_per_token = last;
  trial.steps = static_cast<int>(trial.least.size()) - 1;
  trial.expected = trial.steps > 0 ? first + (last - first) * trial.planned / trial.steps : last;
}

bool splits_backward(const Run& run) {
  const SchedulePolicy& schedule = *run.step_options().schedule;
  return schedule.name.starts_with("zb") || schedule.bidirectional;
}

// Steps under one sharding rule, each held against the limit.
Trial simulate(const Run& run, const Plan& plan, const ShardRule& rule, double limit) {
  const StepBound bound(run.models, run.row, splits_backward(run));
  std::vector<double> least;
  double tokens = 0, rest = 0;
  for (const Step& step : plan.steps) {
    least.push_back(bound.seconds(step));
    rest += least.back();
    tokens += tokens_of(step);
  }
  Trial trial;
  trial.planned = static_cast<int>(plan.steps.size());
  if (tokens <= 0) return ended(Outcome::refused, "no tokens in its plan");
  StepRunner runner(run, rule, run.step_options());
  double seconds = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    end_if_stopped(run.options);
    trial.least.push_back((seconds + rest) / tokens);
    if (trial.least.back() > limit) {
      end_early(trial);
      return trial;
    }
    ++trial.steps;
    StepResult result;
    try {
      result = runner.run(plan.steps[i], i);
    } catch (const UserError& e) {  // a schedule that does not go with the micro-batches
      trial.outcome = Outcome::refused;
      trial.reason = e.what();
      return trial;
    }
    if (!fits(result.work, run.models.memory.capacity_bytes())) {
      trial.outcome = Outcome::oom;
      trial.reason = "step " + std::to_string(i) + " does not fit into memory";
      return trial;
    }
    seconds += to_seconds(result.times.makespan);
    rest -= least[i];
  }
  trial.outcome = Outcome::ok;
  trial.seconds_per_token = trial.expected = seconds / tokens;
  return trial;
}

// The better of the two rules that static-best chooses from, as simulate_plan has it.
Trial simulate_row(const Run& run, const Plan& plan, double limit) {
  if (run.row.rule().choice != ShardChoice::static_best)
    return simulate(run, plan, run.rule(run.row.shard), limit);
  const Trial first = simulate(run, plan, run.rule("per-sequence"), limit);
  const Trial other = simulate(run, plan, run.rule("per-document"), limit);
  const auto rank = [](const Trial& t) {
    return t.outcome == Outcome::ok ? 0 : t.outcome == Outcome::slower ? 1 : 2;
  };
  const bool stays = rank(first) != rank(other) ? rank(first) < rank(other)
                                                : first.seconds_per_token <= other.seconds_per_token;
  Trial chosen = stays ? first : other;
  chosen.least.clear();
  return chosen;
}

bool is_late(const StudyInputs& inputs, const Plan& plan, double most) {
  if (most == std::numeric_limits<double>::infinity()) return false;
  const auto delay = plan_metrics(inputs.documents.batches, plan).token_delay_mean;
  return !delay || *delay > most;
}

}  // namespace

std::optional<Trial> under_limit(const Trial& known, double limit) {
  const bool early = known.outcome == Outcome::slower;
  if (limit == known.limit ||
      (!early && (known.steps == 0 || (limit > known.limit && !known.least.empty())))) {
    Trial same = known;
    same.limit = limit;
    return same;
  }
  if (limit > known.limit || known.least.empty()) return std::nullopt;
  const auto above =
      std::find_if(known.least.begin(), known.least.end(), [&](double least) { return least > limit; });
  Trial trial = known;
  trial.limit = limit;
  if (above == known.least.end()) return trial;
  trial.reason.clear();
  trial.least.assign(known.least.begin(), above + 1);
  end_early(trial);
  return trial;
}

namespace {

// Throws what packing would where a document is too long for the policy, before anything is priced.
void check_longest(const StudyInputs& inputs, const PolicyRun& row) {
  if (row.has_plan_file() || row.policy().hard_limit == nullptr || chooses_groups(row)) return;
  const std::int64_t limit = row.policy().hard_limit(row.pack);
  if (limit <= 0 || row.pack.oversize != Oversize::error || longest_of(inputs.documents) <= limit) return;
  (void)make_plan(row.policy(), {inputs.documents.batches, row.pack, QuadraticWorkload()});
}

// Throws where the row's schedule does not take the layout's model chunks, whatever is packed.
void check_schedule(const Study& study, const ReadyRow& ready) {
  const Layout& layout = ready.models->layout;
  if (layout.virtual_pipeline == 1) return;
  const std::vector<std::int32_t> groups(static_cast<std::size_t>(layout.pipeline), 1);
  const std::string& name = ready.row.schedule.empty() ? study.schedule : ready.row.schedule;
  (void)schedule_policy(name).make({layout.pipeline, layout.virtual_pipeline, groups});
}

// The row planned: `ready` itself, or one whose plan it shares.
std::shared_ptr<const ReadyRow> planned(const Study& study, const StudyInputs& inputs,
                                        const RunStudyOptions& options, const SharedPlans& plans,
                                        const std::shared_ptr<ReadyRow>& ready) {
  const auto plan = [&] {
    pack_ready_row(study, inputs, options, *ready);
    return ready;
  };
  if (plans.cache == nullptr) return plan();
  const std::string key = plan_key(plans.alike, *ready->models, ready->row);
  return key.empty() ? plan() : plans.cache->find(key, plan);
}

Trial plan_and_simulate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                        const RunStudyOptions& options, const SharedPlans& plans) {
  const auto ready =
      std::make_shared<ReadyRow>(row_with_models(study, inputs, study.policies.front(), options));
  check_schedule(study, *ready);
  derive_sizes(study, options, *ready);
  if (!ready->no_room.empty()) return ended(Outcome::oom, ready->no_room);
  check_longest(inputs, ready->row);
  const std::shared_ptr<const ReadyRow> packed = planned(study, inputs, options, plans, ready);
  const Plan& plan = packed->planned.plan;
  if (is_late(inputs, plan, limits.token_delay))
    return ended(Outcome::late, plan.sees_whole_set ? "it packs the whole set first: no delay is defined"
                                                    : "tokens wait longer than --max-delay");
  const Run run{study, *ready->models, inputs.documents, ready->row, *packed->workload, options};
  return simulate_row(run, plan, limits.seconds_per_token);
}

}  // namespace

Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options, const SharedPlans& plans) {
  Trial trial;
  try {
    trial = study.impossible.empty() ? plan_and_simulate(study, inputs, limits, options, plans)
                                     : ended(Outcome::refused, study.impossible);
  } catch (const UnplaceableDocument& e) {
    trial = ended(Outcome::unplaceable, e.what());
  } catch (const UserError& e) {
    trial = ended(Outcome::refused, e.what());
  }
  trial.limit = limits.seconds_per_token;
  return trial;
}

}  // namespace equipoise
