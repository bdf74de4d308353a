#include "sim/tune/trial.h"

#include <algorithm>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/loader.h"
#include "policies/plan_metrics.h"
#include "policies/policy.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/bound.h"

namespace equipoise {

using nlohmann::json;

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
  trial.token_delay.reset();
  trial.peak_bytes = 0;
  trial.seconds_per_token = last;
  trial.steps = static_cast<int>(trial.least.size()) - 1;
  trial.expected = trial.steps > 0 ? first + (last - first) * trial.planned / trial.steps : last;
}

bool splits_backward(const SchedulePolicy& schedule) {
  return schedule.name.starts_with("zb") || schedule.bidirectional;
}

// Steps under one sharding rule, each held against the limit.
Trial simulate_until_slower(const StudyRow& row, const Plan& plan, const ShardRule& rule,
                            const RunStudyOptions& options, double limit) {
  const StepBound bound(*row.models, row.run, splits_backward(row.schedule));
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
      trial.reason = "step " + std::to_string(i) + " does not fit into memory";
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
Trial simulate_candidate(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                         double limit) {
  const auto simulated = [&](std::string_view shard) {
    return simulate_until_slower(row, plan, row.rule(shard), options, limit);
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
std::string lateness(const DocumentSet& documents, const Plan& plan, const TrialLimits& limits) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (limits.token_delay == kAny && limits.longest_delay == kAny) return "";
  const PlanMetrics metrics = plan_metrics(documents.batches, plan);
  if (!metrics.token_delay_mean) return "it packs the whole set first: no delay is defined";
  if (*metrics.token_delay_mean > limits.token_delay)
    return "tokens wait longer than --max-delay, on the mean";
  if (*metrics.token_delay_max <= limits.longest_delay) return "";
  return "a token waits " + fixed(*metrics.token_delay_max, 0) + " iterations, longer than --max-delay" +
         (metrics.queue_emptied == 0.0 ? "; a queue never emptied in these steps" : "");
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
                                            const SharedPlans& plans) {
  const auto pack = [&] {
    Plan plan = pack_row(row, options).plan;
    return std::make_shared<const PackedRow>(PackedRow{row.models, row.workload, std::move(plan)});
  };
  if (plans.cache == nullptr) return pack();
  const std::string key = plan_key(plans.alike, *row.models, row.run);
  return key.empty() ? pack() : plans.cache->find(key, pack);
}

Trial plan_and_simulate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                        const RunStudyOptions& options, const SharedPlans& plans) {
  StudyRow row = ready_row(study, inputs, study.policies.front(), options);
  check_schedule(row);
  derive_sizes(row, options.ignore_memory);
  if (!row.no_room.empty()) return ended(Outcome::oom, row.no_room);
  check_longest(row);
  const std::shared_ptr<const PackedRow> packed = packed_row(row, options, plans);
  if (std::string late = lateness(row.documents, packed->plan, limits); !late.empty())
    return ended(Outcome::late, std::move(late));
  row.workload = packed->workload;
  Trial trial = simulate_candidate(row, packed->plan, options, limits.seconds_per_token);
  if (trial.outcome == Outcome::ok)
    trial.token_delay = plan_metrics(row.documents.batches, packed->plan).token_delay_mean;
  else
    trial.peak_bytes = 0;
  return trial;
}

constexpr std::int64_t kMostSlices = 4'000'000;  // about 100 MB

std::int64_t slices_of(const Plan& plan) {
  std::size_t slices = 0;
  for (const Step& step : plan.steps) {
    slices += step.carried.size();
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches) slices += micro_batch.slices.size() + 4;
  }
  return static_cast<std::int64_t>(slices);
}

json line_of(std::size_t n, Point point, const Trial& trial) {
  json line = {{"n", n},
               {"layout", point.layout},
               {"row", point.row},
               {"outcome", kOutcomeNames[at(trial.outcome)]},
               {"seconds_per_token", trial.seconds_per_token},
               {"expected", trial.expected},
               {"steps", trial.steps},
               {"planned", trial.planned}};
  if (trial.limit < std::numeric_limits<double>::infinity()) line["limit"] = trial.limit;
  if (!trial.least.empty()) line["least"] = trial.least;
  if (!trial.reason.empty()) line["reason"] = trial.reason;
  if (trial.token_delay) line["token_delay"] = *trial.token_delay;
  if (trial.peak_bytes > 0) line["peak_bytes"] = trial.peak_bytes;
  return line;
}

Trial trial_of(const json& line, const std::string& where) {
  Trial trial;
  trial.outcome = static_cast<Outcome>(
      choice_of(line.at("outcome").get<std::string>(), where + ": outcome", kOutcomeNames));
  trial.seconds_per_token = line.at("seconds_per_token").get<double>();
  trial.expected = line.at("expected").get<double>();
  trial.steps = line.at("steps").get<int>();
  trial.planned = line.at("planned").get<int>();
  trial.reason = line.value("reason", "");
  if (line.contains("token_delay")) trial.token_delay = line["token_delay"].get<double>();
  trial.peak_bytes = line.value("peak_bytes", 0.0);
  if (line.contains("limit")) trial.limit = line["limit"].get<double>();
  if (line.contains("least")) trial.least = line["least"].get<std::vector<double>>();
  return trial;
}

JournalEntry into(std::vector<Tried>& tried) {
  return [&tried](const json& node, const std::string& where) {
    if (node.at("n").get<std::size_t>() != tried.size())
      throw UserError(where, ": n: expected ", tried.size());
    tried.push_back({{node.at("layout").get<std::uint32_t>(), node.at("row").get<std::uint32_t>()},
                     trial_of(node, where)});
  };
}

// A journal of the same search with another budget is set aside first.
KnownTrials tried_with_another_budget(const std::string& path, const json& asked, const char* suffix) {
  const auto but_budget = [](json of) {
    if (of.is_object()) of.erase("budget");
    return of;
  };
  KnownTrials known;
  bool is_aside = false;
  for (const bool aside : {true, false}) {
    const std::string name = aside ? path + suffix : path;
    if (!has_whole_line(name)) continue;
    std::vector<Tried> tried;
    const json of = read_line_journal(name, kTuneJournalKind, into(tried)).asked;
    if (but_budget(of) != but_budget(asked) || (!aside && of == asked)) continue;
    known.add(std::move(tried));
    if (aside) {
      is_aside = true;
      continue;
    }
    std::error_code error;  // the shorter of two tells nothing that the other does not
    if (!is_aside ||
        std::filesystem::file_size(path + suffix, error) < std::filesystem::file_size(name, error))
      std::filesystem::rename(name, path + suffix, error);
    else
      std::filesystem::remove(name, error);
  }
  return known;
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

std::shared_ptr<const PackedRow> PlanCache::find(
    const std::string& key, const std::function<std::shared_ptr<const PackedRow>()>& plan) {
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Slot>& known = slots_[key];
    if (!known) {
      known = std::make_shared<Slot>();
      known->turn = turns_.insert(turns_.end(), key);
    } else {
      turns_.splice(turns_.end(), turns_, known->turn);
    }
    slot = known;
  }
  const std::lock_guard planning(slot->planning);
  if (slot->row) return slot->row;
  slot->row = plan();
  const std::lock_guard lock(mutex_);
  const auto kept = slots_.find(key);
  if (kept != slots_.end() && kept->second == slot) {
    slot->slices = slices_of(slot->row->plan);
    slices_ += slot->slices;
    make_room();
  }
  return slot->row;
}

void PlanCache::make_room() {
  while (slices_ > kMostSlices && turns_.size() > 1) {
    const auto oldest = slots_.find(turns_.front());
    slices_ -= oldest->second->slices;
    slots_.erase(oldest);
    turns_.pop_front();
  }
}

std::string plan_key(const std::string& alike, const RunModels& models, const PolicyRun& row) {
  if (row.policy().search.is_open_in(row.pack) || row.has_plan_file() || row.recompute_by_stage) return "";
  const PackOptions& pack = row.pack;
  std::ostringstream key;
  key << alike << '|' << row.label;
  for (const std::int64_t size :
       {pack.context_window, pack.sequences_per_step, pack.documents_per_step, pack.micro_batch_size,
        pack.micro_batches, std::int64_t{pack.lanes}, std::int64_t{pack.context}, pack.global_tokens,
        pack.gpus, std::int64_t{pack.stages}, std::int64_t{pack.lane_round}, pack.max_tokens,
        pack.bucket_size})
    key << ' ' << size;
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    key << (models.layout.repeats(static_cast<RecomputeModule>(m)) ? '+' : '-');
  return key.str();
}

JournalText read_journal(const std::string& path) {
  JournalText text;
  text.asked = read_line_journal(path, kTuneJournalKind, into(text.tried)).asked;
  return text;
}

void KnownTrials::add(std::vector<Tried> tried) {
  for (Tried& one : tried) of_point_[{one.point.layout, one.point.row}].push_back(std::move(one.trial));
}

std::optional<Trial> KnownTrials::find(Point point, double limit) const {
  const auto known = of_point_.find({point.layout, point.row});
  if (known == of_point_.end()) return std::nullopt;
  for (const Trial& trial : known->second)
    if (std::optional<Trial> told = under_limit(trial, limit)) return told;
  return std::nullopt;
}

Journal::Journal(const std::string& path, const json& asked, bool resume)
    : earlier_(resume ? tried_with_another_budget(path, asked, kBefore) : KnownTrials()),
      lines_(path, kTuneJournalKind, asked, resume, into(tried_)) {}

// What a search with a larger budget found stays for the next one that resumes it.
void Journal::close() const {
  std::error_code error;
  const std::string before = lines_.path() + kBefore;
  const auto known = std::filesystem::file_size(before, error);
  if (!error && known <= std::filesystem::file_size(lines_.path(), error))
    std::filesystem::remove(before, error);
}

std::optional<Trial> Journal::find(std::size_t n, Point point, double limit) const {
  if (n >= tried_.size()) return earlier_.find(point, limit);
  if (!(tried_[n].point == point))
    throw UserError("--resume: ", lines_.path(), ": candidate ", n,
                    " is another than this search tries (another version of the program?); expected the "
                    "same, or no --resume");
  return tried_[n].trial;
}

// `points` may be more than there are trials.
void Journal::add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials) {
  std::string text;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (first + i < tried_.size()) continue;  // read from the file
    text += line_of(first + i, points[i], trials[i]).dump() + "\n";
  }
  if (!text.empty()) lines_.write(text);
}

}  // namespace equipoise
