// A stop that sets itself when time is over.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace equipoise {

// Sets over() once `stop` is set (null: it never is) or the minutes have passed.
class TimeLimit {
 public:
  TimeLimit(const std::atomic<bool>* stop, double minutes)
      : minutes_(minutes), thread_([this, stop] {
          while (!ended_ && !over_) {
            if ((stop != nullptr && *stop) || minutes_left() <= 0) over_ = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(over_ ? 0 : 20));
          }
        }) {}
  ~TimeLimit() {
    ended_ = true;
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  [[nodiscard]] const std::atomic<bool>& over() const { return over_; }
  [[nodiscard]] double minutes_left() const {
    const std::chrono::duration<double, std::ratio<60>> since = std::chrono::steady_clock::now() - begin_;
    return std::max(0.0, minutes_ - since.count());
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double minutes_;
  std::atomic<bool> over_ = false, ended_ = false;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace equipoise
