// What pace is usual? A core that others share has spells of a lower pace; the 95th percentile of all
// readings is the pace of a core left alone as long as a twentieth of them found it so, and no single odd
// reading moves it. On a core that is never left alone it is the pace that comes nearest to it.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>

namespace equipoise::measure {

// A CPU core whose pace is further below the usual one is not left alone: readings of one that is stay within
// four percent of each other.
inline constexpr double kMostThrottled = 0.06;

class PaceLog {
 public:
  void add(double pace) {
    if (!(pace > 0)) return;
    ++readings_of_[static_cast<int>(std::lround(std::log(pace) / kStep))];
    ++readings_;
  }

  // To half a percent; 0 without readings.
  [[nodiscard]] double usual() const {
    std::size_t above = 0;
    for (auto bin = readings_of_.rbegin(); bin != readings_of_.rend(); ++bin) {
      above += bin->second;
      if (20 * above >= readings_) return std::exp(kStep * bin->first);
    }
    return 0;
  }

 private:
  static constexpr double kStep = 0.005;  // of the logarithm
  std::map<int, std::size_t> readings_of_;
  std::size_t readings_ = 0;
};

}  // namespace equipoise::measure
