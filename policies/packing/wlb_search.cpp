// Search of WLB-LLM's thresholds (the paper tunes them by hand, section 4.2): smallest predicted time under a
// bound on the mean token delay. A coordinate descent over at most four thresholds, started from the best of
// 0 .. 4 equally spaced queues and of one queue at 2/8 .. 7/8 of the window, with steps of window/8, /16 and
// /32. Every plan tried is made and priced in full, a few dozen in all, so the cost is that many times a plan
// and a prediction. Deterministic: candidates are tried in a fixed order and only a strictly better one
// replaces the best.
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"

namespace equipoise {
namespace {

class ThresholdTrials {
 public:
  ThresholdTrials(const PackingProblem& problem, const std::function<double(const Plan&)>& predicted_seconds,
                  double bound)
      : problem_(problem), predicted_seconds_(predicted_seconds), bound_(bound) {}

  // True if these thresholds are the best so far.
  bool improve(std::vector<std::int64_t> thresholds, int queues) {
    PackOptions options = problem_.options;
    options.of<WlbOptions>().thresholds = std::move(thresholds);
    options.of<WlbOptions>().queues = queues;
    const PackingProblem tried{problem_.batches, options, problem_.workload};
    const Plan plan = plan_wlb(tried);
    ++best_.plans_tried;
    const double delay = plan_metrics(problem_.batches, plan).token_delay_mean.value_or(0);
    if (delay > bound_) return false;
    const double seconds = predicted_seconds_(plan);
    if (found_ && !(seconds < best_.seconds)) return false;
    found_ = true;
    best_.thresholds = wlb_thresholds(options);
    best_.seconds = seconds;
    best_.token_delay_mean = delay;
    return true;
  }

  // Moves one threshold by `step` while that helps.
  void descend(std::int64_t step) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < best_.thresholds.size(); ++i) {
        for (const std::int64_t change : {-step, step}) {
          std::vector<std::int64_t> thresholds = best_.thresholds;
          thresholds[i] += change;
          const std::int64_t below = i == 0 ? 0 : thresholds[i - 1];
          const std::int64_t above =
              i + 1 == thresholds.size() ? problem_.options.context_window + 1 : thresholds[i + 1];
          if (thresholds[i] <= below || thresholds[i] >= above) continue;
          moved = improve(std::move(thresholds), 0) || moved;
        }
      }
    }
  }

  [[nodiscard]] const ThresholdSearch& best() const { return best_; }

 private:
  const PackingProblem& problem_;
  const std::function<double(const Plan&)>& predicted_seconds_;
  double bound_;
  bool found_ = false;
  ThresholdSearch best_;
};

}  // namespace

ThresholdSearch search_wlb_thresholds(const PackingProblem& problem,
                                      const std::function<double(const Plan&)>& predicted_seconds,
                                      double delay_bound) {
  ThresholdTrials search(problem, predicted_seconds, delay_bound);
  for (int queues = 0; queues <= 4; ++queues) search.improve({}, queues);
  for (std::int64_t eighth = 2; eighth < 8; ++eighth) {
    const std::int64_t threshold = problem.options.context_window * eighth / 8;
    if (threshold > 0) search.improve({threshold}, 0);
  }
  for (const std::int64_t part : {8, 16, 32}) {
    const std::int64_t step = problem.options.context_window / part;
    if (step > 0) search.descend(step);
  }
  return search.best();
}

bool wlb_searches(const PackOptions& options) {
  return options.of<WlbOptions>().search;
}

std::vector<std::string> find_wlb_thresholds(const PackingProblem& problem, const PlanPrices& prices,
                                             PackOptions& found) {
  const ThresholdSearch search =
      search_wlb_thresholds(problem, prices.seconds, problem.options.of<WlbOptions>().delay_bound);
  WlbOptions& own = found.of<WlbOptions>();
  own.queues = 0;
  own.thresholds = search.thresholds;
  std::string list;
  for (const std::int64_t t : search.thresholds)
    list.append(list.empty() ? "" : ", ").append(std::to_string(t));
  return {"thresholds found by search: " + (list.empty() ? "none" : list) + " (" +
          std::to_string(search.plans_tried) + " plans tried)"};
}

}  // namespace equipoise
