#include "kernels/turn.h"

#include <cassert>

namespace equipoise::kernels {

void Turn::take() {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return serving_ == ticket; });
  holder_ = std::this_thread::get_id();
}

void Turn::give() {
  [[maybe_unused]] const bool mine = give_if_mine();
  assert(mine && "a turn is given by who holds it");
}

bool Turn::give_if_mine() {
  const std::lock_guard lock(mutex_);
  if (holder_ != std::this_thread::get_id()) return false;
  holder_ = {};
  ++serving_;
  changed_.notify_all();
  return true;
}

}  // namespace equipoise::kernels
