// When the inputs of a lane's ops arrived on each CP rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/base/clock.h"
#include "policies/base/index.h"
#include "sim/schedule/schedule.h"

namespace equipoise {

// Activations, those of recomputing forwards, and gradients.
enum class Inbox : std::uint8_t { forward, again, backward };
inline constexpr std::size_t kInboxes = 3;
// A W has no inbox: its only input is its own B.
constexpr Inbox inbox_of(OpKind kind) {
  return kind == OpKind::B ? Inbox::backward : kind == OpKind::R ? Inbox::again : Inbox::forward;
}

// Times by inbox, slot (one for each micro-batch and virtual stage) and rank. Few inputs wait at one time, so
// their times lie in blocks that are reused once the op has run. The blocks stay in a cache, however many
// micro-batches there are.
class Inboxes {
 public:
  void begin(std::size_t slots, std::size_t ranks, Picoseconds start) {
    ranks_ = ranks;
    for (std::vector<std::uint32_t>& of_inbox : blocks_) of_inbox.assign(slots, kNothing);
    times_.assign((kFromStart + 1) * ranks, start);
    free_.clear();
  }
  // Marks the input as present on all ranks from the lane's start.
  void fill_from_start(Inbox inbox, std::size_t slot) { block(inbox, slot) = kFromStart; }

  // One time per rank, or null where nothing has arrived. Valid until the next fill().
  [[nodiscard]] const Picoseconds* arrived(Inbox inbox, std::size_t slot) const {
    const std::uint32_t block = blocks_[at(inbox)][slot];
    return block == kNothing ? nullptr : times_.data() + block * ranks_;
  }
  // Where to write the arrival times, one per rank. Valid until the next fill().
  [[nodiscard]] Picoseconds* fill(Inbox inbox, std::size_t slot) {
    std::uint32_t& filled = block(inbox, slot);
    if (filled <= kFromStart) filled = take_block();
    return times_.data() + filled * ranks_;
  }
  void empty(Inbox inbox, std::size_t slot) {
    std::uint32_t& emptied = block(inbox, slot);
    if (emptied > kFromStart) free_.push_back(emptied);
    emptied = kNothing;
  }

 private:
  static constexpr std::uint32_t kNothing = 0, kFromStart = 1;  // any other value is a place in times_

  [[nodiscard]] std::uint32_t& block(Inbox inbox, std::size_t slot) { return blocks_[at(inbox)][slot]; }
  std::uint32_t take_block() {
    if (!free_.empty()) {
      const std::uint32_t block = free_.back();
      free_.pop_back();
      return block;
    }
    times_.resize(times_.size() + ranks_);
    return static_cast<std::uint32_t>(times_.size() / ranks_ - 1);
  }

  std::size_t ranks_ = 1;
  std::array<std::vector<std::uint32_t>, kInboxes> blocks_;  // by slot
  std::vector<Picoseconds> times_;                           // by block and rank
  std::vector<std::uint32_t> free_;
};

}  // namespace equipoise
