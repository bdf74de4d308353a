#include "sim/tune/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
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
#include "sim/tune/journal.h"

namespace equipoise {
namespace {

// So many candidates are tried against one limit, whatever the number of threads: more of them where the
// limit moves less.
constexpr std::size_t kLeastBatch = 32, kMostBatch = 512, kBatchShare = 16;
constexpr std::size_t kRun = 32;  // neighbours in the order of the search that go to one share
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The share of the budget for probes, and the fewest of them, which take half of a small budget.
constexpr std::int64_t kProbeShare = 16, kFewestProbes = 64;
// Layouts on which rows that pack slowly take their turn, and the other candidates between two of these.
constexpr std::size_t kSlowRowLayouts = 16, kBetweenSlowRows = 256;
// The time that a layout is thought to take over its estimate, where not even one probe ran.
constexpr double kUnknownOverEstimate = 1.2;

struct LayoutFacts {
  // Least seconds per token of any row on it: [may drop or split documents][decides itself what it
  // recomputes][sends the K and V of all documents round all CP ranks].
  double bound[2][2][2] = {};
  double estimate = 0;    // seconds per token, for the order of the search
  bool has_room = true;   // for every document, with the probe
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

  // `over`: seconds over the estimate of those that were tried, by layout.
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

class Search {
 public:
  Search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
         Journal* journal)
      : candidates_(candidates),
        inputs_(inputs),
        options_(options),
        journal_(journal),
        over_estimate_(candidates.layouts) {
    result_.candidates = candidates.count();
    for (std::size_t b = 0; b < candidates.bases.size(); ++b) least_.emplace_back(StepBound::kNear);
  }

  SearchResult run() {
    try {
      look_at_layouts();
      probe_layouts();
      try_rows();
      try_others();
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    rank();
    return std::move(result_);
  }

 private:
  void look_at_layouts();
  void choose_probe();
  void probe_layouts();
  [[nodiscard]] std::vector<Point> one_of_all_degrees() const;
  [[nodiscard]] std::vector<Point> most_promising_probes() const;
  void learn_from_probes();
  [[nodiscard]] bool probe_has_room(std::uint32_t layout) const;
  void try_rows();
  void try_others();
  void try_all(const std::vector<Point>& points, std::int64_t budget, Share share = {});
  void try_batch(const std::vector<Point>& batch);
  [[nodiscard]] std::optional<Trial> known_trial(std::size_t n, Point point) const;
  void keep(const std::vector<Point>& batch, std::vector<Trial> trials);
  void rank();
  [[nodiscard]] LayoutFacts facts_of(std::size_t layout) const;
  [[nodiscard]] double limit() const;
  [[nodiscard]] double bound_of(Point point) const;
  [[nodiscard]] double layout_foretold(std::uint32_t layout) const;
  [[nodiscard]] double foretold(Point point) const;
  [[nodiscard]] std::vector<std::uint32_t> layouts_foretold_best() const;
  [[nodiscard]] std::vector<Point> order_of_others() const;
  [[nodiscard]] bool is_decided(Point point) const { return decided_[index_of(point)] != 0; }
  [[nodiscard]] Shared shared_by(std::uint32_t layout) {
    return {&plans_, alike_[layout], &least_[candidates_.layouts[layout].base]};
  }
  [[nodiscard]] std::size_t index_of(Point point) const {
    return std::size_t{point.layout} * candidates_.rows.size() + point.row;
  }

  const Candidates& candidates_;
  const StudyInputs& inputs_;
  const SearchOptions& options_;
  Journal* journal_;
  std::vector<LayoutFacts> facts_;
  std::vector<std::uint32_t> order_;      // layouts, by estimate
  std::vector<char> decided_;             // by point
  std::vector<char> no_room_, as_probe_;  // by layout: its probe does not run; by row: it would not
  // By row: it may drop or split documents; its own recompute; it spreads all documents over the CP ranks.
  std::vector<unsigned char> cuts_, recomputes_, exchanges_, slow_;
  double pairs_ = 0;                                  // of all documents
  std::vector<double> layout_seconds_, row_seconds_;  // per token; 0: unknown
  OverEstimate over_estimate_;
  std::uint32_t probe_ = 0, best_layout_ = 0;
  std::vector<double> best_;  // the `keep` lowest seconds per token so far, ascending, each once
  PlanCache plans_;
  mutable std::deque<SharedLeastCosts> least_;  // by base
  std::vector<std::string> alike_;  // by layout: what it must have in common with another to share a plan
  SearchResult result_;
};

// Documents cost the same whatever the pipeline; of recompute, what matters is looked at with the row.
std::string priced_alike(const LayoutChoice& layout) {
  nlohmann::json keys = layout.keys;
  for (const char* key :
       {"parallel.pipeline", "parallel.virtual_pipeline", "parallel.data", "parallel.recompute", "schedule"})
    keys.erase(key);
  return keys.dump();
}

// Policies that leave all lanes on the layout's CP ranks and place no document on one of them.
bool spreads_documents(const PolicyRun& row) {
  constexpr std::string_view kSpread[] = {"plain", "fixed-greedy", "wlb", "chunkflow"};
  return std::ranges::count(kSpread, row.policy().name) > 0 && !row.rule().places_documents;
}

// Packing that simulates or branches on its own.
bool packs_slowly(const PolicyRun& row) {
  return row.policy().search.is_open_in(row.pack) || row.policy().name == "flexsp";
}

bool may_cut(const RowChoice& row) {
  return row.entry.contains("oversize") && row.entry["oversize"] != "error";
}

// On the layouts that allow it, with its preset's value where it gives none.
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
      if (const double held = models.memory.fixed(stage).total(); held > models.memory.capacity_bytes()) {
        facts.too_large = concatenated("stage ", stage, " holds ", static_cast<int>(held / kGiB),
                                       " GiB before any micro-batch, a GPU has ",
                                       static_cast<int>(models.memory.capacity_bytes() / kGiB), " GiB");
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
    // Rows on it are refused one by one, with their reasons.
  }
  return facts;
}

void Search::look_at_layouts() {
  const std::size_t layouts = candidates_.layouts.size();
  facts_.resize(layouts);
  for (const LayoutChoice& layout : candidates_.layouts) alike_.push_back(priced_alike(layout));
  decided_.assign(layouts * candidates_.rows.size(), 0);
  layout_seconds_.assign(layouts, 0);
  row_seconds_.assign(candidates_.rows.size(), 0);
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) {
    cuts_.push_back(may_cut(candidates_.rows[r]) || may_even_out(candidates_.rows[r]) ? 1 : 0);
    bool recomputes = true, exchanges = false, slow = false;  // where it goes with another layout only
    try {
      const Study study = candidate_study(candidates_, {0, r}, options_.name);
      const PolicyRun& row = study.policies.front();
      // A row's own recompute, and what hbp finds for each of its groups.
      recomputes = row.has_recompute || row.policy().derives == Derives::groups;
      exchanges = spreads_documents(row) && !row.context_comm;
      slow = packs_slowly(row);
      if (row.context_comm) cuts_.back() = 1;  // bounds of pairs are by the layout's own form
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

std::optional<Trial> Search::known_trial(std::size_t n, Point point) const {
  if (journal_ != nullptr)
    if (std::optional<Trial> known = journal_->find(n, point, limit())) return known;
  return options_.known != nullptr ? options_.known->find(point, limit()) : std::nullopt;
}

void Search::try_batch(const std::vector<Point>& batch) {
  const TrialLimits limits{limit(), options_.most_delay, options_.longest_delay};
  const std::size_t first = result_.tried.size();
  std::vector<Trial> trials(batch.size());
  std::vector<char> done(batch.size(), 0);
  std::atomic<std::int64_t> ran = 0;
  // Those that may share a plan behind each other, while it is kept.
  const auto turns = positions_by(batch.size(), [&](std::size_t i) {
    return std::tuple(batch[i].row, std::string_view(alike_[batch[i].layout]),
                      candidates_.layouts[batch[i].layout].layout.data);
  });
  RunStudyOptions run = options_.run;
  run.jobs = 1;
  const auto try_one = [&](int, std::size_t turn) {
    const std::size_t i = turns[turn];
    if (std::optional<Trial> known = known_trial(first + i, batch[i])) {
      trials[i] = *std::move(known);
    } else {
      end_if_stopped(options_.run);
      trials[i] = try_candidate(candidate_study(candidates_, batch[i], options_.name), inputs_, limits, run,
                                shared_by(batch[i].layout));
      ++ran;
    }
    done[i] = 1;
  };
  try {
    parallel_for(std::max(1, options_.run.jobs), batch.size(), try_one);
  } catch (const Interrupted&) {
    const auto finished = static_cast<std::size_t>(std::find(done.begin(), done.end(), 0) - done.begin());
    trials.resize(finished);
    keep(batch, std::move(trials));
    throw;
  }
  result_.ran += ran;
  keep(batch, std::move(trials));
  if (options_.progress)
    options_.progress(static_cast<std::int64_t>(result_.tried.size()),
                      std::min(options_.budget, result_.candidates - result_.too_large - result_.bounded),
                      best_.empty() ? 0 : best_.front());
}

// The first of the batch, as many as there are trials.
void Search::keep(const std::vector<Point>& batch, std::vector<Trial> trials) {
  if (journal_ != nullptr) journal_->add(result_.tried.size(), batch, trials);
  for (std::size_t i = 0; i < trials.size(); ++i) {
    decided_[index_of(batch[i])] = 1;
    if (trials[i].outcome == Outcome::ok) {
      // Equal to the bit is the same plan under another name, and one place of the ranking.
      const double seconds = trials[i].seconds_per_token;
      const auto place = std::lower_bound(best_.begin(), best_.end(), seconds);
      if (place == best_.end() || *place != seconds) best_.insert(place, seconds);
      if (best_.size() > options_.keep) best_.pop_back();
    }
    result_.tried.push_back({batch[i], std::move(trials[i])});
  }
}

// In the order given; those that bounds prove slower are passed over.
void Search::try_all(const std::vector<Point>& points, std::int64_t budget, Share share) {
  std::vector<Point> batch;
  const auto batch_size = [&] {
    return std::clamp(result_.tried.size() / kBatchShare, kLeastBatch, kMostBatch);
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point point = points[i];
    if (static_cast<std::int64_t>(result_.tried.size() + batch.size()) >= budget) break;
    if (is_decided(point) || !share.has(i / kRun)) continue;
    if (bound_of(point) > limit()) {
      decided_[index_of(point)] = 1;
      ++result_.bounded;
      continue;
    }
    if (options_.only_known && !options_.known->find(point, limit())) continue;
    batch.push_back(point);
    if (batch.size() < batch_size()) continue;
    try_batch(batch);
    batch.clear();
  }
  if (!batch.empty()) try_batch(batch);
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

// First one layout of each set of degrees, then those that promise most by all that was probed.
void Search::probe_layouts() {
  const std::int64_t probes =
      std::min(options_.budget - options_.budget / 2, std::max(kFewestProbes, options_.budget / kProbeShare));
  for (std::vector<Point> next = one_of_all_degrees(); !next.empty(); next = most_promising_probes()) {
    const auto before = static_cast<std::int64_t>(result_.tried.size());
    try_all(next, before == 0 ? (probes + 1) / 2 : probes);
    learn_from_probes();
    if (static_cast<std::int64_t>(result_.tried.size()) >= probes) break;
  }
  double best = kInfinity;
  for (const Tried& tried : result_.tried)
    if (const double seconds = tried.trial.expected; seconds > 0 && seconds < best) {
      best = seconds;
      best_layout_ = tried.point.layout;
    }
  if (best == kInfinity && !order_.empty()) best_layout_ = order_.front();
}

void Search::learn_from_probes() {
  std::vector<std::pair<std::uint32_t, double>> over;
  for (const Tried& tried : result_.tried) {
    const double seconds = tried.trial.expected, estimate = facts_[tried.point.layout].estimate;
    no_room_[tried.point.layout] = seconds <= 0 && tried.trial.outcome != Outcome::late ? 1 : 0;
    if (seconds <= 0) continue;
    layout_seconds_[tried.point.layout] = seconds;
    if (estimate > 0) over.emplace_back(tried.point.layout, seconds / estimate);
  }
  over_estimate_.learn(over);
}

// The lowest estimate of each that has room for every document, and, where none has, the lowest of all.
std::vector<Point> Search::one_of_all_degrees() const {
  std::vector<Point> points;
  std::set<std::uint32_t> degrees;
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
    if (row.run.schedule_auto) return true;  // each schedule has another
    derive_sizes(row, false);
    if (row.no_room) return false;
    const auto hard_limit = row.run.policy().hard_limit;
    const std::int64_t most = hard_limit == nullptr ? 0 : hard_limit(row.run.pack);
    return most == 0 || may_cut(candidates_.rows[probe_]) || most >= longest_of(inputs_.documents);
  } catch (const UserError&) {
    return true;  // refused with its reason when it is tried
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

// Those without room last.
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

// As foretold; rows that pack slowly on one of the best layouts after the other, and on the rest last.
std::vector<Point> Search::order_of_others() const {
  std::vector<std::pair<double, Point>> fast;
  for (const std::uint32_t layout : order_)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r}) && slow_[r] == 0)
        fast.emplace_back(foretold({layout, r}), Point{layout, r});
  std::stable_sort(fast.begin(), fast.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Point> points;
  std::size_t next = 0;
  const auto add_fast = [&](std::size_t count) {
    for (const std::size_t end = std::min(fast.size(), next + count); next < end; ++next)
      points.push_back(fast[next].second);
  };
  std::size_t turns = 0;
  for (const std::uint32_t layout : layouts_foretold_best()) {
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (slow_[r] != 0 && !is_decided({layout, r})) points.push_back({layout, r});
    add_fast(++turns < kSlowRowLayouts ? kBetweenSlowRows : fast.size());
  }
  add_fast(fast.size());
  return points;
}

void Search::try_others() {
  const auto probed = static_cast<std::int64_t>(result_.tried.size());
  const std::int64_t left = options_.budget - probed, count = options_.share.count;
  try_all(order_of_others(), probed + left / count + (left % count > 0 ? 1 : 0), options_.share);
}

void Search::rank() {
  if (order_.empty() && result_.interrupted) result_.left = result_.candidates;  // no layout was looked at
  // What the budget did not reach may still be proven slower by the best that were found.
  for (const std::uint32_t layout : order_)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) {
      if (is_decided({layout, r})) continue;
      const bool slower = bound_of({layout, r}) > limit();
      ++(slower ? result_.bounded : result_.left);
    }
  for (std::size_t i = 0; i < result_.tried.size(); ++i)
    if (result_.tried[i].trial.outcome == Outcome::ok) result_.ranking.push_back(i);
  const auto key = [&](std::size_t i) {
    return std::tuple(result_.tried[i].trial.seconds_per_token, index_of(result_.tried[i].point));
  };
  std::ranges::sort(result_.ranking, {}, key);
}

}  // namespace

SearchResult search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
                    Journal* journal) {
  return Search(candidates, inputs, options, journal).run();
}

}  // namespace equipoise
