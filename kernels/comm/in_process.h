// Ranks as threads of this process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/collectives.h"

namespace equipoise::kernels {

// One device for ranks that are threads: the holder of the turn computes, and the others queue.
//
// The queue is first come, first served, so the order of ranks depends only on when each became ready.
class Turn {
 public:
  void take();
  // Returns false, without effect, if the calling thread does not hold it.
  bool give_if_mine();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::thread::id holder_;
};

// One communicator per rank, each for a thread of its own. With a turn, a rank that holds it releases it
// while it waits for others and takes it again before a call returns, so that one rank computes at a time.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int ranks, Turn* turn = nullptr);

// Runs `body` on so many ranks, each a thread, and waits for all. With a turn, each holds it when `body`
// starts. If one throws, the others are aborted and the first exception is thrown here.
void run_in_process(int ranks, const std::function<void(Communicator&)>& body, Turn* turn = nullptr);

}  // namespace equipoise::kernels
