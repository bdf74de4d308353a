#include <exception>
#include <mutex>
#include <thread>

#include "kernels/collectives.h"
#include "kernels/turn.h"

namespace equipoise::kernels {
namespace {

// The exception to report: the first that is not only the echo of another rank's.
class FirstFailure {
 public:
  void note(std::exception_ptr failure, bool echo) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& kept = echo ? echo_ : first_;
    if (kept == nullptr) kept = std::move(failure);
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
    if (echo_ != nullptr) std::rethrow_exception(echo_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  std::exception_ptr echo_;
};

void run_rank(Communicator& me, const std::function<void(Communicator&)>& body, Turn* turn,
              FirstFailure& failure) {
  if (turn != nullptr) turn->take();
  try {
    body(me);
  } catch (const Aborted&) {
    failure.note(std::current_exception(), true);
  } catch (const std::exception& e) {
    failure.note(std::current_exception(), false);
    me.abort("rank " + std::to_string(me.rank()) + ": " + e.what());
  } catch (...) {
    failure.note(std::current_exception(), false);
    me.abort("rank " + std::to_string(me.rank()) + " failed");
  }
  if (turn != nullptr) turn->give_if_mine();
}

}  // namespace

void run_in_process(int ranks, const std::function<void(Communicator&)>& body, Turn* turn) {
  const auto group = make_in_process_group(ranks, turn);
  FirstFailure failure;
  std::vector<std::thread> threads;
  for (const auto& rank : group)
    threads.emplace_back([&, me = rank.get()] { run_rank(*me, body, turn, failure); });
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace equipoise::kernels
