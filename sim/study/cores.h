// The cores that a study may use, shared by rows that run at the same time. Who computes holds one of them: a
// row from its plan to its results, and helpers of its steps. A core goes to the first of the rows that wait
// for one, so that rows end in their order, and none is idle while another row has work that two can do.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <set>

namespace equipoise {

class Cores {
 public:
  using Work = std::function<void(int worker, std::size_t item)>;

  explicit Cores(int count) : count_(count), free_(count) {}

  // A row at work: waits for a core and holds it while it lives, but where another row goes first.
  class Row {
   public:
    Row(Cores& cores, std::size_t number);
    Row(const Row&) = delete;
    Row& operator=(const Row&) = delete;
    ~Row() { cores_.give_back(); }
    // Calls work(worker, item) for every item in [0, items), by the caller as worker 0 and by helpers on
    // other cores; worker is in [0, count). Every item is tried; the error of the lowest one is thrown.
    void for_each(std::size_t items, const Work& work);
    [[nodiscard]] int count() const { return cores_.count_; }

   private:
    Cores& cores_;
    const std::size_t number_;
  };

 private:
  struct Job;
  using Lock = std::unique_lock<std::mutex>;
  void give_back();
  // Takes a core when it is the row's turn; false, without one, if the job is given out before.
  bool take(Lock& lock, std::size_t row, const Job* job);
  [[nodiscard]] bool has_to_wait(std::size_t row) const {
    return !waiting_.empty() && *waiting_.begin() < row;
  }
  void work_on(Lock& lock, Job& job, int worker);
  void help(Job& job, int worker);

  const int count_;
  std::mutex mutex_;  // of all below and of all jobs
  std::condition_variable changed_;
  int free_;
  std::multiset<std::size_t> waiting_;  // rows, and helpers of theirs
};

}  // namespace equipoise
