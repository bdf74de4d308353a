// A stop that sets itself when time is over.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace equipoise {

// Minutes since some moment. Only a test has another clock than the machine's.
using MinuteClock = std::function<double()>;
using Minutes = std::chrono::duration<double, std::ratio<60>>;
inline double steady_minutes() {
  return Minutes(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sets over() once `stop` is set (null: it never is) or the minutes have passed.
class TimeLimit {
 public:
  TimeLimit(const std::atomic<bool>* stop, double minutes, MinuteClock clock = steady_minutes)
      : clock_(std::move(clock)), end_(clock_() + minutes), thread_([this, stop] {
          while (!ended_ && !over_) {
            if ((stop != nullptr && *stop) || minutes_left() <= 0) over_ = true;
            if (!over_) std::this_thread::sleep_for(std::min(kBetweenLooks, Minutes(minutes_left())));
          }
        }) {}
  ~TimeLimit() {
    ended_ = true;
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  [[nodiscard]] const std::atomic<bool>& over() const { return over_; }
  [[nodiscard]] double minutes_left() const { return std::max(0.0, end_ - clock_()); }

 private:
  static constexpr Minutes kBetweenLooks = std::chrono::milliseconds(20);
  MinuteClock clock_;
  double end_;
  std::atomic<bool> over_ = false, ended_ = false;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace equipoise
