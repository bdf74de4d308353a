// One device for ranks that are threads: whoever holds the turn computes, the others wait in line.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace equipoise::kernels {

// First come, first served, so that the order of ranks depends on when each became ready and on nothing else.
class Turn {
 public:
  void take();
  void give();  // by the thread that holds it
  // False, and nothing happens, where the calling thread does not hold it.
  bool give_if_mine();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::thread::id holder_;
};

}  // namespace equipoise::kernels
