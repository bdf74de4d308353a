#include "sim/tune/forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

namespace equipoise {
namespace {

// The assumed ratio of a layout's time to its estimate, if not even one probe ran.
constexpr double kUnknownOverEstimate = 1.2;

}  // namespace

OverEstimate::OverEstimate(std::span<const LayoutChoice> layouts) : mean_(std::log(kUnknownOverEstimate)) {
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

void OverEstimate::learn(const std::vector<std::pair<std::uint32_t, double>>& over) {
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

double OverEstimate::of(std::uint32_t layout) const {
  return std::exp(log_of(layout));
}

double OverEstimate::log_of(std::uint32_t layout) const {
  double log = mean_;
  for (const std::uint32_t trait : traits_[layout]) log += factor_[trait];
  return log;
}

Forecast::Forecast(const Candidates& candidates, const SpaceFacts& facts)
    : facts_(facts),
      over_estimate_(candidates.layouts),
      layout_seconds_(candidates.layouts.size()),
      row_seconds_(candidates.rows.size()) {}

void Forecast::learn_layouts(std::span<const Tried> tried) {
  if (has_room_.empty())
    for (const LayoutFacts& layout : facts_.layouts()) has_room_.push_back(layout.has_room ? 1 : 0);
  std::vector<std::pair<std::uint32_t, double>> over;
  for (const auto& [point, trial] : tried) {
    if (point.row != facts_.probe()) continue;
    const double seconds = trial.expected, estimate = facts_.layout(point.layout).estimate;
    has_room_[point.layout] = seconds > 0 || trial.outcome == Outcome::late ? 1 : 0;
    if (seconds <= 0) continue;
    layout_seconds_[point.layout] = seconds;
    if (estimate > 0) over.emplace_back(point.layout, seconds / estimate);
  }
  over_estimate_.learn(over);
}

void Forecast::learn_rows(std::span<const Tried> tried, std::uint32_t layout) {
  for (const auto& [point, trial] : tried)
    if (point.layout == layout) row_seconds_[point.row] = trial.expected;
}

double Forecast::probe_seconds(std::uint32_t layout) const {
  return layout_seconds_[layout] > 0 ? layout_seconds_[layout]
                                     : over_estimate_.of(layout) * facts_.layout(layout).estimate;
}

std::vector<std::uint32_t> Forecast::layouts() const {
  std::vector<double> seconds(layout_seconds_.size());
  for (const std::uint32_t layout : facts_.order())
    seconds[layout] = has_room(layout) ? probe_seconds(layout) : std::numeric_limits<double>::infinity();
  std::vector<std::uint32_t> layouts = facts_.order();
  std::ranges::stable_sort(layouts, {}, [&](std::uint32_t i) { return seconds[i]; });
  return layouts;
}

double Forecast::seconds(Point point) const {
  if (!has_room(point.layout) && facts_.row(point.row).like_probe)
    return std::numeric_limits<double>::infinity();
  const double layout = probe_seconds(point.layout);
  const double probe = row_seconds_[facts_.probe()], row = row_seconds_[point.row];
  return probe > 0 && row > 0 ? layout * row / probe : layout * kUnknownOverEstimate;
}

}  // namespace equipoise
