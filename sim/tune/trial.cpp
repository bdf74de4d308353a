#include "sim/tune/trial.h"

#include <algorithm>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/loader.h"
#include "policies/plan_metrics.h"
#include "policies/policy.h"
#include "sim/report/words/words.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/judge.h"
#include "sim/study/row/pipeline.h"

namespace equipoise {

namespace {

Trial ended(Outcome outcome, const Note& reason) {
  Trial trial;
  trial.outcome = outcome;
  trial.reason = text_of(reason);
  return trial;
}

double tokens_of(const Step& step) {
  double tokens = 0;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      tokens += static_cast<double>(micro_batch.tokens());
  return tokens;
}

// Ends a trial early, as its last `least` is above the limit.
void end_early(Trial& trial) {
  const double first = trial.least.front(), last = trial.least.back();
  trial.outcome = Outcome::slower;
  trial.token_delay.reset();
  trial.peak_bytes = 0;
  trial.seconds_per_token = last;
  trial.steps = static_cast<int>(trial.least.size()) - 1;
  trial.expected = trial.steps > 0 ? first + (last - first) * trial.planned / trial.steps : last;
}

bool splits_backward(const SchedulePolicy& schedule) {
  return schedule.name.starts_with("zb") || schedule.bidirectional;
}

// Simulates the steps under one sharding rule and compares each with the limit.
Trial simulate_until_slower(const StudyRow& row, const Plan& plan, const ShardRule& rule,
                            const StepBound& bound, const RunStudyOptions& options, double limit) {
  std::vector<double> least;
  double tokens = 0, rest = 0;
  for (const Step& step : plan.steps) {
    least.push_back(bound.seconds(step));
    rest += least.back();
    tokens += tokens_of(step);
  }
  Trial trial;
  trial.planned = static_cast<int>(plan.steps.size());
  if (tokens <= 0) return ended(Outcome::refused, {"no_tokens", "", {}});
  StepRunner runner(row, rule, row.step_options(), options.steps);
  double seconds = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    end_if_stopped(options);
    trial.least.push_back((seconds + rest) / tokens);
    if (trial.least.back() > limit) {
      end_early(trial);
      return trial;
    }
    ++trial.steps;
    StepResult result;
    try {
      result = runner.simulate(plan.steps[i], i);
    } catch (const UserError& e) {  // a schedule that does not go with the micro-batches
      trial.outcome = Outcome::refused;
      trial.reason = e.what();
      return trial;
    }
    if (!fits(result.work, row.models->memory.capacity_bytes())) {
      trial.outcome = Outcome::oom;
      trial.reason = text_of({"step_too_large", "", {{"step", i}}});
      return trial;
    }
    trial.peak_bytes = std::max(trial.peak_bytes, result.work.peak.parts.total());
    seconds += to_seconds(result.times.makespan);
    rest -= least[i];
  }
  trial.outcome = Outcome::ok;
  trial.seconds_per_token = trial.expected = seconds / tokens;
  return trial;
}

// The better of the two rules that static-best chooses from, as simulate_plan has it.
Trial simulate_candidate(const StudyRow& row, const Plan& plan, const RunStudyOptions& options, double limit,
                         SharedLeastCosts* least) {
  const bool splits = splits_backward(row.schedule);
  const StepBound bound = least == nullptr
                              ? StepBound(*row.models, row.run, splits)
                              : StepBound(*row.models, row.run, splits, least->of(row.models->costs));
  const auto simulated = [&](std::string_view shard) {
    return simulate_until_slower(row, plan, row.rule(shard), bound, options, limit);
  };
  if (row.run.rule().choice != ShardChoice::static_best) return simulated(row.run.shard);
  const Trial first = simulated("per-sequence");
  const Trial other = simulated("per-document");
  const auto rank = [](const Trial& t) {
    return t.outcome == Outcome::ok ? 0 : t.outcome == Outcome::slower ? 1 : 2;
  };
  const bool stays = rank(first) != rank(other) ? rank(first) < rank(other)
                                                : first.seconds_per_token <= other.seconds_per_token;
  Trial chosen = stays ? first : other;
  chosen.least.clear();
  return chosen;
}

// Why the plan's tokens wait too long; empty where they do not.
std::optional<Note> lateness(const DocumentSet& documents, const Plan& plan, const TrialLimits& limits) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (limits.token_delay == kAny && limits.longest_delay == kAny) return {};
  const PlanMetrics metrics = plan_metrics(documents.batches, plan);
  if (!metrics.token_delay_mean) return Note{"no_delay_defined", "", {}};
  if (*metrics.token_delay_mean > limits.token_delay) return Note{"tokens_wait", "", {}};
  if (*metrics.token_delay_max <= limits.longest_delay) return {};
  Notes more;
  if (metrics.queue_emptied == 0.0) more.push_back({"never_emptied", "", {}});
  return Note{"a_token_waits", "", {{"iterations", *metrics.token_delay_max}, {"more", std::move(more)}}};
}

// Throws what packing would where a document is too long for the policy, before anything is priced.
void check_longest(const StudyRow& row) {
  const PolicyRun& run = row.run;
  if (run.has_plan_file() || run.policy().hard_limit == nullptr || run.chooses_groups()) return;
  const std::int64_t limit = run.policy().hard_limit(run.pack);
  if (limit <= 0 || run.pack.oversize != Oversize::error || longest_of(row.documents) <= limit) return;
  (void)make_plan(run.policy(), {row.documents.batches, run.pack, QuadraticWorkload()});
}

// Throws where the row's schedule does not take the layout's model chunks, whatever is packed.
void check_schedule(const StudyRow& row) {
  const Layout& layout = row.models->layout;
  if (layout.virtual_pipeline == 1) return;
  const std::vector<std::int32_t> groups(static_cast<std::size_t>(layout.pipeline), 1);
  (void)row.schedule.make({layout.pipeline, layout.virtual_pipeline, groups});
}

// The row's plan: its own, or one that it shares.
std::shared_ptr<const PackedRow> packed_row(StudyRow& row, const RunStudyOptions& options,
                                            const Shared& shared) {
  const auto pack = [&] {
    Plan plan = pack_row(row, options).plan;
    return std::make_shared<const PackedRow>(PackedRow{row.models, row.workload, std::move(plan)});
  };
  if (shared.plans == nullptr) return pack();
  const std::string key = plan_key(shared.alike, *row.models, row.run);
  return key.empty() ? pack() : shared.plans->find(key, pack);
}

Trial plan_and_simulate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                        const RunStudyOptions& options, const Shared& shared) {
  StudyRow row = ready_row(study, inputs, study.policies.front(), trial_options(options));
  check_schedule(row);
  derive_sizes(row, options.ignore_memory);
  if (row.no_room) return ended(Outcome::oom, *row.no_room);
  check_longest(row);
  const std::shared_ptr<const PackedRow> packed = packed_row(row, options, shared);
  if (const std::optional<Note> late = lateness(row.documents, packed->plan, limits))
    return ended(Outcome::late, *late);
  row.workload = packed->workload;
  Trial trial = simulate_candidate(row, packed->plan, options, limits.seconds_per_token, shared.least);
  if (trial.outcome == Outcome::ok)
    trial.token_delay = plan_metrics(row.documents.batches, packed->plan).token_delay_mean;
  else
    trial.peak_bytes = 0;
  return trial;
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
  const auto above = std::ranges::find_if(known.least, [&](double least) { return least > limit; });
  Trial trial = known;
  trial.limit = limit;
  if (above == known.least.end()) return trial;
  trial.reason.clear();
  trial.least.assign(known.least.begin(), above + 1);
  end_early(trial);
  return trial;
}

Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options, const Shared& shared) {
  Trial trial;
  try {
    trial = study.impossible.empty() ? plan_and_simulate(study, inputs, limits, options, shared)
                                     : ended(Outcome::refused, fault_note(study.impossible));
  } catch (const UnplaceableDocument& e) {
    trial = ended(Outcome::unplaceable, fault_note(e.what()));
  } catch (const UserError& e) {
    trial = ended(Outcome::refused, fault_note(e.what()));
  }
  trial.limit = limits.seconds_per_token;
  return trial;
}

}  // namespace equipoise
