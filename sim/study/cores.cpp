#include "sim/study/cores.h"

#include <exception>
#include <thread>
#include <vector>

namespace equipoise {

struct Cores::Job {
  const std::size_t row;
  const std::size_t items;
  const Work& work;
  std::size_t next = 0;
  std::size_t failed = items;  // lowest item that failed
  std::exception_ptr error{};
  [[nodiscard]] bool is_given_out() const { return next >= items; }
};

struct Cores::Waiter {
  std::size_t row;
  Waiter* next;
};

bool Cores::has_to_wait(std::size_t row) const {
  for (const Waiter* other = waiting_; other != nullptr; other = other->next)
    if (other->row < row) return true;
  return false;
}

bool Cores::take(Lock& lock, std::size_t row, const Job* job) noexcept {
  Waiter own{row, waiting_};
  waiting_ = &own;
  const auto gave_up = [&] { return job != nullptr && job->is_given_out(); };
  changed_.wait(lock, [&] { return gave_up() || (free_ > 0 && !has_to_wait(row)); });
  Waiter** link = &waiting_;
  while (*link != &own) link = &(*link)->next;
  *link = own.next;
  const bool takes = !gave_up();
  if (takes) --free_;
  if (free_ > 0) changed_.notify_all();  // rows that had let another go first
  return takes;
}

void Cores::give_back() noexcept {
  const std::lock_guard lock(mutex_);
  ++free_;
  changed_.notify_all();
}

void Cores::work_on(Lock& lock, Job& job, int worker) {
  while (!job.is_given_out() && !has_to_wait(job.row)) {
    const std::size_t item = job.next++;
    lock.unlock();
    std::exception_ptr error;
    try {
      job.work(worker, item);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error || item >= job.failed) continue;
    job.failed = item;
    job.error = error;
  }
}

void Cores::help(Job& job, int worker) {
  Lock lock(mutex_);
  while (take(lock, job.row, &job)) {
    work_on(lock, job, worker);
    ++free_;
    changed_.notify_all();
  }
}

Cores::Row::Row(Cores& cores, std::size_t number) : cores_(cores), number_(number) {
  Lock lock(cores_.mutex_);
  cores_.take(lock, number_, nullptr);
}

void Cores::Row::fail() {
  std::size_t lowest = cores_.failed_;
  while (number_ < lowest && !cores_.failed_.compare_exchange_weak(lowest, number_)) {
  }
}

void Cores::Row::for_each(std::size_t items, const Work& work) {
  Job job{number_, items, work};
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(static_cast<std::size_t>(cores_.count_));
    for (int w = 1; w < cores_.count_ && static_cast<std::size_t>(w) < items; ++w)
      helpers.emplace_back([this, &job, w] { cores_.help(job, w); });
  } catch (const std::exception&) {  // the system has no more threads, so the existing ones do it all
  }
  Lock lock(cores_.mutex_);
  while (true) {
    cores_.work_on(lock, job, 0);
    // The caller has no core while another row goes first or helpers end.
    ++cores_.free_;
    cores_.changed_.notify_all();
    if (job.is_given_out()) break;
    cores_.take(lock, number_, nullptr);
  }
  lock.unlock();
  for (std::thread& helper : helpers) helper.join();
  lock.lock();
  cores_.take(lock, number_, nullptr);
  lock.unlock();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace equipoise
