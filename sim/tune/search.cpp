#include "sim/tune/search.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "sim/tune/bound.h"
#include "sim/tune/journal.h"

namespace equipoise {
namespace {

constexpr std::size_t kBatch = 32;  // tried against one limit; not the number of threads
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// What a layout is thought to take where its probe did not run, beside its bound.
constexpr double kUnknownOverBound = 1.5;

struct LayoutFacts {
  double bound = 0;       // least seconds per token of any row that keeps all documents whole
  double bound_cut = 0;   // of one that may drop or split some
  std::string too_large;  // why its states do not fit
};

class Search {
 public:
  Search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
         Journal* journal)
      : candidates_(candidates), inputs_(inputs), options_(options), journal_(journal) {
    result_.candidates = candidates.count();
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
  void probe_layouts();
  void try_rows();
  void try_others();
  void try_all(const std::vector<Point>& points);
  void try_batch(const std::vector<Point>& batch);
  void rank();
  [[nodiscard]] LayoutFacts facts_of(std::size_t layout) const;
  [[nodiscard]] double limit() const;
  [[nodiscard]] double bound_of(Point point) const;
  [[nodiscard]] double foretold(Point point) const;
  [[nodiscard]] bool is_decided(Point point) const { return decided_[index_of(point)] != 0; }
  [[nodiscard]] std::size_t index_of(Point point) const {
    return std::size_t{point.layout} * candidates_.rows.size() + point.row;
  }

  const Candidates& candidates_;
  const StudyInputs& inputs_;
  const SearchOptions& options_;
  Journal* journal_;
  std::vector<LayoutFacts> facts_;
  std::vector<std::uint32_t> order_;                  // layouts, by bound
  std::vector<char> decided_, cuts_;                  // by point; by row: it may drop or split documents
  std::vector<double> layout_seconds_, row_seconds_;  // per token; 0: unknown
  std::uint32_t probe_ = 0, best_layout_ = 0;
  std::vector<double> best_;  // the `keep` lowest seconds per token so far, ascending
  SearchResult result_;
};

bool may_cut(const RowChoice& row) {
  return row.entry.contains("oversize") && row.entry["oversize"] != "error";
}

LayoutFacts Search::facts_of(std::size_t layout) const {
  LayoutFacts facts;
  const Study study = candidate_study(candidates_, {static_cast<std::uint32_t>(layout), 0}, options_.name);
  try {
    const RunModels models(study, study.layout, inputs_.profile);
    for (int stage = 0; stage < study.layout.pipeline; ++stage)
      if (const double held = models.memory.fixed(stage).total(); held > models.memory.capacity_bytes()) {
        constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
        facts.too_large = "stage " + std::to_string(stage) + " holds " +
                          std::to_string(static_cast<int>(held / kGiB)) +
                          " GiB before any micro-batch, a GPU has " +
                          std::to_string(static_cast<int>(models.memory.capacity_bytes() / kGiB)) + " GiB";
        return facts;
      }
    // Bounds of a row without Skrull's placements hold for those with them: exchanges are left out.
    const StepBound bound(models, study.policies.front(), true);
    const auto tokens = static_cast<double>(inputs_.documents.tokens);
    const double pairs = visible_pairs(inputs_.documents, study.model.sliding_window);
    facts.bound = bound.even_seconds(tokens, pairs) / tokens;
    facts.bound_cut = bound.even_seconds(tokens, 0) / tokens;
  } catch (const UserError&) {
    // Rows on it are refused one by one, with their reasons.
  }
  return facts;
}

void Search::look_at_layouts() {
  const std::size_t layouts = candidates_.layouts.size();
  facts_.resize(layouts);
  decided_.assign(layouts * candidates_.rows.size(), 0);
  layout_seconds_.assign(layouts, 0);
  row_seconds_.assign(candidates_.rows.size(), 0);
  for (const RowChoice& row : candidates_.rows) cuts_.push_back(may_cut(row) ? 1 : 0);
  parallel_for(std::max(1, options_.run.jobs), layouts, [&](int, std::size_t i) {
    end_if_stopped(options_.run);
    facts_[i] = facts_of(i);
  });
  for (std::size_t i = 0; i < layouts; ++i) {
    if (facts_[i].too_large.empty()) {
      order_.push_back(static_cast<std::uint32_t>(i));
      continue;
    }
    if (result_.too_large_example.empty()) result_.too_large_example = facts_[i].too_large;
    result_.too_large += static_cast<std::int64_t>(candidates_.rows.size());
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return facts_[a].bound < facts_[b].bound; });
}

double Search::bound_of(Point point) const {
  const LayoutFacts& facts = facts_[point.layout];
  return cuts_[point.row] != 0 ? facts.bound_cut : facts.bound;
}

double Search::limit() const {
  return options_.prune && best_.size() >= options_.keep ? best_.back() : kInfinity;
}

void Search::try_batch(const std::vector<Point>& batch) {
  const TrialLimits limits{limit(), options_.most_delay};
  const std::size_t first = result_.tried.size();
  std::vector<Trial> trials(batch.size());
  RunStudyOptions run = options_.run;
  run.jobs = 1;
  parallel_for(std::max(1, options_.run.jobs), batch.size(), [&](int, std::size_t i) {
    if (journal_ != nullptr)
      if (const Trial* known = journal_->find(first + i, batch[i])) {
        trials[i] = *known;
        return;
      }
    end_if_stopped(options_.run);
    trials[i] = try_candidate(candidate_study(candidates_, batch[i], options_.name), inputs_, limits, run);
  });
  if (journal_ != nullptr) journal_->add(first, batch, trials);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    decided_[index_of(batch[i])] = 1;
    if (trials[i].outcome == Outcome::ok) {
      const double seconds = trials[i].seconds_per_token;
      best_.insert(std::upper_bound(best_.begin(), best_.end(), seconds), seconds);
      if (best_.size() > options_.keep) best_.pop_back();
    }
    result_.tried.push_back({batch[i], std::move(trials[i])});
  }
  if (options_.progress)
    options_.progress(static_cast<std::int64_t>(result_.tried.size()),
                      std::min(options_.budget, result_.candidates - result_.too_large - result_.bounded),
                      best_.empty() ? 0 : best_.front());
}

// In the order given; those that bounds prove slower are passed over.
void Search::try_all(const std::vector<Point>& points) {
  std::vector<Point> batch;
  for (const Point point : points) {
    if (static_cast<std::int64_t>(result_.tried.size() + batch.size()) >= options_.budget) break;
    if (is_decided(point)) continue;
    if (bound_of(point) > limit()) {
      decided_[index_of(point)] = 1;
      ++result_.bounded;
      continue;
    }
    batch.push_back(point);
    if (batch.size() < kBatch) continue;
    try_batch(batch);
    batch.clear();
  }
  if (!batch.empty()) try_batch(batch);
}

// The probe: WLB-LLM's variable-length packing where it is among the rows, since its micro-batches are as
// large as memory allows, so that it runs wherever anything does; else the first row.
void Search::probe_layouts() {
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) {
    const nlohmann::json& name = candidates_.rows[r].entry["name"];
    if (name != "wlb-llm" && name != "wlb") continue;
    if (candidates_.rows[r].entry.contains("max_tokens")) continue;
    probe_ = r;
    break;
  }
  std::vector<Point> points;
  for (const std::uint32_t layout : order_) points.push_back({layout, probe_});
  try_all(points);
  double best = kInfinity;
  for (const Tried& tried : result_.tried) {
    const double seconds = tried.trial.expected;
    if (seconds <= 0) continue;
    layout_seconds_[tried.point.layout] = seconds;
    if (seconds >= best) continue;
    best = seconds;
    best_layout_ = tried.point.layout;
  }
  if (best == kInfinity && !order_.empty()) best_layout_ = order_.front();
}

void Search::try_rows() {
  if (order_.empty()) return;
  std::vector<Point> points;
  for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r) points.push_back({best_layout_, r});
  try_all(points);
  for (const Tried& tried : result_.tried)
    if (tried.point.layout == best_layout_) row_seconds_[tried.point.row] = tried.trial.expected;
}

double Search::foretold(Point point) const {
  const double layout = layout_seconds_[point.layout] > 0 ? layout_seconds_[point.layout]
                                                          : kUnknownOverBound * facts_[point.layout].bound;
  const double probe = row_seconds_[probe_], row = row_seconds_[point.row];
  return probe > 0 && row > 0 ? layout * row / probe : layout * kUnknownOverBound;
}

void Search::try_others() {
  std::vector<Point> points;
  for (const std::uint32_t layout : order_)
    for (std::uint32_t r = 0; r < candidates_.rows.size(); ++r)
      if (!is_decided({layout, r})) points.push_back({layout, r});
  std::vector<double> seconds;
  for (const Point point : points) seconds.push_back(foretold(point));
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  std::vector<Point> sorted;
  for (const std::size_t i : order) sorted.push_back(points[i]);
  try_all(sorted);
}

void Search::rank() {
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
  std::sort(result_.ranking.begin(), result_.ranking.end(),
            [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
}

}  // namespace

SearchResult search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
                    Journal* journal) {
  return Search(candidates, inputs, options, journal).run();
}

}  // namespace equipoise
