#include "sim/tune/search.h"

#include <algorithm>
#include <array>
#include <atomic>
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
#include "sim/study/read/policy_run.h"
#include "sim/tune/forecast.h"
#include "sim/tune/halving.h"
#include "sim/tune/journal.h"
#include "sim/tune/space_facts.h"
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

class Search {
 public:
  Search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
         Journal* journal)
      : candidates_(candidates),
        inputs_(inputs),
        options_(options),
        journal_(journal),
        facts_(candidates, inputs, options.name,
               options.most_delay == kInfinity && options.longest_delay == kInfinity),
        forecast_(candidates, facts_),
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
    place_.assign(candidates.layouts.size() * candidates.rows.size(), 0);
    decided_.assign(place_.size(), 0);
  }

  SearchResult run() {
    const std::atomic<bool>* const stop = options_.run.stop;
    if (options_.minutes > 0) {
      time_.emplace(stop, options_.minutes, options_.clock);
      options_.run.stop = &time_->over();
      if (options_.share.is_all())
        until_compared_.emplace(stop, kUntilCompared * options_.minutes, options_.clock);
    }
    try {
      price_layouts();
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
  void price_layouts();
  void probe_degrees();
  void probe_layouts();
  [[nodiscard]] std::int64_t probes() const;
  [[nodiscard]] std::optional<std::uint32_t> own_layout() const;
  [[nodiscard]] std::vector<Point> one_of_all_degrees() const;
  [[nodiscard]] std::vector<Point> most_promising_probes() const;
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
  void try_one(Batch& batch, std::size_t i, const TrialLimits& limits, Cores::Row& row);
  bool has_all_the_time(const Batch& batch);
  [[nodiscard]] std::optional<Trial> known_trial(std::size_t n, Point point, const TrialLimits& limits) const;
  void record(const Batch& batch);
  void keep(Batch batch);
  void replace(std::size_t place, Trial trial);
  bool is_proven_slower(std::size_t place);
  void keep_best(std::size_t place, std::shared_ptr<const PolicyResult> row);
  [[nodiscard]] std::vector<std::string> not_compared() const;
  void show_progress();
  void rank();
  [[nodiscard]] double limit(Claim claim) const;
  [[nodiscard]] double limit() const { return limit(Claim::fastest); }  // the loosest
  [[nodiscard]] TrialLimits limits_of(std::size_t rung) const;
  [[nodiscard]] std::vector<Point> order_of_others() const;
  [[nodiscard]] bool is_decided(Point point) const { return decided_[index_of(point)] != 0; }
  // Whether nothing is left of the row on the layouts whose states fit.
  [[nodiscard]] bool is_reached(std::uint32_t row) const {
    return std::ranges::all_of(facts_.order(), [&](std::uint32_t layout) {
      return is_decided({layout, row});
    });
  }
  [[nodiscard]] std::string policy_of(std::uint32_t row) const {
    return candidates_.rows[row].entry["name"].get<std::string>();
  }
  [[nodiscard]] Shared shared_by(std::uint32_t layout, std::size_t rung) {
    return {&plans_[rung], alike_[layout], &facts_.least_costs(layout)};
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
  SpaceFacts facts_;
  Forecast forecast_;
  std::vector<char> decided_;             // by point: tried, or proven slower by its bound
  std::vector<std::uint32_t> place_;      // by point: one more than its place in result_.tried; 0 if none
  Halving halving_;              // for places in result_.tried
  std::deque<StudyInputs> few_;  // by rung except the last: the study's first batches
  std::uint32_t best_layout_ = 0;  // with the probe
  // By claim: the `keep` lowest distinct seconds per token so far, ascending.
  std::array<std::vector<double>, kClaims> best_;
  std::deque<PlanCache> plans_;  // by rung
  std::vector<std::string> alike_;              // by layout: what another must have in common to share a plan
  std::mutex showing_;
  std::int64_t being_tried_ = 0;  // finished new candidates of the running batch; guarded by showing_
  SearchResult result_;
};

void Search::price_layouts() {
  for (const LayoutChoice& layout : candidates_.layouts) alike_.push_back(priced_alike(layout));
  facts_.price_layouts(options_.run);
  for (const LayoutFacts& layout : facts_.layouts()) {
    result_.too_large_layouts.push_back(layout.too_large);
    if (!layout.too_large.empty()) result_.too_large += static_cast<std::int64_t>(candidates_.rows.size());
  }
}

// Among the best with its claim, and no slower than the first of a stronger one, is what is shown.
double Search::limit(Claim claim) const {
  if (!options_.prune) return kInfinity;
  const std::vector<double>& own = best_[at(claim)];
  double least = own.size() >= options_.keep ? own.back() : kInfinity;
  for (std::size_t stronger = 0; stronger < at(claim); ++stronger)
    if (!best_[stronger].empty()) least = std::min(least, best_[stronger].front());
  return least;
}

TrialLimits Search::limits_of(std::size_t rung) const {
  TrialLimits limits;
  limits.batches = halving_.batches()[rung];
  if (limits.batches == 0)
    for (std::size_t claim = 0; claim < kClaims; ++claim)
      limits.seconds_per_token.of_claim[claim] = limit(static_cast<Claim>(claim));
  limits.token_delay = options_.most_delay;
  limits.longest_delay = options_.longest_delay;
  limits.order_delay = options_.order_delay;
  limits.stated_form = candidates_.stated_form();
  return limits;
}

// Whether the candidate may run on a rung: on all, but where only what others tried counts.
bool Search::may_run(Point point, std::size_t rung) const {
  return !options_.only_known || options_.known->told(point, halving_.batches()[rung]);
}

std::optional<Trial> Search::known_trial(std::size_t n, Point point, const TrialLimits& limits) const {
  if (options_.only_known) return options_.known->told(point, limits.batches);
  if (journal_ != nullptr)
    if (std::optional<Trial> known = in_order_ ? journal_->find_in_order(n, point, limits)
                                               : journal_->find_out_of_order(point, limits))
      return known;
  return options_.known != nullptr ? options_.known->find(point, limits) : std::nullopt;
}

void Search::show_progress() {
  if (!options_.progress) return;
  const auto winner = std::ranges::find_if(best_, [](const auto& best) { return !best.empty(); });
  options_.progress(static_cast<std::int64_t>(result_.tried.size()) + being_tried_,
                    std::min(options_.budget, result_.candidates - result_.too_large - result_.bounded),
                    winner == best_.end() ? 0 : winner->front());
}

void Search::try_one(Batch& batch, std::size_t i, const TrialLimits& limits, Cores::Row& row) {
  const Point point = batch.points[i];
  const auto number = static_cast<std::size_t>(result_.trials) + i;
  if (std::optional<Trial> known = known_trial(number, point, limits)) {
    batch.trials[i] = *std::move(known);
    return;
  }
  end_if_stopped(options_.run);
  RunStudyOptions run = options_.run;
  run.jobs = 1;
  run.row = &row;
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

// Tries all against the limit of before the batch; on few steps there is none. A policy that searches by
// simulation also has the threads that no other candidate needs.
void Search::try_batch(const std::vector<Point>& points, std::size_t rung) {
  const TrialLimits limits = limits_of(rung);
  Batch batch{points, rung, std::vector<Trial>(points.size()),
              std::vector<std::shared_ptr<const PolicyResult>>(points.size()),
              std::vector<char>(points.size())};
  // Candidates that may share a plan follow each other, while the plan is kept.
  const auto turns = positions_by(points.size(), [&](std::size_t i) {
    return std::tuple(points[i].row, std::string_view(alike_[points[i].layout]),
                      candidates_.layouts[points[i].layout].layout.data);
  });
  const int threads = std::max(1, options_.run.jobs);
  Cores cores(threads);
  bool stopped = false;
  do {
    try {
      parallel_for(threads, points.size(), [&](int, std::size_t turn) {
        if (batch.done[turns[turn]] != 0) return;
        Cores::Row row(cores, turn);
        try_one(batch, turns[turn], limits, row);
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
    halving_.ran(place - 1, batch.rung, seconds, {facts_.row(point.row).packs_slowly, trial.claim});
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
  const double least = facts_.bound_of(point);
  if (!(least > limit())) return false;
  Trial trial;
  trial.outcome = Outcome::slower;
  trial.seconds_per_token = trial.expected = least;
  trial.claim = result_.tried[place].trial.claim;
  replace(place, std::move(trial));
  return true;
}

// Bit-equal times mean the same plan under another name, which takes one place of the ranking.
void Search::keep_best(std::size_t place, std::shared_ptr<const PolicyResult> row) {
  const double seconds = result_.tried[place].trial.seconds_per_token;
  std::vector<double>& best = best_[at(result_.tried[place].trial.claim)];
  const auto before = std::lower_bound(best.begin(), best.end(), seconds);
  if (before == best.end() || *before != seconds) best.insert(before, seconds);
  if (best.size() > options_.keep) best.pop_back();
  if (row != nullptr) result_.rows.emplace(place, std::move(row));
  std::erase_if(result_.rows, [&](const auto& kept) {
    const Trial& trial = result_.tried[kept.first].trial;
    return trial.seconds_per_token > best_[at(trial.claim)].back();
  });
}

bool Search::is_bounded(Point point) {
  if (!(facts_.bound_of(point) > limit())) return false;
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
          halving_.ran(place, rung + 1, halving_.reached_by(place).seconds,
                       {facts_.row(point.row).packs_slowly, result_.tried[place].trial.claim});
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

std::int64_t Search::probes() const {
  return std::min(options_.budget - options_.budget / 2,
                  std::max(kFewestProbes, options_.budget / kProbeShare));
}

// Tries one layout of each set of degrees.
void Search::probe_degrees() {
  try_all(one_of_all_degrees(), (probes() + 1) / 2);
  forecast_.learn_layouts(result_.tried);
}

void Search::probe_layouts() {
  const std::int64_t most = static_cast<std::int64_t>(result_.tried.size()) + probes() / 2;
  for (std::vector<Point> next = most_promising_probes();
       !next.empty() && static_cast<std::int64_t>(result_.tried.size()) < most;
       next = most_promising_probes()) {
    try_all(next, most);
    forecast_.learn_layouts(result_.tried);
  }
  double best = kInfinity;
  for (const Tried& tried : result_.tried)
    if (const double seconds = tried.trial.expected;
        tried.point.row == facts_.probe() && seconds > 0 && seconds < best) {
      best = seconds;
      best_layout_ = tried.point.layout;
    }
  if (best == kInfinity && !facts_.order().empty()) best_layout_ = facts_.order().front();
}

// The study's own layout, which its user knows, where the space has it.
std::optional<std::uint32_t> Search::own_layout() const {
  const std::vector<LayoutChoice>& all = candidates_.layouts;
  try {
    const Layout own = parse_case(candidates_.study, options_.name).layout;
    const auto found = std::ranges::find(all, own, &LayoutChoice::layout);
    const auto place = static_cast<std::uint32_t>(found - all.begin());
    if (found != all.end() && facts_.layout(place).too_large.empty()) return place;
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
    degrees.insert(forecast_.degrees(*own));
    points.push_back({*own, facts_.probe()});
  }
  for (const bool with_room : {true, false})
    for (const std::uint32_t layout : facts_.order())
      if (facts_.layout(layout).has_room == with_room && degrees.insert(forecast_.degrees(layout)).second)
        points.push_back({layout, facts_.probe()});
  return points;
}

std::vector<Point> Search::most_promising_probes() const {
  std::vector<Point> points;
  for (const std::uint32_t layout : forecast_.layouts()) {
    if (points.size() == kLeastBatch) break;
    if (!is_decided({layout, facts_.probe()})) points.push_back({layout, facts_.probe()});
  }
  return points;
}

void Search::try_rows() {
  if (facts_.order().empty()) return;
  std::vector<Point> points;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
    if (!facts_.row(r).packs_slowly) points.push_back({best_layout_, r});
  try_all(points, options_.budget);
  forecast_.learn_rows(result_.tried, best_layout_);
}

// In order of their foretold time; rows that pack slowly come last, with the most promising layouts first.
std::vector<Point> Search::order_of_others() const {
  std::vector<std::pair<double, Point>> fast;
  for (const std::uint32_t layout : facts_.order())
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r}) && !facts_.row(r).packs_slowly)
        fast.emplace_back(forecast_.seconds({layout, r}), Point{layout, r});
  std::stable_sort(fast.begin(), fast.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Point> points;
  for (const auto& [seconds, point] : fast) points.push_back(point);
  for (const std::uint32_t layout : forecast_.layouts())
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (facts_.row(r).packs_slowly && !is_decided({layout, r})) points.push_back({layout, r});
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
    if (facts_.row(r).packs_slowly) {
      points.push_back({layout, r});
      continue;
    }
    const auto known = best_row.try_emplace(policy, r).first;
    if (forecast_.seconds({layout, r}) < forecast_.seconds({layout, known->second})) known->second = r;
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
  if (layouts.empty()) layouts = forecast_.layouts();
  layouts.resize(std::min(layouts.size(), kComparedLayouts));
  const std::vector<std::string> missing = not_compared();
  std::set<std::string> nowhere(missing.begin(), missing.end());
  std::vector<Point> first, others;
  for (const std::uint32_t layout : layouts) {
    std::set<std::string> seen;
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (place_[index_of({layout, r})] > 0) seen.insert(policy_of(r));
    std::vector<Point> points = not_compared_on(layout);
    std::ranges::stable_sort(points, {}, [&](Point point) { return forecast_.seconds(point); });
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
                          time_->minutes_left() * static_cast<double>(count) / static_cast<double>(left),
                          options_.clock);
    options_.run.stop = &share.over();
    try {
      try_batch({first, first + static_cast<std::ptrdiff_t>(count)}, 0);
    } catch (const Interrupted&) {  // a policy that took longer than its share
    }
    options_.run.stop = &time_->over();
  }
}

// After the time is over, where no candidate of the strongest claim ran on all steps: the fastest of these on
// few do, until one of them has.
void Search::run_best_of_few(const std::atomic<bool>* stop) {
  std::vector<std::tuple<Claim, double, std::size_t>> ran;
  for (std::size_t place = 0; place < result_.tried.size(); ++place)
    if (const double seconds = halving_.reached_by(place).seconds; seconds > 0)
      ran.emplace_back(result_.tried[place].trial.claim, seconds, place);
  std::ranges::sort(ran);
  const auto has_one = [&](Claim claim) {
    return std::any_of(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(claim) + 1,
                       [](const std::vector<double>& best) { return !best.empty(); });
  };
  if (ran.empty() || has_one(std::get<Claim>(ran.front()))) return;
  in_order_ = false;
  options_.run.stop = stop;
  try {
    for (std::size_t i = 0; i < ran.size() && !has_one(std::get<Claim>(ran[i])); ++i)
      try_batch({result_.tried[std::get<std::size_t>(ran[i])].point}, halving_.last());
  } catch (const Interrupted&) {  // by the user
  }
}

std::vector<std::string> Search::not_compared() const {
  std::set<std::string> tried;
  for (const Tried& one : result_.tried) tried.insert(policy_of(one.point.row));
  std::vector<std::string> policies;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
    if ((facts_.order().empty() || !is_reached(r)) && tried.insert(policy_of(r)).second)
      policies.push_back(policy_of(r));
  return policies;
}

void Search::rank() {
  if (facts_.order().empty() && (result_.interrupted || result_.timed_out))
    result_.left = result_.candidates;  // no layout was examined
  // What the budget did not reach may still be proven slower than the best found.
  for (const std::uint32_t layout : facts_.order())
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r}) && !is_bounded({layout, r})) ++result_.left;
  result_.not_compared = not_compared();
  for (std::size_t i = 0; i < result_.tried.size(); ++i)
    if (result_.tried[i].trial.outcome == Outcome::ok) result_.ranking.push_back(i);
  const auto key = [&](std::size_t i) {
    const auto& [point, trial] = result_.tried[i];
    return std::tuple(trial.claim, trial.seconds_per_token, index_of(point));
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
