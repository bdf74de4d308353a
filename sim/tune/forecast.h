// The expected time of candidates that were not tried: (the probe's time on the layout) x (the row's time
// over the probe's, on one layout). The probe's time on a layout that was not probed is its estimate, times
// what layouts of its degrees and of its value of each other key took over theirs.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/tune/candidates.h"
#include "sim/tune/space_facts.h"
#include "sim/tune/trial.h"

namespace equipoise {

// What layouts take over their estimates, learned from those that were probed: a factor for each value of
// each key and one for each set of degrees. They are fitted in turn, as logarithms; a factor of n layouts
// counts n / (n + 1). A few probes thus predict many layouts.
class OverEstimate {
 public:
  explicit OverEstimate(std::span<const LayoutChoice> layouts);

  // `over` has seconds over the estimate of tried candidates, by layout.
  void learn(const std::vector<std::pair<std::uint32_t, double>>& over);
  [[nodiscard]] double of(std::uint32_t layout) const;
  // A number for the layout's set of degrees.
  [[nodiscard]] std::uint32_t degrees(std::uint32_t layout) const { return traits_[layout].front(); }

 private:
  [[nodiscard]] double log_of(std::uint32_t layout) const;

  std::vector<std::vector<std::uint32_t>> traits_;  // by layout: its degrees, then its value of each key
  std::vector<double> factor_;                      // by trait, as logarithms
  double mean_;
};

class Forecast {
 public:
  Forecast(const Candidates& candidates, const SpaceFacts& facts);

  // Takes over what the probe took where it was tried.
  void learn_layouts(std::span<const Tried> tried);
  // Takes over what rows took on a layout on which the probe ran.
  void learn_rows(std::span<const Tried> tried, std::uint32_t layout);

  // Seconds per token. Infinite where the probe found no room and the row finds no more.
  [[nodiscard]] double seconds(Point point) const;
  // Layouts whose states fit, fastest first; those without room come last.
  [[nodiscard]] std::vector<std::uint32_t> layouts() const;
  [[nodiscard]] std::uint32_t degrees(std::uint32_t layout) const { return over_estimate_.degrees(layout); }

 private:
  [[nodiscard]] double probe_seconds(std::uint32_t layout) const;
  [[nodiscard]] bool has_room(std::uint32_t layout) const {
    return has_room_.empty() ? facts_.layout(layout).has_room : has_room_[layout] != 0;
  }

  const SpaceFacts& facts_;
  OverEstimate over_estimate_;
  std::vector<double> layout_seconds_, row_seconds_;  // per token; 0 if unknown
  std::vector<char> has_room_;                        // by layout; empty before the first probes
};

}  // namespace equipoise
