#include "sim/tune/trial.h"

#include <algorithm>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/loader.h"
#include "policies/make_plan.h"
#include "policies/plan_metrics.h"
#include "policies/policy.h"
#include "sim/report/words/words.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/judge.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/row/runs_in.h"

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

double pairs_of(const Step& step, Reach reach) {
  double pairs = 0;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices) pairs += visible_pairs(slice, micro_batch.chunk, reach);
  return pairs;
}

// Ends a trial early, because its last `least` is above the limit.
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

// The parts that a candidate's run needs: its row, its plan and the limits.
struct TrialRun {
  const StudyRow& row;
  const Plan& plan;
  const StepBound& bound;
  const RunStudyOptions& options;
  const TrialLimits& limits;
  double slower;             // seconds per token above which it ends early
  const Arrivals* arrivals;  // null if the policy sees the whole set
};

// Simulates step `i`, adds to trial.steps and trial.peak_bytes; nothing where it ends the trial.
std::optional<StepResult> simulate_step(const TrialRun& run, StepRunner& runner, std::size_t i,
                                        Trial& trial) {
  end_if_stopped(run.options);
  ++trial.steps;
  std::optional<StepResult> result;
  try {
    result = runner.simulate(run.plan.steps[i], i);
  } catch (const UserError& e) {  // the schedule does not go with the micro-batches
    trial.outcome = Outcome::refused;
    trial.reason = e.what();
    return {};
  }
  if (!fits(result->work, run.row.models->memory.room_bytes())) {
    trial.outcome = Outcome::oom;
    trial.reason = text_of({"step_too_large", "", {{"step", i}}});
    return {};
  }
  trial.peak_bytes = std::max(trial.peak_bytes, result->work.peak.parts.total());
  return result;
}

// Simulates the steps under one sharding rule, compares each with the limit and adds it to `ran`.
Trial simulate_until_slower(const TrialRun& run, SimulatedPlan& ran) {
  std::vector<double> least;
  double tokens = 0, rest = 0;
  for (const Step& step : run.plan.steps) {
    least.push_back(run.bound.seconds(step));
    rest += least.back();
    tokens += tokens_of(step);
  }
  Trial trial;
  trial.planned = static_cast<int>(run.plan.steps.size());
  if (tokens <= 0) return ended(Outcome::refused, {"no_tokens", "", {}});
  StepRunner runner(run.row, ran.rule, run.row.step_options(), run.options.steps);
  double seconds = 0;
  for (std::size_t i = 0; i < run.plan.steps.size(); ++i) {
    trial.least.push_back((seconds + rest) / tokens);
    if (trial.least.back() > run.slower) {
      end_early(trial);
      return trial;
    }
    const Step& step = run.plan.steps[i];
    std::optional<StepResult> result = simulate_step(run, runner, i, trial);
    if (!result) return trial;
    seconds += to_seconds(result->times.makespan);
    rest -= least[i];
    ran.add(step, step_figures(step, step_of_plan(step, i, run.arrivals), *std::move(result)));
  }
  trial.outcome = Outcome::ok;
  trial.seconds_per_token = trial.expected = seconds / tokens;
  return trial;
}

// Estimates the candidate from the steps of few batches (see trial.h).
Trial simulate_few(const TrialRun& run, const ShardRule& rule) {
  const Reach reach = run.row.models->costs.model().reach();
  const auto work = [&](double tokens, double pairs) {
    const double seconds = run.bound.even_seconds(tokens, pairs, true, false);
    return seconds > 0 ? seconds : tokens;  // for a profile without such rates
  };
  const CountsInMeans counts(run.plan.steps);
  StepRunner runner(run.row, rule, run.row.step_options(), run.options.steps);
  Trial trial;
  trial.planned = static_cast<int>(run.plan.steps.size());
  double seconds = 0, tokens = 0, pairs = 0, all_tokens = 0, all_pairs = 0;
  for (std::size_t i = 0; i < run.plan.steps.size(); ++i) {
    const Step& step = run.plan.steps[i];
    const double of_tokens = tokens_of(step), of_pairs = pairs_of(step, reach);
    all_tokens += of_tokens;
    all_pairs += of_pairs;
    if (!counts(step)) continue;
    const std::optional<StepResult> result = simulate_step(run, runner, i, trial);
    if (!result) return trial;
    seconds += to_seconds(result->times.makespan);
    tokens += of_tokens;
    pairs += of_pairs;
  }
  if (tokens <= 0) return ended(Outcome::refused, {"no_tokens", "", {}});
  trial.outcome = Outcome::dropped;
  trial.expected = seconds * work(all_tokens, all_pairs) / work(tokens, pairs) / all_tokens;
  trial.seconds_per_token = trial.expected;
  return trial;
}

// The better of the two rules that static-best chooses from, as simulate_plan has it. `ran`: the steps of the
// rule that counts, where all of them ran.
Trial simulate_candidate(const TrialRun& run, SimulatedPlan& ran) {
  const auto simulated = [&](const std::string& shard, SimulatedPlan& steps) {
    steps = {shard, run.row.rule(shard), {}, {}};
    return run.limits.batches > 0 ? simulate_few(run, steps.rule) : simulate_until_slower(run, steps);
  };
  if (run.row.run.rule().choice != ShardChoice::static_best) return simulated(run.row.run.shard, ran);
  SimulatedPlan other_steps;
  const Trial first = simulated("per-sequence", ran), other = simulated("per-document", other_steps);
  const auto rank = [](const Trial& t) {
    const bool runs = t.outcome == Outcome::ok || t.outcome == Outcome::dropped;
    return runs ? 0 : t.outcome == Outcome::slower ? 1 : 2;
  };
  const bool stays = rank(first) != rank(other) ? rank(first) < rank(other)
                                                : first.seconds_per_token <= other.seconds_per_token;
  Trial chosen = stays ? first : other;
  chosen.least.clear();
  if (!stays) ran = std::move(other_steps);
  return chosen;
}

// What the candidate may be called, by its plan.
Claim claim_by_plan(const Study& study, const StudyRow& row, const PackedRow& packed,
                    const std::optional<double>& delay, const TrialLimits& limits) {
  PolicyResult known;
  known.run = row.run;
  known.layout = row.models->layout;
  known.facts = packed.planned.facts;
  known.metrics.token_delay_mean = delay;
  say_what_runs(study, limits.stated_form, known);
  return claim_of(known, limits.order_delay);
}

// Throws what packing would if a document is too long for the policy, before anything is priced.
void check_longest(const StudyRow& row) {
  const PolicyRun& run = row.run;
  if (run.has_plan_file() || run.policy().hard_limit == nullptr || run.chooses_groups()) return;
  const std::int64_t limit = run.policy().hard_limit(run.pack);
  if (limit <= 0 || run.pack.oversize != Oversize::error || longest_of(row.documents) <= limit) return;
  (void)make_plan(run.policy(), {row.documents.batches, run.pack, QuadraticWorkload()});
}

// Throws if the row's schedule does not take the layout's model chunks, whatever is packed.
void check_schedule(const StudyRow& row) {
  const Layout& layout = row.models->layout;
  if (layout.virtual_pipeline == 1) return;
  const std::vector<std::int32_t> groups(static_cast<std::size_t>(layout.pipeline), 1);
  (void)row.schedule.make({layout.pipeline, layout.virtual_pipeline, groups});
}

// The row's plan: its own, or a shared one.
std::shared_ptr<const PackedRow> packed_row(StudyRow& row, const RunStudyOptions& options,
                                            const Shared& shared) {
  const auto pack = [&] {
    PlannedRow planned = pack_row(row, options);
    return std::make_shared<const PackedRow>(PackedRow{row.models, row.workload, std::move(planned)});
  };
  if (shared.plans == nullptr) return pack();
  const std::string key = plan_key(shared.alike, *row.models, row.run);
  return key.empty() ? pack() : shared.plans->find(key, pack);
}

Trial plan_and_simulate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                        const RunStudyOptions& options, const Shared& shared,
                        std::shared_ptr<const PolicyResult>* ran) {
  StudyRow row = ready_row(study, inputs, study.policies.front(), trial_options(options));
  check_schedule(row);
  derive_sizes(row, options.ignore_memory);
  if (row.no_room) return ended(Outcome::oom, *row.no_room);
  check_longest(row);
  const std::shared_ptr<const PackedRow> packed = packed_row(row, options, shared);
  const Plan& plan = packed->planned.plan;
  PlanMetrics delays;  // few batches do not show the study's, although they include the longest document
  if (limits.batches == 0)
    delays = plan_metrics(row.documents.batches, plan);
  else if (!plan.sees_whole_set)
    delays.token_delay_mean = 0;
  if (const std::optional<Note> late = lateness(delays, limits.token_delay, limits.longest_delay))
    return ended(Outcome::late, *late);
  const Claim claim = claim_by_plan(study, row, *packed, delays.token_delay_mean, limits);
  row.workload = packed->workload;
  const bool splits = splits_backward(row.schedule);
  const StepBound bound = shared.least == nullptr
                              ? StepBound(*row.models, row.run, splits)
                              : StepBound(*row.models, row.run, splits, shared.least->of(row.models->costs));
  SimulatedPlan steps;
  std::optional<Arrivals> arrivals;
  if (!plan.sees_whole_set) arrivals.emplace(row.documents.batches);
  Trial trial = simulate_candidate({row, plan, bound, options, limits, limits.seconds_per_token.of(claim),
                                    arrivals ? &*arrivals : nullptr},
                                   steps);
  trial.claim = claim;
  if (trial.outcome != Outcome::ok) {
    trial.peak_bytes = 0;
    return trial;
  }
  trial.token_delay = delays.token_delay_mean;
  if (ran == nullptr) return trial;
  PolicyResult result = describe_row(row, packed->planned, std::move(steps), trial_options(options));
  say_what_runs(study, limits.stated_form, result);
  *ran = std::make_shared<const PolicyResult>(std::move(result));
  return trial;
}

}  // namespace

std::optional<Note> lateness(const PlanMetrics& delays, double most, double longest) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (most == kAny && longest == kAny) return {};
  if (!delays.token_delay_mean) return Note{"no_delay_defined", "", {}};
  if (*delays.token_delay_mean > most) return Note{"tokens_wait", "", {}};
  const double waits = delays.token_delay_max.value_or(0);
  if (waits <= longest) return {};
  Notes more;
  if (delays.queue_emptied == 0.0) more.push_back({"never_emptied", "", {}});
  return Note{"a_token_waits", "", {{"iterations", waits}, {"more", std::move(more)}}};
}

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

StudyInputs first_batches(const StudyInputs& inputs, int count) {
  StudyInputs few{inputs.profile, {}, inputs.documents, inputs.plans};
  const auto longest = [](const GlobalBatch& batch) {
    std::int64_t most = 0;
    for (const Slice& slice : batch.slices) most = std::max(most, slice.tokens());
    return most;
  };
  const Batches all = inputs.documents.batches;
  std::size_t last = at(count) - 1;  // the last one kept
  std::int64_t most = 0;
  for (std::size_t b = 0; b < all.size(); ++b)
    if (const std::int64_t own = longest(all[b]); own > most) {
      most = own;
      last = std::max(b, at(count) - 1);
    }
  few.documents.batches =
      Batches(at(count), [all, last, end = at(count) - 1](std::size_t k) { return all[k < end ? k : last]; });
  few.documents.tokens = 0;
  for (const GlobalBatch& batch : few.documents.batches)
    for (const Slice& slice : batch.slices) few.documents.tokens += slice.tokens();
  return few;
}

Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options, const Shared& shared,
                    std::shared_ptr<const PolicyResult>* ran) {
  Trial trial;
  try {
    trial = study.impossible.empty() ? plan_and_simulate(study, inputs, limits, options, shared, ran)
                                     : ended(Outcome::refused, fault_note(study.impossible));
  } catch (const UnplaceableDocument& e) {
    trial = ended(Outcome::unplaceable, fault_note(e.what()));
  } catch (const UserError& e) {
    trial = ended(Outcome::refused, fault_note(e.what()));
  }
  trial.limit = limits.seconds_per_token.of(trial.claim);
  trial.batches = limits.batches;
  return trial;
}

}  // namespace equipoise
