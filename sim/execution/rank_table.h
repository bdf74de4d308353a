// What the ranks of one host tell each other about themselves, in memory that all of them share.
//
// The memory has no name in any file system (memfd): it is gone with the last process that has it, however
// that ends. Others reach it through /proc/PID/fd/N of the process that made it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/execution/progress.h"

namespace equipoise::execution {

// Text that is written rarely and read by other processes at any time. A reader may see half of the old and
// half of the new, which is good enough for a message.
template <std::size_t kBytes>
class SharedText {
 public:
  void set(std::string_view text) {
    for (std::size_t i = 0; i < kBytes; ++i)
      bytes_[i].store(i < text.size() ? text[i] : '\0', std::memory_order_relaxed);
  }
  [[nodiscard]] std::string get() const {
    std::string text;
    for (const std::atomic<char>& byte : bytes_) {
      const char c = byte.load(std::memory_order_relaxed);
      if (c == '\0') break;
      text += c;
    }
    return text;
  }

 private:
  std::array<std::atomic<char>, kBytes> bytes_;
};

// One rank. All zero until it joins.
struct alignas(128) RankSlot {
  std::atomic<std::int32_t> pid;   // 0: has not joined
  std::atomic<std::int32_t> rank;  // of the world
  std::atomic<std::int32_t> left;  // ended in order, or was told to end: not to be missed
  std::atomic<std::int32_t> step;
  std::atomic<std::uint64_t> beats;  // grow while the process lives and runs
  Progress progress;
  SharedText<64> label;  // of the policy
};

// Why the ranks end before their time. The first to claim it has the word.
struct alignas(128) RankFault {
  std::atomic<std::int32_t> claimed;
  std::atomic<std::int32_t> told;     // the text is complete
  std::atomic<std::int32_t> culprit;  // pid, or 0
  std::atomic<std::int32_t> teller;   // pid of the rank that claimed it, or 0
  SharedText<512> text;
};

class RankTable {
 public:
  // Throws UserError where the system has no such memory.
  explicit RankTable(int slots);
  // The table that another process made; without memory if it cannot be reached.
  static RankTable open(const std::string& path);
  // Of this process alone.
  static RankTable alone();
  RankTable(RankTable&& other) noexcept;
  RankTable& operator=(RankTable&&) = delete;
  ~RankTable();

  [[nodiscard]] bool valid() const { return memory_ != nullptr; }
  [[nodiscard]] std::string path() const;  // for open(), while this process lives
  [[nodiscard]] int slots() const;
  [[nodiscard]] RankSlot& slot(int index) const;
  [[nodiscard]] RankFault& fault() const;

 private:
  RankTable() = default;
  int file_ = -1;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

void join(RankSlot& slot, int rank);
// False where another was first.
bool claim(RankFault& fault, std::string_view text, int culprit_pid, int teller_pid);
// "rank 3 (pid 4711)".
std::string name_of(const RankSlot& slot);
// ", in attention of step 2 of wlb", as far as it is known.
std::string doing_of(const RankSlot& slot);

}  // namespace equipoise::execution
