// Where a rank is, for whoever watches it: written by the rank at every op, read by other threads and
// processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "sim/workload/ops.h"

namespace equipoise::execution {

struct Progress {
  static constexpr std::int32_t kNoOp = -1;
  std::atomic<std::uint64_t> ops{0};      // begun so far; one writer
  std::atomic<std::int32_t> name{kNoOp};  // OpName of the last
  std::atomic<std::int32_t> waiting{0};   // calls under way that wait for other ranks
};

// A nanosecond or two: plain stores, as only the rank itself writes.
inline void begin_op(Progress* progress, OpName name) {
  if (progress == nullptr) return;
  progress->name.store(static_cast<std::int32_t>(name), std::memory_order_relaxed);
  progress->ops.store(progress->ops.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// While it lives, the rank counts as waiting for others.
class WaitingCall {
 public:
  explicit WaitingCall(Progress& progress) : progress_(progress) { add(1); }
  ~WaitingCall() { add(-1); }
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;

 private:
  void add(std::int32_t calls) {
    progress_.waiting.store(progress_.waiting.load(std::memory_order_relaxed) + calls,
                            std::memory_order_relaxed);
  }
  Progress& progress_;
};

}  // namespace equipoise::execution
