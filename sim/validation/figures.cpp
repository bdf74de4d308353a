#include "sim/validation/figures.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "policies/base/text.h"

namespace equipoise {
namespace {

// The k of median_noise's interval: at least 1, even if the whole range covers less than 95%.
std::size_t order_of_interval(std::size_t count) {
  const auto n = static_cast<double>(count);
  double term = std::exp2(-n), below = term;  // P(Binomial = 0), P(Binomial < 1)
  std::size_t k = 1;
  for (; k < count; ++k) {
    const auto i = static_cast<double>(k);
    term *= (n - i + 1) / i;
    below += term;
    if (!(below <= 0.025)) break;
  }
  return k;
}

constexpr std::size_t kWorstShown = 5;

// Collects single errors; `at` lets the caller find one again.
class ErrorSum {
 public:
  void add(double predicted, double measured, std::size_t at, double alone = 0) {
    const double error = predicted / measured - 1;
    ++errors_.count;
    errors_.predicted_seconds += predicted;
    errors_.measured_seconds += measured;
    errors_.alone_seconds += alone;
    abs_ += std::abs(error);
    signed_ += error;
    if (errors_.count == 1 || std::abs(error) > std::abs(errors_.worst)) {
      errors_.worst = error;
      errors_.worst_at = at;
    }
  }
  [[nodiscard]] Errors result() const {
    Errors errors = errors_;
    if (errors.count == 0) return errors;
    errors.mean_abs = abs_ / static_cast<double>(errors.count);
    errors.mean = signed_ / static_cast<double>(errors.count);
    return errors;
  }

 private:
  Errors errors_;
  double abs_ = 0, signed_ = 0;
};

bool is_time(double seconds) {
  return std::isfinite(seconds) && seconds > 0;
}

PolicyFigures policy_figures(const PolicyPairs& pairs, double limit) {
  PolicyFigures figures;
  figures.label = pairs.label;
  figures.runs = pairs.runs;
  figures.dropped_runs = pairs.dropped_runs;
  ErrorSum errors;
  double noise = 0, tokens = 0;
  bool repeated = false, all_tokens = true;
  for (const StepPair& step : pairs.steps) {
    const double measured = median(step.measured_seconds);
    if (!is_time(measured)) continue;
    const std::optional<double> own = median_noise(step.measured_seconds);
    errors.add(step.predicted_seconds, measured, figures.steps.size(), step.alone_seconds);
    figures.steps.push_back({step.step, step.predicted_seconds, measured, own, step.measured_seconds.size()});
    noise += own.value_or(0);
    repeated = repeated || own;
    tokens += static_cast<double>(step.tokens);
    all_tokens = all_tokens && step.tokens > 0;
    if (pairs.runs == 0)
      figures.runs = std::max(figures.runs, static_cast<int>(step.measured_seconds.size()));
  }
  figures.errors = errors.result();
  if (figures.steps.empty()) return figures;
  const auto count = static_cast<double>(figures.steps.size());
  figures.predicted_seconds = figures.errors.predicted_seconds / count;
  figures.measured_seconds = figures.errors.measured_seconds / count;
  if (repeated) figures.noise_seconds = noise / count;
  const double share = all_tokens ? 1 / tokens : 1 / count;
  figures.predicted_rate = figures.errors.predicted_seconds * share;
  figures.measured_rate = figures.errors.measured_seconds * share;
  figures.rate_noise = noise * share;
  figures.within_limit = std::abs(figures.errors.error()) <= limit;
  return figures;
}

bool knows_tokens(const PolicyPairs& pairs) {
  return std::all_of(pairs.steps.begin(), pairs.steps.end(),
                     [](const StepPair& step) { return step.tokens > 0 || step.measured_seconds.empty(); });
}

std::vector<std::string> labels_by(std::vector<PolicyFigures> policies, double PolicyFigures::*rate) {
  std::ranges::stable_sort(policies, {}, [&](const PolicyFigures& p) { return p.*rate; });
  return each_of(policies, &PolicyFigures::label);
}

// A pair counts as swapped only if its measured rates differ by more than both noises.
Ranking ranking_of(const std::vector<PolicyFigures>& policies, bool per_token) {
  Ranking ranking;
  ranking.per_token = per_token;
  ranking.predicted = labels_by(policies, &PolicyFigures::predicted_rate);
  ranking.measured = labels_by(policies, &PolicyFigures::measured_rate);
  for (std::size_t i = 0; i < policies.size(); ++i)
    for (std::size_t j = i + 1; j < policies.size(); ++j) {
      const bool i_faster = policies[i].measured_rate <= policies[j].measured_rate;
      const PolicyFigures& fast = policies[i_faster ? i : j];
      const PolicyFigures& slow = policies[i_faster ? j : i];
      if (slow.measured_rate - fast.measured_rate <= std::hypot(fast.rate_noise, slow.rate_noise))
        ranking.ties.emplace_back(fast.label, slow.label);
      else if (fast.predicted_rate > slow.predicted_rate)
        ranking.swaps.emplace_back(fast.label, slow.label);
    }
  return ranking;
}

std::vector<OpFigures> op_figures(const std::vector<OpPair>& ops, double limit, std::int64_t& unmeasured) {
  std::map<std::string, ErrorSum> sums;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const double measured = median(ops[i].measured_seconds);
    if (is_time(measured))
      sums[ops[i].op].add(ops[i].predicted_seconds, measured, i, ops[i].alone_seconds);
    else
      ++unmeasured;
  }
  std::vector<OpFigures> figures;
  for (const auto& [op, sum] : sums) {
    OpFigures& kind = figures.emplace_back();
    kind.op = op;
    kind.errors = sum.result();
    kind.worst = ops[kind.errors.worst_at];
    kind.worst.measured_seconds = {median(kind.worst.measured_seconds)};
    kind.within_limit = std::abs(kind.errors.error()) <= limit;
  }
  const auto seconds = [](const OpFigures& op) { return op.errors.measured_seconds; };
  std::ranges::stable_sort(figures, std::ranges::greater{}, seconds);
  return figures;
}

std::vector<MicroBatchFigures> micro_batches_of(const std::vector<OpPair>& ops) {
  std::map<std::tuple<std::string, std::int64_t, int, int>, MicroBatchFigures> sums;
  for (const OpPair& op : ops) {
    const double measured = median(op.measured_seconds);
    if (op.micro_batch < 0 || !is_time(measured)) continue;
    MicroBatchFigures& sum = sums[{op.label, op.step, op.lane, op.micro_batch}];
    sum.label = op.label;
    sum.step = op.step;
    sum.lane = op.lane;
    sum.micro_batch = op.micro_batch;
    sum.predicted_seconds += op.predicted_seconds;
    sum.measured_seconds += measured;
  }
  std::vector<MicroBatchFigures> all;
  for (const auto& [key, sum] : sums) all.push_back(sum);
  return all;
}

void add_micro_batches(const std::vector<OpPair>& ops, ValidationFigures& figures) {
  std::vector<MicroBatchFigures> all = micro_batches_of(ops);
  ErrorSum errors;
  for (std::size_t i = 0; i < all.size(); ++i)
    errors.add(all[i].predicted_seconds, all[i].measured_seconds, i);
  figures.micro_batches = errors.result();
  const auto error = [](const MicroBatchFigures& m) { return std::abs(m.error()); };
  std::ranges::stable_sort(all, std::ranges::greater{}, error);
  if (all.size() > kWorstShown) all.resize(kWorstShown);
  figures.worst_micro_batches = std::move(all);
}

void find_broken(const Validation& validation, ValidationFigures& figures) {
  const auto beyond = [](double error, double limit) {
    return signed_percent(error) + ", beyond " + signed_percent(limit).substr(1);
  };
  if (figures.policies.empty()) figures.broken.emplace_back("nothing was measured");
  for (const PolicyFigures& p : figures.policies)
    if (!p.within_limit)
      figures.broken.push_back("step of " + p.label + ": " +
                               beyond(p.errors.error(), validation.limits.step));
  for (const OpFigures& op : figures.ops)
    if (!op.within_limit)
      figures.broken.push_back("op " + op.op + ": " + beyond(op.errors.error(), validation.limits.op));
  for (const auto& [fast, slow] : figures.ranking.swaps)
    figures.broken.push_back("ranking: " + fast + " is measured faster than " + slow +
                             " and predicted slower");
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<double> median_noise(std::vector<double> values) {
  if (values.size() < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  // exp2(-n) is 0 beyond the range of doubles, where the normal approximation is exact enough.
  constexpr std::size_t kMostCounted = 1000;
  const auto n = static_cast<double>(values.size());
  const std::size_t k = values.size() <= kMostCounted ? order_of_interval(values.size())
                                                      : static_cast<std::size_t>(n / 2 - 0.98 * std::sqrt(n));
  return (values[values.size() - k] - values[k - 1]) / 2;
}

ValidationFigures figures_of(const Validation& validation) {
  ValidationFigures figures;
  const bool per_token = std::all_of(validation.policies.begin(), validation.policies.end(), knows_tokens);
  for (PolicyPairs pairs : validation.policies) {
    if (!per_token)  // so that all rates have one unit
      for (StepPair& step : pairs.steps) step.tokens = 0;
    if (PolicyFigures own = policy_figures(pairs, validation.limits.step); !own.steps.empty())
      figures.policies.push_back(std::move(own));
  }
  figures.ops = op_figures(validation.ops, validation.limits.op, figures.unmeasured_ops);
  add_micro_batches(validation.ops, figures);
  figures.ranking = ranking_of(figures.policies, per_token);
  find_broken(validation, figures);
  figures.other_load = validation.other_load;
  return figures;
}

std::string ValidationFigures::verdict() const {
  if (passed()) return "passed";
  return judged() ? "failed"
                  : "not judged: measured while other work ran (" + fixed(other_load, 1) +
                        " CPUs were busy when the run began); run it again on a quiet machine";
}

}  // namespace equipoise
