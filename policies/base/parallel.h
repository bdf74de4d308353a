// Distributes independent work over threads. Item i always writes its own result, so the outcome does not
// depend on the number of threads. Of several errors, that of the lowest item is reported.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace equipoise {

// Calls work(worker, item) for every item in [0, items), on `threads` threads; worker is in [0, threads).
template <class Work>
void parallel_for(int threads, std::size_t items, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::size_t failed = items;
  std::exception_ptr error;
  const auto loop = [&](int worker) {
    for (std::size_t i = next++; i < items; i = next++) {
      try {
        work(worker, i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          error = std::current_exception();
        }
      }
    }
  };
  std::vector<std::thread> others;
  try {
    for (int t = 1; t < threads && static_cast<std::size_t>(t) < items; ++t) others.emplace_back(loop, t);
  } catch (
      const std::system_error&) {  // the system starts no more threads, so the existing ones do all the work
  }
  loop(0);
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace equipoise
