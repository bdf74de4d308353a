#include "sim/tune/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"
#include "policies/steps.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/plan_row.h"
#include "sim/tune/halving.h"
#include "sim/tune/journal.h"
#include "sim/tune/time_limit.h"

namespace equipoise {
namespace {

// So many candidates are tried against one limit, whatever the number of threads: more of them where the
// limit moves less.
constexpr std::size_t kLeastBatch = 32, kMostBatch = 512, kBatchShare = 16;
constexpr std::size_t kRun = 32;  // run of neighbours in the order of the search that go to one share
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The share of the budget for probes, and their least number, which takes half of a small budget.
constexpr std::int64_t kProbeShare = 16, kFewestProbes = 64;
// Policies are compared on so many of the best layouts, with a share of the budget each time; of layouts
// whose best is within this factor of the best of all, since no policy gains more than that on one layout.
constexpr std::size_t kComparedLayouts = 4;
constexpr std::int64_t kComparedShare = 16;
constexpr double kWithinReach = 1.25;
// They are compared again each time the number of known candidates grows by this factor.
constexpr std::int64_t kComparedAgain = 2;
// The share of the minutes in which all policies are to be tried in the search's own order.
constexpr double kUntilCompared = 0.5;
// The assumed ratio of a layout's time to its estimate, if not even one probe ran.
constexpr double kUnknownOverEstimate = 1.2;

struct LayoutFacts {
  // Least seconds per token of any row on it: [may drop or split documents][decides itself what it
  // recomputes][sends the K and V of all documents round all CP ranks].
  double bound[2][2][2] = {};
  double estimate = 0;    // seconds per token, for the order of the search
  bool has_room = true;   // whether every document fits, with the probe
  std::string too_large;  // why its states do not fit
};

// What layouts take over their estimates, learned from those that were probed: a factor for each value of
// each key and one for each set of degrees. They are fitted in turn, as logarithms; a factor of n layouts
// counts n / (n + 1). So few probes tell of many layouts.
class OverEstimate {
 public:
  explicit OverEstimate(std::span<const LayoutChoice> layouts) {
    std::set<std::string> keys;
    for (const LayoutChoice& choice : layouts)
      for (const auto& [key, value] : choice.keys.items()) keys.insert(key);
    std::map<std::pair<std::string, std::string>, std::uint32_t> numbers;
    const auto number = [&](const std::string& key, const std::string& value) {
      return numbers.try_emplace({key, value}, static_cast<std::uint32_t>(numbers.size())).first->second;
    };
    for (const LayoutChoice& choice : layouts) {
      const Layout& l = choice.layout;
      std::vector<std::uint32_t>& of = traits_.emplace_back();
      of.push_back(number("", nlohmann::json{l.tensor, l.context, l.pipeline, l.data, l.expert}.dump()));
      for (const std::string& key : keys)
        of.push_back(number(key, choice.keys.contains(key) ? choice.keys[key].dump() : ""));
    }
    factor_.assign(numbers.size(), 0);
  }

  // `over` has seconds over the estimate for tried candidates, by layout.
  void learn(const std::vector<std::pair<std::uint32_t, double>>& over) {
    if (over.empty()) return;
    constexpr int kTurns = 8;
    std::fill(factor_.begin(), factor_.end(), 0.0);
    mean_ = 0;
    for (const auto& [layout, times] : over) mean_ += std::log(times) / static_cast<double>(over.size());
    std::vector<double> sum(factor_.size()), count(factor_.size());
    for (int turn = 0; turn < kTurns; ++turn)
      for (std::size_t c = 0; c < traits_.front().size(); ++c) {
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(count.begin(), count.end(), 1.0);
        for (const auto& [layout, times] : over) {
          const std::uint32_t trait = traits_[layout][c];
          sum[trait] += std::log(times) - log_of(layout) + factor_[trait];
          ++count[trait];
        }
        for (const auto& [layout, times] : over)
          factor_[traits_[layout][c]] = sum[traits_[layout][c]] / count[traits_[layout][c]];
      }
  }

  [[nodiscard]] double of(std::uint32_t layout) const { return std::exp(log_of(layout)); }
  [[nodiscard]] std::uint32_t degrees(std::uint32_t layout) const { return traits_[layout].front(); }

 private:
  [[nodiscard]] double log_of(std::uint32_t layout) const {
    double log = mean_;
    for (const std::uint32_t trait : traits_[layout]) log += factor_[trait];
    return log;
  }

  std::vector<std::vector<std::uint32_t>> traits_;  // by layout: its degrees, then its value of each key
  std::vector<double> factor_;                      // by trait, as logarithms
  double mean_ = std::log(kUnknownOverEstimate);
};

// Keeps the first `count` batches. If the batch with the longest document comes later, it replaces the last
// one kept, so that a short trial already shows whether that document fits.
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

class Search {
 public:
  Search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
         Journal* journal)
      : candidates_(candidates),
        inputs_(inputs),
        options_(options),
        journal_(journal),
        over_estimate_(candidates.layouts),
        halving_(options.prune && options.budget > static_cast<std::int64_t>(options.keep)
                     ? inputs.documents.batches.size()
                     : 1,
                 options.keep) {
    result_.candidates = candidates.count();
    result_.batches = halving_.batches();
    for (const int batches : halving_.batches()) {
      plans_.emplace_back();
      if (batches > 0) few_.push_back(first_batches(inputs, batches));
    }
    for (std::size_t b = 0; b < candidates.bases.size(); ++b) least_.emplace_back(StepBound::kNear);
  }

  SearchResult run() {
    const std::atomic<bool>* const stop = options_.run.stop;
    if (options_.minutes > 0) {
      time_.emplace(stop, options_.minutes);
      options_.run.stop = &time_->over();
      if (options_.share.is_all()) until_compared_.emplace(stop, kUntilCompared * options_.minutes);
    }
    try {
      look_at_layouts();
      if (until_compared_) options_.run.stop = &until_compared_->over();
      search_in_order(stop);
    } catch (const Interrupted&) {
      if (until_compared_) run_best_of_few(stop);
      result_.interrupted = stop != nullptr && *stop;
      result_.timed_out = !result_.interrupted;
    }
    rank();
    return std::move(result_);
  }

 private:
  void look_at_layouts();
  void choose_probe();
  void probe_degrees();
  void probe_layouts();
  [[nodiscard]] std::int64_t probes() const;
  [[nodiscard]] std::optional<std::uint32_t> own_layout() const;
  [[nodiscard]] std::vector<Point> one_of_all_degrees() const;
  [[nodiscard]] std::vector<Point> most_promising_probes() const;
  void learn_from_probes();
  [[nodiscard]] bool probe_has_room(std::uint32_t layout) const;
  void try_rows();
  void try_others();
  void compare_policies();
  [[nodiscard]] std::vector<Point> not_compared_on(std::uint32_t layout) const;
  [[nodiscard]] std::vector<std::pair<double, std::uint32_t>> best_layouts() const;
  void move_on();
  void run_the_rest();
  void go_on();
  void search_in_order(const std::atomic<bool>* stop);
  void compare_in_shares();
  void try_in_shares(std::vector<Point> points);
  void run_best_of_few(const std::atomic<bool>* stop);
  void try_all(const std::vector<Point>& points, std::int64_t budget, Share share = {},
               bool moves_on = false);
  [[nodiscard]] bool is_bounded(Point point);
  void try_points(const std::vector<Point>& points, std::size_t rung);
  [[nodiscard]] std::size_t batch_size() const;
  [[nodiscard]] std::int64_t compared_share() const {
    return std::max<std::int64_t>(1, options_.budget / kComparedShare);
  }
  [[nodiscard]] bool may_run(Point point, std::size_t rung) const;
  struct Batch {
    const std::vector<Point>& points;
    std::size_t rung;
    std::vector<Trial> trials;
    std::vector<std::shared_ptr<const PolicyResult>> rows;  // of candidates that ran on all steps here
    std::vector<char> done;
  };
  void try_batch(const std::vector<Point>& points, std::size_t rung);
  void try_one(Batch& batch, std::size_t i, const TrialLimits& limits);
  bool has_all_the_time(const Batch& batch);
  [[nodiscard]] std::optional<Trial> known_trial(std::size_t n, Point point, int batches, double limit) const;
  void record(const Batch& batch);
  void keep(Batch batch);
  void replace(std::size_t place, Trial trial);
  bool is_proven_slower(std::size_t place);
  void keep_best(std::size_t place, std::shared_ptr<const PolicyResult> row);
  [[nodiscard]] std::vector<std::string> not_compared() const;
  void show_progress();
  void rank();
  [[nodiscard]] LayoutFacts facts_of(std::size_t layout) const;
  [[nodiscard]] double limit() const;
  [[nodiscard]] double bound_of(Point point) const;
  [[nodiscard]] double layout_foretold(std::uint32_t layout) const;
  [[nodiscard]] double foretold(Point point) const;
  [[nodiscard]] std::vector<std::uint32_t> layouts_foretold_best() const;
  [[nodiscard]] std::vector<Point> order_of_others() const;
  [[nodiscard]] bool is_decided(Point point) const { return decided_[index_of(point)] != 0; }
  // Whether nothing is left of the row on the layouts whose states fit.
  [[nodiscard]] bool is_reached(std::uint32_t row) const {
    return std::ranges::all_of(order_, [&](std::uint32_t layout) { return is_decided({layout, row}); });
  }
  [[nodiscard]] std::string policy_of(std::uint32_t row) const {
    return candidates_.rows[row].entry["name"].get<std::string>();
  }
  [[nodiscard]] Shared shared_by(std::uint32_t layout, std::size_t rung) {
    return {&plans_[rung], alike_[layout], &least_[candidates_.layouts[layout].base]};
  }
  [[nodiscard]] const StudyInputs& inputs_of(std::size_t rung) const {
    return rung < few_.size() ? few_[rung] : inputs_;
  }
  [[nodiscard]] std::size_t index_of(Point point) const {
    return std::size_t{point.layout} * candidates_.rows.size() + point.row;
  }

  const Candidates& candidates_;
  const StudyInputs& inputs_;
  SearchOptions options_;
  Journal* journal_;
  bool in_order_ = true;  // false: time decided what is tried next, so that a resumed search may differ
  std::optional<TimeLimit> time_, until_compared_;  // of a search that minutes bound; no shard has the second
  std::size_t phase_ = 0;                           // the phase of go_on that runs
  std::vector<LayoutFacts> facts_;
  std::vector<std::uint32_t> order_;      // layouts, by estimate
  std::vector<char> decided_;             // by point: tried, or proven slower by its bound
  std::vector<std::uint32_t> place_;      // by point: one more than its place in result_.tried; 0 if none
  std::vector<char> no_room_, as_probe_;  // by layout: its probe does not run; by row: nor would it
  // By row: it may drop or split documents; its own recompute; it spreads all documents over the CP ranks.
  std::vector<unsigned char> cuts_, recomputes_, exchanges_, slow_;
  double pairs_ = 0;                                  // for all documents
  std::vector<double> layout_seconds_, row_seconds_;  // per token; 0 if unknown
  OverEstimate over_estimate_;
  Halving halving_;              // for places in result_.tried
  std::deque<StudyInputs> few_;  // by rung except the last: the study's first batches
  std::uint32_t probe_ = 0, best_layout_ = 0;
  std::vector<double> best_;     // the `keep` lowest distinct seconds per token so far, ascending
  std::deque<PlanCache> plans_;  // by rung
  mutable std::deque<SharedLeastCosts> least_;  // by base
  std::vector<std::string> alike_;              // by layout: what another must have in common to share a plan
  std::mutex showing_;
  std::int64_t being_tried_ = 0;  // finished new candidates of the running batch; guarded by showing_
  SearchResult result_;
};

// Documents cost the same whatever the pipeline is. The plan cache checks recompute by row.
std::string priced_alike(const LayoutChoice& layout) {
  nlohmann::json keys = layout.keys;
  for (const char* key :
       {"parallel.pipeline", "parallel.virtual_pipeline", "parallel.data", "parallel.recompute", "schedule"})
    keys.erase(key);
  return keys.dump();
}

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

LayoutFacts Search::facts_of(std::size_t layout) const {
  LayoutFacts facts;
  const LayoutChoice& choice = candidates_.layouts[layout];
  const Study study = candidate_study(candidates_, {static_cast<std::uint32_t>(layout), 0}, options_.name);
  try {
    const RunModels models(study, study.layout, inputs_.profile);
    for (int stage = 0; stage < study.layout.pipeline; ++stage)
      if (const double held = models.memory.fixed(stage).total(); held > models.memory.room_bytes()) {
        facts.too_large = concatenated("stage ", stage, " holds ", static_cast<int>(held / kGiB),
                                       " GiB before any micro-batch, of a GPU may be filled ",
                                       static_cast<int>(models.memory.room_bytes() / kGiB), " GiB");
        return facts;
      }
    // Bounds of a row without Skrull's placements hold for those with them: exchanges are excluded.
    const StepBound bound(models, study.policies.front(), true, least_[choice.base].of(models.costs));
    // Of a row with its own recompute; without repeated parts of layers the same costs.
    std::optional<RunModels> other_models;
    std::optional<StepBound> other_bound;
    if (study.layout.recompute == Recompute::selective || study.layout.recompute == Recompute::modules) {
      Layout keeps_all = study.layout;
      keeps_all.recompute = Recompute::none;
      other_models.emplace(study, keeps_all, inputs_.profile);
      other_bound.emplace(*other_models, study.policies.front(), true,
                          least_[choice.base].of(other_models->costs));
    }
    const StepBound& keeping = other_bound ? *other_bound : bound;
    const auto tokens = static_cast<double>(inputs_.documents.tokens);
    const PackOptions& pack = study.policies.front().pack;
    const double micro_batches = static_cast<double>(micro_batches_of_step(pack)) / pack.lanes;
    const auto steps = static_cast<double>(inputs_.documents.batches.size());
    facts.estimate = bound.even_estimate(tokens, pairs_, micro_batches, steps) / tokens;
    for (const bool cuts : {false, true})
      for (const bool exchanges : {false, true}) {
        const double seen = cuts ? 0 : pairs_;
        facts.bound[cuts][0][exchanges] = bound.even_seconds(tokens, seen, true, exchanges) / tokens;
        facts.bound[cuts][1][exchanges] = keeping.even_seconds(tokens, seen, false, exchanges) / tokens;
      }
  } catch (const UserError&) {
    // Its rows are refused one by one, with their reasons.
  }
  return facts;
}

void Search::look_at_layouts() {
  const std::size_t layouts = candidates_.layouts.size();
  facts_.resize(layouts);
  for (const LayoutChoice& layout : candidates_.layouts) alike_.push_back(priced_alike(layout));
  decided_.assign(layouts * candidates_.rows.size(), 0);
  place_.assign(decided_.size(), 0);
  layout_seconds_.assign(layouts, 0);
  row_seconds_.assign(candidates_.rows.size(), 0);
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) {
    cuts_.push_back(may_cut(candidates_.rows[r]) || may_even_out(candidates_.rows[r]) ? 1 : 0);
    bool recomputes = true, exchanges = false, slow = false;  // if it goes only with other layouts
    try {
      const Study study = candidate_study(candidates_, {0, r}, options_.name);
      const PolicyRun& row = study.policies.front();
      // A row's own recompute, and what hbp finds for each of its groups.
      recomputes = row.has_recompute || row.policy().derives == Derives::groups;
      exchanges = spreads_documents(row) && !row.context_comm;
      slow = row.packs_slowly();
      if (row.context_comm) cuts_.back() = 1;  // since bounds on pairs assume the layout's own form
    } catch (const UserError&) {
    }
    recomputes_.push_back(recomputes ? 1 : 0);
    exchanges_.push_back(exchanges ? 1 : 0);
    slow_.push_back(slow ? 1 : 0);
  }
  pairs_ = visible_pairs(inputs_.documents, candidate_study(candidates_, {}, options_.name).model.reach());
  choose_probe();
  parallel_for(std::max(1, options_.run.jobs), layouts, [&](int, std::size_t i) {
    end_if_stopped(options_.run);
    facts_[i] = facts_of(i);
    if (facts_[i].too_large.empty()) facts_[i].has_room = probe_has_room(static_cast<std::uint32_t>(i));
  });
  for (const LayoutFacts& facts : facts_) no_room_.push_back(facts.has_room ? 0 : 1);
  result_.too_large_layouts.resize(layouts);
  for (std::size_t i = 0; i < layouts; ++i) {
    if (facts_[i].too_large.empty()) {
      order_.push_back(static_cast<std::uint32_t>(i));
      continue;
    }
    result_.too_large_layouts[i] = facts_[i].too_large;
    result_.too_large += static_cast<std::int64_t>(candidates_.rows.size());
  }
  std::ranges::stable_sort(order_, {}, [&](std::uint32_t i) { return facts_[i].estimate; });
}

double Search::bound_of(Point point) const {
  return facts_[point.layout].bound[cuts_[point.row]][recomputes_[point.row]][exchanges_[point.row]];
}

double Search::limit() const {
  return options_.prune && best_.size() >= options_.keep ? best_.back() : kInfinity;
}

// Whether the candidate may run on a rung: on all, but where only what others tried counts.
bool Search::may_run(Point point, std::size_t rung) const {
  return !options_.only_known || options_.known->told(point, halving_.batches()[rung]);
}

std::optional<Trial> Search::known_trial(std::size_t n, Point point, int batches, double limit) const {
  if (options_.only_known) return options_.known->told(point, batches);
  if (journal_ != nullptr)
    if (std::optional<Trial> known =
            in_order_ ? journal_->find(n, point, batches, limit) : journal_->find(point, batches, limit))
      return known;
  return options_.known != nullptr ? options_.known->find(point, batches, limit) : std::nullopt;
}

void Search::show_progress() {
  if (!options_.progress) return;
  options_.progress(static_cast<std::int64_t>(result_.tried.size()) + being_tried_,
                    std::min(options_.budget, result_.candidates - result_.too_large - result_.bounded),
                    best_.empty() ? 0 : best_.front());
}

void Search::try_one(Batch& batch, std::size_t i, const TrialLimits& limits) {
  const Point point = batch.points[i];
  const auto number = static_cast<std::size_t>(result_.trials) + i;
  if (std::optional<Trial> known = known_trial(number, point, limits.batches, limits.seconds_per_token)) {
    batch.trials[i] = *std::move(known);
    return;
  }
  end_if_stopped(options_.run);
  RunStudyOptions run = options_.run;
  run.jobs = 1;
  batch.trials[i] = try_candidate(candidate_study(candidates_, point, options_.name), inputs_of(batch.rung),
                                  limits, run, shared_by(point.layout, batch.rung),
                                  batch.rung == halving_.last() ? &batch.rows[i] : nullptr);
  const std::lock_guard lock(showing_);
  ++result_.ran;
  if (batch.rung == 0) ++being_tried_;
  show_progress();
}

// Gives the search all its minutes once every policy is compared, by the batch's finished trials, too.
// Returns whether it now did.
bool Search::has_all_the_time(const Batch& batch) {
  if (!until_compared_ || options_.run.stop != &until_compared_->over()) return false;
  std::vector<std::string> missing = not_compared();
  for (std::size_t i = 0; i < batch.points.size(); ++i)
    if (batch.done[i] != 0) std::erase(missing, policy_of(batch.points[i].row));
  if (!missing.empty()) return false;
  options_.run.stop = &time_->over();
  return true;
}

// Tries all against the limit of before the batch; on few steps there is none.
void Search::try_batch(const std::vector<Point>& points, std::size_t rung) {
  const int batches = halving_.batches()[rung];
  const TrialLimits limits{batches > 0 ? kInfinity : limit(), options_.most_delay, options_.longest_delay,
                           batches};
  Batch batch{points, rung, std::vector<Trial>(points.size()),
              std::vector<std::shared_ptr<const PolicyResult>>(points.size()),
              std::vector<char>(points.size())};
  // Candidates that may share a plan follow each other, while the plan is kept.
  const auto turns = positions_by(points.size(), [&](std::size_t i) {
    return std::tuple(points[i].row, std::string_view(alike_[points[i].layout]),
                      candidates_.layouts[points[i].layout].layout.data);
  });
  bool stopped = false;
  do {
    try {
      parallel_for(std::max(1, options_.run.jobs), points.size(), [&](int, std::size_t turn) {
        if (batch.done[turns[turn]] != 0) return;
        try_one(batch, turns[turn], limits);
        batch.done[turns[turn]] = 1;
      });
      stopped = false;
    } catch (const Interrupted&) {
      stopped = true;
    }
  } while (has_all_the_time(batch) && stopped);
  being_tried_ = 0;
  keep(std::move(batch));
  if (stopped) throw Interrupted();
}

// A journal numbers trials up to the first unfinished one, while the search keeps to its order.
void Search::record(const Batch& batch) {
  if (journal_ == nullptr) return;
  const auto whole = static_cast<std::size_t>(std::ranges::find(batch.done, 0) - batch.done.begin());
  const std::size_t numbered = in_order_ ? whole : 0;
  journal_->add(static_cast<std::size_t>(result_.trials), batch.points,
                std::span(batch.trials).first(numbered));
  for (std::size_t i = numbered; i < batch.points.size(); ++i)
    if (batch.done[i] != 0) journal_->add(batch.points[i], batch.trials[i]);
}

// Keeps finished trials.
void Search::keep(Batch batch) {
  record(batch);
  for (std::size_t i = 0; i < batch.points.size(); ++i) {
    if (batch.done[i] == 0) continue;
    ++result_.trials;
    const Point point = batch.points[i];
    std::uint32_t& place = place_[index_of(point)];
    decided_[index_of(point)] = 1;
    if (place == 0) {
      result_.tried.push_back({point, {}});
      place = static_cast<std::uint32_t>(result_.tried.size());
    }
    Trial& trial = batch.trials[i];
    double seconds = 0;
    if (trial.outcome == Outcome::ok || trial.outcome == Outcome::dropped) seconds = trial.seconds_per_token;
    if (trial.outcome == Outcome::slower) seconds = trial.expected;  // it keeps its rank among the fastest
    halving_.ran(place - 1, batch.rung, seconds, slow_[point.row] != 0);
    const bool is_ok = trial.outcome == Outcome::ok;
    replace(place - 1, std::move(trial));
    if (is_ok) keep_best(place - 1, std::move(batch.rows[i]));
  }
}

// Keeps the candidate's last trial; earlier ones on few steps are kept separately.
void Search::replace(std::size_t place, Trial trial) {
  Tried& tried = result_.tried[place];
  if (tried.trial.batches > 0) result_.few.push_back(tried);
  tried.trial = std::move(trial);
}

// Ends a candidate that ran on few steps where its bound says that it cannot come among the best.
bool Search::is_proven_slower(std::size_t place) {
  const Point point = result_.tried[place].point;
  const double least = bound_of(point);
  if (!(least > limit())) return false;
  Trial trial;
  trial.outcome = Outcome::slower;
  trial.seconds_per_token = trial.expected = least;
  replace(place, std::move(trial));
  return true;
}

// Bit-equal times mean the same plan under another name, which takes one place of the ranking.
void Search::keep_best(std::size_t place, std::shared_ptr<const PolicyResult> row) {
  const double seconds = result_.tried[place].trial.seconds_per_token;
  const auto before = std::lower_bound(best_.begin(), best_.end(), seconds);
  if (before == best_.end() || *before != seconds) best_.insert(before, seconds);
  if (best_.size() > options_.keep) best_.pop_back();
  if (row != nullptr) result_.rows.emplace(place, std::move(row));
  std::erase_if(result_.rows, [&](const auto& kept) {
    return result_.tried[kept.first].trial.seconds_per_token > best_.back();
  });
}

bool Search::is_bounded(Point point) {
  if (!(bound_of(point) > limit())) return false;
  decided_[index_of(point)] = 1;
  ++result_.bounded;
  return true;
}

std::size_t Search::batch_size() const {
  return std::clamp(result_.tried.size() / kBatchShare, kLeastBatch, kMostBatch);
}

// Tries points in the given order, a batch at a time.
void Search::try_points(const std::vector<Point>& points, std::size_t rung) {
  for (std::size_t i = 0; i < points.size();) {
    const std::size_t end = std::min(points.size(), i + batch_size());
    try_batch(
        {points.begin() + static_cast<std::ptrdiff_t>(i), points.begin() + static_cast<std::ptrdiff_t>(end)},
        rung);
    i = end;
  }
}

// In the order given, on few steps; those that bounds prove slower are passed over. `moves_on`: the fastest
// run on more after each batch.
void Search::try_all(const std::vector<Point>& points, std::int64_t budget, Share share, bool moves_on) {
  std::vector<Point> batch;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point point = points[i];
    if (static_cast<std::int64_t>(result_.tried.size() + batch.size()) >= budget) break;
    if (is_decided(point) || !share.has(i / kRun) || is_bounded(point)) continue;
    if (!may_run(point, 0)) continue;
    batch.push_back(point);
    if (batch.size() < batch_size()) continue;
    try_batch(batch, 0);
    if (moves_on) move_on();
    batch.clear();
  }
  if (!batch.empty()) try_batch(batch, 0);
  if (moves_on) move_on();
}

// Candidates among the fastest on a number of steps run on more steps.
void Search::move_on() {
  for (std::size_t rung = 0; rung < halving_.last(); ++rung)
    for (;;) {
      std::vector<Point> points;
      for (const std::size_t place : halving_.moving_on(rung)) {
        const Point point = result_.tried[place].point;
        if (may_run(point, rung + 1) && !is_proven_slower(place))
          points.push_back(point);
        else  // it keeps its rank among the fastest
          halving_.ran(place, rung + 1, halving_.reached_by(place).seconds, slow_[point.row] != 0);
      }
      if (points.empty()) break;
      try_points(points, rung + 1);
    }
}

// Where the budget reached every candidate: those that few steps dropped run in full, too, or their bounds
// prove them slower. Of what others tried, all that is known.
void Search::run_the_rest() {
  if (!options_.only_known)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_reached(r)) return;
  if (options_.only_known) {
    std::vector<Point> points = options_.known->in_full();
    std::erase_if(points, [&](const Point& point) { return is_decided(point); });
    try_points(points, halving_.last());
  }
  std::vector<std::pair<double, std::size_t>> rest;
  for (std::size_t place = 0; place < result_.tried.size(); ++place) {
    const auto& [point, trial] = result_.tried[place];
    if (trial.batches == 0 || !may_run(point, halving_.last())) continue;
    const double seconds = halving_.reached_by(place).seconds;
    rest.emplace_back(seconds > 0 ? seconds : kInfinity, place);
  }
  std::ranges::sort(rest);
  std::vector<Point> batch;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (!is_proven_slower(rest[i].second)) batch.push_back(result_.tried[rest[i].second].point);
    if (batch.size() < kLeastBatch && i + 1 < rest.size()) continue;
    try_points(batch, halving_.last());
    batch.clear();
  }
}

// WLB-LLM's variable-length packing, whose micro-batches are as large as memory allows, so that it runs
// wherever anything does; where tokens may not wait so, windows as they arrive; else the first row.
void Search::choose_probe() {
  const bool may_wait = options_.most_delay == kInfinity && options_.longest_delay == kInfinity;
  const auto like_probe = [&](const RowChoice& row) {
    const nlohmann::json& name = row.entry["name"];
    return may_wait ? (name == "wlb-llm" || name == "wlb") && !row.entry.contains("max_tokens")
                    : name == "plain" || name == "plain-4d";
  };
  for (const RowChoice& row : candidates_.rows) as_probe_.push_back(like_probe(row) ? 1 : 0);
  const auto first = std::find(as_probe_.begin(), as_probe_.end(), 1);
  probe_ = first == as_probe_.end() ? 0 : static_cast<std::uint32_t>(first - as_probe_.begin());
}

std::int64_t Search::probes() const {
  return std::min(options_.budget - options_.budget / 2,
                  std::max(kFewestProbes, options_.budget / kProbeShare));
}

// Tries one layout of each set of degrees.
void Search::probe_degrees() {
  try_all(one_of_all_degrees(), (probes() + 1) / 2);
  learn_from_probes();
}

void Search::probe_layouts() {
  const std::int64_t most = static_cast<std::int64_t>(result_.tried.size()) + probes() / 2;
  for (std::vector<Point> next = most_promising_probes();
       !next.empty() && static_cast<std::int64_t>(result_.tried.size()) < most;
       next = most_promising_probes()) {
    try_all(next, most);
    learn_from_probes();
  }
  double best = kInfinity;
  for (const Tried& tried : result_.tried)
    if (const double seconds = tried.trial.expected;
        tried.point.row == probe_ && seconds > 0 && seconds < best) {
      best = seconds;
      best_layout_ = tried.point.layout;
    }
  if (best == kInfinity && !order_.empty()) best_layout_ = order_.front();
}

void Search::learn_from_probes() {
  std::vector<std::pair<std::uint32_t, double>> over;
  for (const Tried& tried : result_.tried) {
    if (tried.point.row != probe_) continue;
    const double seconds = tried.trial.expected, estimate = facts_[tried.point.layout].estimate;
    no_room_[tried.point.layout] = seconds <= 0 && tried.trial.outcome != Outcome::late ? 1 : 0;
    if (seconds <= 0) continue;
    layout_seconds_[tried.point.layout] = seconds;
    if (estimate > 0) over.emplace_back(tried.point.layout, seconds / estimate);
  }
  over_estimate_.learn(over);
}

// The study's own layout, which its user knows, where the space has it.
std::optional<std::uint32_t> Search::own_layout() const {
  const std::vector<LayoutChoice>& all = candidates_.layouts;
  try {
    const Layout own = parse_case(candidates_.study, options_.name).layout;
    const auto found = std::ranges::find(all, own, &LayoutChoice::layout);
    const auto place = static_cast<std::uint32_t>(found - all.begin());
    if (found != all.end() && facts_[place].too_large.empty()) return place;
  } catch (const UserError&) {
    // A study may leave its layout to the space.
  }
  return {};
}

// The study's own layout, then the lowest estimate of each that has room for every document, and, where none
// has, the lowest of all.
std::vector<Point> Search::one_of_all_degrees() const {
  std::vector<Point> points;
  std::set<std::uint32_t> degrees;
  if (const auto own = own_layout()) {
    degrees.insert(over_estimate_.degrees(*own));
    points.push_back({*own, probe_});
  }
  for (const bool with_room : {true, false})
    for (const std::uint32_t layout : order_)
      if (facts_[layout].has_room == with_room && degrees.insert(over_estimate_.degrees(layout)).second)
        points.push_back({layout, probe_});
  return points;
}

std::vector<Point> Search::most_promising_probes() const {
  std::vector<Point> points;
  for (const std::uint32_t layout : layouts_foretold_best()) {
    if (points.size() == kLeastBatch) break;
    if (!is_decided({layout, probe_})) points.push_back({layout, probe_});
  }
  return points;
}

bool Search::probe_has_room(std::uint32_t layout) const {
  try {
    const Study study = candidate_study(candidates_, {layout, probe_}, options_.name);
    StudyRow row(study, inputs_.documents, &inputs_.profile, study.policies.front());
    if (row.run.leaves_open()) return true;  // since each value has another schedule
    derive_sizes(row, false);
    if (row.no_room) return false;
    const auto hard_limit = row.run.policy().hard_limit;
    const std::int64_t most = hard_limit == nullptr ? 0 : hard_limit(row.run.pack);
    return most == 0 || may_cut(candidates_.rows[probe_]) || most >= longest_of(inputs_.documents);
  } catch (const UserError&) {
    return true;  // it is refused with its reason when it is tried
  }
}

void Search::try_rows() {
  if (order_.empty()) return;
  std::vector<Point> points;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
    if (slow_[r] == 0) points.push_back({best_layout_, r});
  try_all(points, options_.budget);
  for (const Tried& tried : result_.tried)
    if (tried.point.layout == best_layout_) row_seconds_[tried.point.row] = tried.trial.expected;
}

double Search::layout_foretold(std::uint32_t layout) const {
  return layout_seconds_[layout] > 0 ? layout_seconds_[layout]
                                     : over_estimate_.of(layout) * facts_[layout].estimate;
}

// In order of their foretold time; layouts without room come last.
std::vector<std::uint32_t> Search::layouts_foretold_best() const {
  std::vector<double> seconds(facts_.size());
  for (const std::uint32_t layout : order_)
    seconds[layout] = no_room_[layout] != 0 ? kInfinity : layout_foretold(layout);
  std::vector<std::uint32_t> layouts = order_;
  std::ranges::stable_sort(layouts, {}, [&](std::uint32_t i) { return seconds[i]; });
  return layouts;
}

// Rows whose micro-batches are as large as memory allows find no more room than the probe did: they come
// last.
double Search::foretold(Point point) const {
  if (no_room_[point.layout] != 0 && as_probe_[point.row] != 0) return kInfinity;
  const double layout = layout_foretold(point.layout);
  const double probe = row_seconds_[probe_], row = row_seconds_[point.row];
  return probe > 0 && row > 0 ? layout * row / probe : layout * kUnknownOverEstimate;
}

// In order of their foretold time; rows that pack slowly come last, with the most promising layouts first.
std::vector<Point> Search::order_of_others() const {
  std::vector<std::pair<double, Point>> fast;
  for (const std::uint32_t layout : order_)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r}) && slow_[r] == 0)
        fast.emplace_back(foretold({layout, r}), Point{layout, r});
  std::stable_sort(fast.begin(), fast.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Point> points;
  for (const auto& [seconds, point] : fast) points.push_back(point);
  for (const std::uint32_t layout : layouts_foretold_best())
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (slow_[r] != 0 && !is_decided({layout, r})) points.push_back({layout, r});
  return points;
}

// Between batches, policies are compared and the fastest candidates move on.
void Search::try_others() {
  const std::vector<Point> points = order_of_others();
  const auto probed = static_cast<std::int64_t>(result_.tried.size());
  const std::int64_t left = options_.budget - probed, count = options_.share.count;
  const std::int64_t end = probed + left / count + (left % count > 0 ? 1 : 0);
  const std::int64_t kept = std::min(end - probed, compared_share());
  for (std::int64_t before = -1; before != static_cast<std::int64_t>(result_.tried.size());) {
    before = static_cast<std::int64_t>(result_.tried.size());
    try_all(points, std::min(end - kept, kComparedAgain * before), options_.share, true);
    compare_policies();
    move_on();
  }
  try_all(points, end, options_.share, true);
}

// The best layouts by what ran on most steps: seconds per token of each one's best, fastest first.
std::vector<std::pair<double, std::uint32_t>> Search::best_layouts() const {
  std::map<std::uint32_t, Halving::Reached> of_layout;
  for (std::size_t place = 0; place < result_.tried.size(); ++place) {
    const Halving::Reached own = halving_.reached_by(place);
    if (!(own.seconds > 0)) continue;
    Halving::Reached& best = of_layout[result_.tried[place].point.layout];
    if (best.seconds == 0 || own.rung > best.rung || (own.rung == best.rung && own.seconds < best.seconds))
      best = own;
  }
  std::vector<std::pair<double, std::uint32_t>> layouts;
  for (const auto& [layout, known] : of_layout) layouts.emplace_back(known.seconds, layout);
  std::ranges::sort(layouts);
  return layouts;
}

// Rows that pack slowly, and of each policy of which nothing was tried on the layout the row that promises
// most.
std::vector<Point> Search::not_compared_on(std::uint32_t layout) const {
  std::map<std::string, std::uint32_t> best_row;  // among policies that were not tried there
  std::set<std::string> tried;
  std::vector<Point> points;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) {
    const std::string policy = policy_of(r);
    if (place_[index_of({layout, r})] > 0) tried.insert(policy);
    if (is_decided({layout, r})) continue;
    if (slow_[r] != 0) {
      points.push_back({layout, r});
      continue;
    }
    const auto known = best_row.try_emplace(policy, r).first;
    if (foretold({layout, r}) < foretold({layout, known->second})) known->second = r;
  }
  for (const auto& [policy, row] : best_row)
    if (!tried.contains(policy)) points.push_back({layout, row});
  return points;
}

// Policies that the search met only on other layouts, or not yet, run on the best ones.
void Search::compare_policies() {
  const std::int64_t most =
      std::min(options_.budget, static_cast<std::int64_t>(result_.tried.size()) + compared_share());
  const auto layouts = best_layouts();
  std::vector<Point> points;
  for (std::size_t i = 0; i < std::min(kComparedLayouts, layouts.size()); ++i) {
    if (layouts[i].first > kWithinReach * layouts.front().first) break;
    for (const Point point : not_compared_on(layouts[i].second)) points.push_back(point);
  }
  try_all(points, most);
}

// The phases of the search in its own order, from the one that was interrupted on.
void Search::go_on() {
  static constexpr void (Search::*kPhases[])() = {
      &Search::probe_degrees, &Search::compare_policies, &Search::probe_layouts, &Search::try_rows,
      &Search::move_on,       &Search::try_others,       &Search::run_the_rest};
  for (const auto phase : std::span(kPhases).subspan(phase_)) {
    (this->*phase)();
    ++phase_;
  }
}

// In its own order. If half of the minutes are over before every policy is compared, the missing ones come
// before the rest.
void Search::search_in_order(const std::atomic<bool>* stop) {
  try {
    go_on();
  } catch (const Interrupted&) {
    if (!time_ || time_->over() || (stop != nullptr && *stop)) throw;
    in_order_ = false;
    options_.run.stop = &time_->over();
    compare_in_shares();
    go_on();
  }
}

// On the best layouts, the most promising row of each policy that was not tried there. Policies that are not
// compared on any layout come first.
void Search::compare_in_shares() {
  std::vector<std::uint32_t> layouts;
  for (const auto& [seconds, layout] : best_layouts()) layouts.push_back(layout);
  if (layouts.empty()) layouts = layouts_foretold_best();
  layouts.resize(std::min(layouts.size(), kComparedLayouts));
  const std::vector<std::string> missing = not_compared();
  std::set<std::string> nowhere(missing.begin(), missing.end());
  std::vector<Point> first, others;
  for (const std::uint32_t layout : layouts) {
    std::set<std::string> seen;
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (place_[index_of({layout, r})] > 0) seen.insert(policy_of(r));
    std::vector<Point> points = not_compared_on(layout);
    std::ranges::stable_sort(points, {}, [&](Point point) { return foretold(point); });
    for (const Point point : points)
      if (!is_bounded(point) && seen.insert(policy_of(point.row)).second)
        (nowhere.erase(policy_of(point.row)) > 0 ? first : others).push_back(point);
  }
  try_in_shares(std::move(first));
  try_in_shares(std::move(others));
}

// As many at once as there are threads. Each has an equal share of the time that is left, which a slow one
// cannot take from the others.
void Search::try_in_shares(std::vector<Point> points) {
  const auto threads = static_cast<std::size_t>(std::max(1, options_.run.jobs));
  points.resize(std::min(points.size(), at(options_.budget) - result_.tried.size()));
  for (std::size_t i = 0; i < points.size() && !time_->over(); i += threads) {
    const std::size_t left = points.size() - i, count = std::min(threads, left);
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(i);
    const TimeLimit share(&time_->over(),
                          time_->minutes_left() * static_cast<double>(count) / static_cast<double>(left));
    options_.run.stop = &share.over();
    try {
      try_batch({first, first + static_cast<std::ptrdiff_t>(count)}, 0);
    } catch (const Interrupted&) {  // a policy that took longer than its share
    }
    options_.run.stop = &time_->over();
  }
}

// After the time is over, where no candidate ran on all steps: the fastest on few do, until one of them has.
void Search::run_best_of_few(const std::atomic<bool>* stop) {
  if (!best_.empty()) return;
  in_order_ = false;
  options_.run.stop = stop;
  std::vector<std::pair<double, std::size_t>> ran;
  for (std::size_t place = 0; place < result_.tried.size(); ++place)
    if (const double seconds = halving_.reached_by(place).seconds; seconds > 0)
      ran.emplace_back(seconds, place);
  std::ranges::sort(ran);
  try {
    for (std::size_t i = 0; i < ran.size() && best_.empty(); ++i)
      try_batch({result_.tried[ran[i].second].point}, halving_.last());
  } catch (const Interrupted&) {  // by the user
  }
}

std::vector<std::string> Search::not_compared() const {
  std::set<std::string> tried;
  for (const Tried& one : result_.tried) tried.insert(policy_of(one.point.row));
  std::vector<std::string> policies;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
    if ((order_.empty() || !is_reached(r)) && tried.insert(policy_of(r)).second)
      policies.push_back(policy_of(r));
  return policies;
}

void Search::rank() {
  if (order_.empty() && (result_.interrupted || result_.timed_out))
    result_.left = result_.candidates;  // no layout was examined
  // What the budget did not reach may still be proven slower than the best found.
  for (const std::uint32_t layout : order_)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r}) && !is_bounded({layout, r})) ++result_.left;
  result_.not_compared = not_compared();
  for (std::size_t i = 0; i < result_.tried.size(); ++i)
    if (result_.tried[i].trial.outcome == Outcome::ok) result_.ranking.push_back(i);
  const auto key = [&](std::size_t i) {
    return std::tuple(result_.tried[i].trial.seconds_per_token, index_of(result_.tried[i].point));
  };
  std::ranges::sort(result_.ranking, {}, key);
}

}  // namespace

std::int64_t SearchResult::dropped() const {
  return std::ranges::count_if(tried,
                               [](const Tried& one) { return one.trial.outcome == Outcome::dropped; });
}

bool SearchResult::complete() const {
  const auto on_few = [](const Tried& one) { return one.trial.batches > 0; };
  return left == 0 && !interrupted && !timed_out && std::ranges::none_of(tried, on_few);
}

SearchResult search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
                    Journal* journal) {
  return Search(candidates, inputs, options, journal).run();
}

}  // namespace equipoise
