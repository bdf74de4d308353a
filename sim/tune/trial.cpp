#include "sim/tune/trial.h"

#include <vector>

#include "policies/base/error.h"
#include "policies/plan_metrics.h"
#include "policies/unplaceable.h"
#include "sim/study/ready_row.h"
#include "sim/study/simulate_plan.h"
#include "sim/study/step_runner.h"
#include "sim/tune/bound.h"

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

bool splits_backward(const Run& run) {
  return run.step_options().schedule->name.starts_with("zb");
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
  if (tokens <= 0) return ended(Outcome::refused, "no tokens in its plan");
  StepRunner runner(run, rule, run.step_options());
  double seconds = 0, least_so_far = 0;
  const double all = rest;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    end_if_stopped(run.options);
    if ((seconds + rest) / tokens > limit) {
      trial.outcome = Outcome::slower;
      trial.seconds_per_token = (seconds + rest) / tokens;
      trial.expected = least_so_far > 0 ? seconds / least_so_far * all / tokens : trial.seconds_per_token;
      return trial;
    }
    const StepResult result = runner.run(plan.steps[i], i);
    if (!fits(result.work, run.models.memory.capacity_bytes())) {
      Trial oom = ended(Outcome::oom, "step " + std::to_string(i) + " does not fit into memory");
      oom.steps = trial.steps + 1;
      return oom;
    }
    seconds += to_seconds(result.times.makespan);
    least_so_far += least[i];
    rest -= least[i];
    ++trial.steps;
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
  return stays ? first : other;
}

bool is_late(const StudyInputs& inputs, const Plan& plan, double most) {
  if (most == std::numeric_limits<double>::infinity()) return false;
  const auto delay = plan_metrics(inputs.documents.batches, plan).token_delay_mean;
  return !delay || *delay > most;
}

}  // namespace

Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options) {
  if (!study.impossible.empty()) return ended(Outcome::refused, study.impossible);
  try {
    ReadyRow ready = row_with_models(study, inputs, study.policies.front(), options);
    plan_ready_row(study, inputs, options, ready);
    if (!ready.no_room.empty()) return ended(Outcome::oom, ready.no_room);
    if (is_late(inputs, ready.planned.plan, limits.token_delay))
      return ended(Outcome::late, ready.planned.plan.sees_whole_set
                                      ? "it packs the whole set first: no delay is defined"
                                      : "tokens wait longer than --max-delay");
    return simulate_row(ready.run(study, inputs, options), ready.planned.plan, limits.seconds_per_token);
  } catch (const UnplaceableDocument& e) {
    return ended(Outcome::unplaceable, e.what());
  } catch (const UserError& e) {
    return ended(Outcome::refused, e.what());
  }
}

}  // namespace equipoise
