#include "sim/validation/compare_log.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/profile/gpu_model.h"
#include "sim/execution/executable_step.h"
#include "sim/report/verdict.h"
#include "sim/study/row/plan_row.h"
#include "sim/study/row/simulate.h"
#include "sim/validation/torch_log.h"

namespace equipoise {

namespace {

// An op of a log may have the name of a simulator's op, or of a kind of them.
std::vector<std::string> known_ops() {
  std::vector<std::string> names(log_kinds().begin(), log_kinds().end());
  for (std::size_t op = 0; op < kOpNames; ++op)
    if (const std::string name = name_of(static_cast<OpName>(op));
        std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return names;
}

double op_seconds(const SimulatedStep& step, const std::string& kind, bool all_reduces) {
  double sum = 0;
  for (const SimulatedOp& op : step.ops)
    if (name_of(op.op) == kind || kind_of_op(op.op, all_reduces) == kind) sum += op.seconds;
  return sum;
}

// Throws UserError unless every entry of the log belongs to one of these rows.
void check_policies(const MeasuredLog& log, const std::vector<std::string>& labels) {
  const auto check = [&](const std::string& logged) {
    if (logged.empty() && labels.size() > 1)
      throw UserError(log.name + ": expected --policy with the row that was run, one of " + joined(labels) +
                      ", or a column policy; found a log of one run");
    if (!logged.empty() && std::find(labels.begin(), labels.end(), logged) == labels.end())
      throw UserError(log.name + ": policy: expected one of " + joined(labels) + ", found " + logged);
  };
  for (const LoggedSteps& entry : log.steps) check(entry.policy);
  for (const LoggedOp& op : log.ops) check(op.policy);
}

// In the study's global batch: documents if it counts those, else windows.
std::int64_t samples_per_step(const Study& study) {
  return study.batch.documents_per_step > 0 ? study.batch.documents_per_step : study.batch.sequences_per_step;
}

class Comparison {
 public:
  Comparison(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies)
      : log_(log), policies_(policies) {}

  Validation run(const ValidationLimits& limits) {
    Validation out;
    out.limits = limits;
    out.device = log_.form + " " + log_.name;
    out.notes = log_.notes;
    for (const SimulatedPolicy& policy : policies_) {
      if (!in_log(policy)) continue;
      out.policies.push_back(pair_steps(policy, out.notes));
      pair_ops(policy, out);
    }
    check_policies(log_, each_of(policies_, &SimulatedPolicy::label));
    return out;
  }

 private:
  [[nodiscard]] bool is_of(const std::string& logged, const SimulatedPolicy& policy) const {
    return logged.empty() || logged == policy.label;
  }
  [[nodiscard]] bool in_log(const SimulatedPolicy& policy) const {
    return std::ranges::any_of(log_.steps, [&](const LoggedSteps& of) { return is_of(of.policy, policy); });
  }

  // Checks the median of the steps, since a single step may have waited for anything.
  void check_unit(const PolicyPairs& policy) const {
    if (policy.steps.empty()) return;
    std::vector<std::pair<double, double>> steps;  // measured over simulated, simulated
    for (const StepPair& pair : policy.steps)
      for (const double seconds : pair.measured_seconds)
        steps.emplace_back(seconds / pair.predicted_seconds, pair.predicted_seconds);
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    if (const std::string doubt = unit_doubt(middle->first * middle->second, middle->second); !doubt.empty())
      throw UserError(log_.name + ": step_seconds of " + policy.label + ": " + doubt);
  }

  // The seconds of the entry, whose rate is for a step with so many tokens.
  double seconds_of(const LoggedSteps& entry, const SimulatedPolicy& policy, std::int64_t tokens) const {
    if (entry.tokens_per_second_per_gpu > 0)
      return as_double(tokens) / (entry.tokens_per_second_per_gpu * as_double(policy.gpus));
    if (entry.samples_per_second > 0)
      return as_double(log_.run.samples_per_step.value_or(policy.samples_per_step)) /
             entry.samples_per_second;
    return entry.seconds;
  }

  static bool has_steps(const SimulatedPolicy& policy, std::int64_t first, std::int64_t count) {
    const auto steps = static_cast<std::int64_t>(policy.steps.size());
    return first < steps && count <= steps - first;
  }

  static StepPair mean_of(const SimulatedPolicy& policy, std::int64_t first, std::int64_t count) {
    StepPair pair;
    pair.step = first;
    for (std::int64_t i = first; i < first + count; ++i) {
      const SimulatedStep& step = policy.steps[at(i)];
      pair.predicted_seconds += step.seconds / static_cast<double>(count);
      pair.tokens += step.tokens / count;
    }
    return pair;
  }

  PolicyPairs pair_steps(const SimulatedPolicy& policy, Notes& notes) const {
    std::map<std::pair<std::int64_t, std::int64_t>, StepPair> pairs;
    std::vector<double> elsewhere;
    StepPair whole;
    if (!policy.steps.empty()) whole = mean_of(policy, 0, static_cast<std::int64_t>(policy.steps.size()));
    for (const LoggedSteps& entry : log_.steps) {
      if (!is_of(entry.policy, policy)) continue;
      if (!has_steps(policy, entry.step, entry.count)) {
        elsewhere.push_back(seconds_of(entry, policy, whole.tokens));
        continue;
      }
      const auto [pair, fresh] = pairs.try_emplace({entry.step, entry.count});
      if (fresh) pair->second = mean_of(policy, entry.step, entry.count);
      pair->second.measured_seconds.push_back(seconds_of(entry, policy, pair->second.tokens));
      if (entry.tokens > 0 && pair->second.tokens > 0 && entry.tokens != pair->second.tokens)
        throw UserError(log_.name + ": step " + std::to_string(entry.step) + " of " + policy.label +
                        ": expected " + std::to_string(pair->second.tokens) +
                        " tokens, as simulated, found " + std::to_string(entry.tokens));
    }
    PolicyPairs out;
    out.label = policy.label;
    for (auto& [steps, pair] : pairs) out.steps.push_back(std::move(pair));
    if (out.steps.empty() && !policy.steps.empty()) {
      out.steps.push_back(std::move(whole));
      out.steps.back().measured_seconds = std::move(elsewhere);
      notes.push_back({"no_step_of_log", policy.label, {{"steps", policy.steps.size()}}});
    } else if (!elsewhere.empty()) {
      notes.push_back(
          {"entries_beyond", policy.label, {{"entries", elsewhere.size()}, {"steps", policy.steps.size()}}});
    }
    check_unit(out);
    return out;
  }

  void pair_ops(const SimulatedPolicy& policy, Validation& out) const {
    static const std::vector<std::string> kKnown = known_ops();
    std::map<std::pair<std::int64_t, std::string>, OpPair> pairs;
    bool excluded = false;
    for (const LoggedOp& logged : log_.ops) {
      if (std::find(kKnown.begin(), kKnown.end(), logged.kind) == kKnown.end())
        throw UserError(log_.name + ": op: expected one of " + joined(kKnown) + ", found " + logged.kind);
      if (!is_of(logged.policy, policy)) continue;
      if (!has_steps(policy, logged.step, 1) || policy.steps[at(logged.step)].ops.empty()) {
        excluded = true;
        continue;
      }
      OpPair& pair = pairs[{logged.step, logged.kind}];
      pair.op = logged.kind;
      pair.label = policy.label;
      pair.step = logged.step;
      pair.predicted_seconds = op_seconds(policy.steps[at(logged.step)], logged.kind, policy.all_reduces);
      pair.measured_seconds.push_back(logged.seconds);
    }
    for (auto& [key, pair] : pairs) out.ops.push_back(std::move(pair));
    if (excluded) out.notes.push_back({"ops_not_simulated", policy.label, {}});
  }

  const MeasuredLog& log_;
  const std::vector<SimulatedPolicy>& policies_;
};

}  // namespace

Validation compare_with_log(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies,
                            const ValidationLimits& limits) {
  return Comparison(log, policies).run(limits);
}

Notes unlike_runs(const MeasuredLog& log, const Study& study, const std::string& gpu) {
  Notes notes;
  const auto compare = [&](const char* kind, std::optional<std::int64_t> logged, std::int64_t own) {
    if (logged && *logged != own)
      notes.push_back({kind, printable(log.name), {{"logged", *logged}, {"study", own}}});
  };
  compare("log_global_batch", log.run.samples_per_step, samples_per_step(study));
  compare("log_world_size", log.run.gpus, study.layout.gpus());
  if (!log.run.gpu.empty() && unlike_gpus(log.run.gpu, gpu))
    notes.push_back(
        {"log_gpu", log.name, {{"logged", log.run.gpu}, {"study", gpu}, {"profile", study.cluster.profile}}});
  return notes;
}

void keep_rows(const std::string& label, Study& study, MeasuredLog& log) {
  std::vector<std::string_view> labels;
  for (const PolicyRun& row : study.policies) labels.emplace_back(row.label);
  if (!label.empty()) {
    if (std::ranges::find(labels, label) == labels.end()) refuse_name("--policy", label, labels);
    const auto of_another = [&](const auto& entry) { return !entry.policy.empty() && entry.policy != label; };
    std::erase_if(log.steps, of_another);
    std::erase_if(log.ops, of_another);
    if (log.steps.empty())
      throw UserError(log.name + ": policy: expected entries of " + label + ", found none");
  } else {
    check_policies(log, each_of(study.policies, &PolicyRun::label));
  }
  nlohmann::json file = nlohmann::json::parse(study.settings), kept = nlohmann::json::array();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto is_of = [&](const auto& entry) { return entry.policy.empty() || entry.policy == labels[i]; };
    if ((!label.empty() && labels[i] != label) || std::ranges::none_of(log.steps, is_of)) continue;
    nlohmann::json& entry = kept.emplace_back(file["policies"][i]);
    if (entry.is_string()) entry = {{"name", entry}};
    entry["label"] = labels[i];
    entry.erase("published");  // because it may be over an excluded row
  }
  if (kept.empty() || kept.size() == labels.size()) return;  // names in the log are checked later
  file["baseline"] = kept.front()["label"];
  file["policies"] = std::move(kept);
  study = parse_study(file, study.file);  // so that the notes are about these rows
}

namespace {

using SecondsByOp = std::array<double, kOpNames>;

double& seconds_of(SecondsByOp& seconds, OpName op) {
  return seconds[at(op)];
}

void add_run(const OpLane& lane, const BlockRun& run, int rank, SecondsByOp& seconds) {
  const OpBlock& block = lane.blocks[run.block];
  for (std::size_t s = 0; s < block.steps.size(); ++s)
    if (!block.steps[s].waits)
      seconds_of(seconds, block.steps[s].name) +=
          run.repeat * to_seconds(block.durations[s * at(lane.context) + at(rank)]);
}

void add_lane(const OpLane& lane, int stage, int rank, SecondsByOp& seconds) {
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    const bool own = static_cast<int>(s) == stage;
    for (const ScheduledOp& op : lane.stages[s]) {
      for (std::uint32_t r = 0; own && r < op.run_count; ++r)
        add_run(lane, lane.runs[op.first_run + r], rank, seconds);
      if (op.transfer != kNoTransfer && (own || op.input_stage == stage))
        seconds_of(seconds, OpName::pp_send) += to_seconds(lane.transfers[at(op.transfer + rank)]);
    }
  }
}

void add_end(const StageEnd& end, SecondsByOp& seconds) {
  for (const Picoseconds bucket : end.buckets) seconds_of(seconds, OpName::dp_reduce) += to_seconds(bucket);
  for (std::size_t s = 0; s < end.steps.size(); ++s)
    seconds_of(seconds, end.steps[s].name) += to_seconds(end.durations[s]);
}

// Simulates the row's steps again, to get their ops.
void add_ops(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
             const PolicyResult& row, int gpu, SimulatedPolicy& policy) {
  StudyRow again(study, inputs.documents, &inputs.profile, row.run);
  again.workload = workload_of(again);
  const bool tried = row.run.rule().choice == ShardChoice::static_best;
  const ShardRule rule =
      again.rule(tried ? simulate_plan(again, row.plan, options, Until::all_steps).shard : row.run.shard);
  StepRunner runner(again, rule, again.step_options(), options.steps);
  const execution::RankPlace place = execution::place_of(again.models->grid, gpu);
  for (std::size_t i = 0; i < row.plan.steps.size(); ++i) {
    end_if_stopped(options);
    (void)runner.simulate(row.plan.steps[i], i);
    policy.steps[i].ops = ops_of_rank(runner.op()->program(), place.stage, place.replica);
  }
}

}  // namespace

std::vector<SimulatedOp> ops_of_rank(const OpProgram& program, int stage, int replica) {
  SecondsByOp seconds{};
  for (const OpLane& lane : program.lanes)
    if (const int rank = replica - lane.first_replica; rank >= 0 && rank < lane.context)
      add_lane(lane, stage, rank, seconds);
  if (!program.ends.empty()) add_end(program.ends[at(stage)], seconds);
  std::vector<SimulatedOp> ops;
  for (std::size_t op = 0; op < seconds.size(); ++op)
    if (seconds[op] > 0) ops.push_back({static_cast<OpName>(op), seconds[op]});
  return ops;
}

SimulatedForLog simulate_for_log(const Study& study, const StudyInputs& inputs,
                                 const RunStudyOptions& options, bool with_ops, int gpu) {
  if (gpu < 0 || gpu >= study.layout.gpus())
    throw UserError("expected a GPU of 0 to " + std::to_string(study.layout.gpus() - 1) + ", found " +
                    std::to_string(gpu));
  RunStudyOptions run = options;
  run.keep_plans = true;
  run.find_fits = false;
  if (with_ops) run.steps.fidelity = Fidelity::op;
  const StudyResult result = run_study(study, inputs, run);
  SimulatedForLog simulated{{}, notes_of(study, result), {}};
  for (const PolicyResult& row : result.policies) {
    if (!row.simulated()) {
      simulated.notes.push_back(
          {"not_compared", row.run.label, {{"status", name_of(row.status)}, {"reasons", row.reasons}}});
      continue;
    }
    SimulatedPolicy& policy = simulated.policies.emplace_back();
    policy.label = row.run.label;
    simulated.beyond_samples[policy.label] = beyond_samples_share(row.use);
    simulated.notes.insert(simulated.notes.end(), row.notes.begin(), row.notes.end());
    policy.all_reduces = row.layout.zero == 0;
    policy.gpus = row.layout.gpus();
    policy.samples_per_step = samples_per_step(study);
    for (const StepFigures& step : row.steps)
      policy.steps.push_back({to_seconds(step.times.makespan), step.work.tokens, {}});
    if (with_ops) add_ops(study, inputs, run, row, gpu, policy);
  }
  return simulated;
}

}  // namespace equipoise
