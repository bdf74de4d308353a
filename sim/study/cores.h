// The cores that a study may use, shared by rows that run at the same time. Each computing thread has one: a
// row from its plan to its results, and the helpers of its steps. A core goes to the first row that waits for
// one, so that rows end in their order. No core is idle while another row has work for two.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <limits>
#include <mutex>

namespace equipoise {

class Cores {
 public:
  using Work = std::function<void(int worker, std::size_t item)>;

  explicit Cores(int count) : count_(count), free_(count) {}

  // A row at work. It waits for a core and keeps it while it lives, except when another row goes first.
  class Row {
   public:
    Row(Cores& cores, std::size_t number);
    Row(const Row&) = delete;
    Row& operator=(const Row&) = delete;
    ~Row() { cores_.give_back(); }
    // Calls work(worker, item) for every item in [0, items): the caller as worker 0, helpers on other cores
    // as the others, worker in [0, count). Every item is tried, and the error of the lowest one is thrown.
    void for_each(std::size_t items, const Work& work);
    [[nodiscard]] int count() const { return cores_.count_; }
    // Reports an error that ends the study, so that later rows are in vain.
    void fail();
    [[nodiscard]] bool is_in_vain() const { return cores_.failed_ < number_; }

   private:
    Cores& cores_;
    const std::size_t number_;
  };

 private:
  struct Job;
  struct Waiter;
  using Lock = std::unique_lock<std::mutex>;
  void give_back() noexcept;
  // Takes a core when it is the row's turn; false, without one, if the job's items are all taken before.
  bool take(Lock& lock, std::size_t row, const Job* job) noexcept;
  [[nodiscard]] bool has_to_wait(std::size_t row) const;
  void work_on(Lock& lock, Job& job, int worker);
  void help(Job& job, int worker);

  const int count_;
  std::atomic<std::size_t> failed_ = std::numeric_limits<std::size_t>::max();  // lowest row
  std::mutex mutex_;                                                           // guards all below and all
                                                                               // jobs
  std::condition_variable changed_;
  int free_;
  Waiter* waiting_ = nullptr;  // rows and their helpers: a linked list through their stacks
};

}  // namespace equipoise
