// Ranks as threads. In every collective a rank publishes its send buffer, waits for the others, reads what it
// needs, and waits again before anyone may reuse a buffer. Sums run in rank order, so every rank gets the
// same bits. A message is its sender's buffer: the receiver copies from it and confirms.
//
// When a rank aborts, nobody may free a buffer that another still reads. So once the group is aborted, no
// wait before a read completes, but every wait after one does: all its members have passed the first and will
// arrive.
#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "kernels/collectives.h"

namespace equipoise::kernels {

void Turn::take() {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return serving_ == ticket; });
  holder_ = std::this_thread::get_id();
}

bool Turn::give_if_mine() {
  const std::lock_guard lock(mutex_);
  if (holder_ != std::this_thread::get_id()) return false;
  holder_ = {};
  ++serving_;
  changed_.notify_all();
  return true;
}

namespace {

// The state that all groups split from one communicator share.
struct Hub {
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  std::string reason;
  Turn* turn = nullptr;

  // Waits until ready() and calls then(), both under the lock. The turn is released during a wait.
  template <class Ready, class Then>
  void wait(Ready ready, Then then) {
    bool gave = false;
    {
      std::unique_lock lock(mutex);
      if (!ready()) {
        gave = turn != nullptr && turn->give_if_mine();
        changed.wait(lock, ready);
      }
      then();
    }
    if (gave) turn->take();
  }
};

struct Message {
  enum class State { posted, reading, taken, withdrawn };
  const float* data = nullptr;
  std::int64_t count = 0;
  State state = State::posted;
};

using MessagePtr = std::shared_ptr<Message>;
using Address = std::tuple<int, int, int>;  // from, to, tag

struct Group {
  Group(std::shared_ptr<Hub> shared, int ranks)
      : hub(std::move(shared)),
        size(ranks),
        sends(static_cast<std::size_t>(ranks)),
        split_requests(static_cast<std::size_t>(ranks)),
        split_results(static_cast<std::size_t>(ranks)) {}

  // Waits for all ranks. It may throw Aborted before a read, and must not after one (see above).
  void wait_for_all(bool may_abort) {
    std::uint64_t mine = 0;
    {
      const std::lock_guard lock(hub->mutex);
      if (may_abort && hub->aborted) throw Aborted(hub->reason);
      mine = round;
      if (++arrived == size) {
        arrived = 0;
        ++round;
        hub->changed.notify_all();
        return;
      }
    }
    bool complete = false;
    hub->wait([&] { return round != mine || (may_abort && hub->aborted); },
              [&] { complete = round != mine; });
    if (!complete) throw Aborted(hub->reason);
  }

  // Takes the next message to that address out of its box; null if there is none.
  MessagePtr next_message(const Address& address) {
    const auto box = boxes.find(address);
    if (box == boxes.end()) return nullptr;
    MessagePtr message = box->second.front();
    box->second.pop_front();
    if (box->second.empty()) boxes.erase(box);
    return message;
  }

  void withdraw(const Address& address, const MessagePtr& message) {
    const auto box = boxes.find(address);
    std::deque<MessagePtr>& messages = box->second;
    messages.erase(std::find(messages.begin(), messages.end(), message));
    if (messages.empty()) boxes.erase(box);
  }

  std::shared_ptr<Hub> hub;
  int size;
  int arrived = 0;
  std::uint64_t round = 0;  // number of such waits so far
  std::vector<const float*> sends;
  std::vector<std::pair<int, int>> split_requests;  // (color, key) by rank
  std::vector<std::pair<std::shared_ptr<Group>, int>> split_results;
  std::map<Address, std::deque<MessagePtr>> boxes;  // none of them empty
};

class InProcessSend : public Pending {
 public:
  InProcessSend(std::shared_ptr<Group> group, Address address, MessagePtr message)
      : group_(std::move(group)), address_(std::move(address)), message_(std::move(message)) {}

  ~InProcessSend() override {
    if (!done_) finish(std::uncaught_exceptions() > exceptions_);
  }

  void wait() override {
    if (!finish(false)) throw Aborted(group_->hub->reason);
  }

 private:
  // Returns whether the message was taken. `give_up` takes it back if nobody reads it yet.
  bool finish(bool give_up) {
    using State = Message::State;
    Hub& hub = *group_->hub;
    hub.wait(
        [&] {
          const State state = message_->state;
          return state == State::taken || (state == State::posted && (give_up || hub.aborted));
        },
        [&] {
          if (message_->state != State::posted) return;
          message_->state = State::withdrawn;
          group_->withdraw(address_, message_);
        });
    done_ = true;
    return message_->state == State::taken;
  }

  std::shared_ptr<Group> group_;
  Address address_;
  MessagePtr message_;
  bool done_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

class InProcess : public Communicator {
 public:
  InProcess(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] std::string_view name() const override { return "in-process"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_->size; }

  void barrier() override { group_->wait_for_all(true); }

  void all_gather(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    for (int r = 0; r < size(); ++r) copy(floats(receive) + r * count, sent_by(r), count);
    all_have_read();
  }

  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    sum(receive, rank_ * count, count);
    all_have_read();
  }

  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    assert(send != receive && "not in place: others still read the send buffer");
    publish(send);
    sum(receive, 0, count);
    all_have_read();
  }

  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    for (int r = 0; r < size(); ++r) copy(floats(receive) + r * count, sent_by(r) + rank_ * count, count);
    all_have_read();
  }

  void send(const void* data, std::int64_t count, int to, int tag) override {
    start_send(data, count, to, tag)->wait();
  }

  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                    int tag) override {
    const Address address{rank_, to, tag};
    const auto message = std::make_shared<Message>();
    message->data = static_cast<const float*>(data);
    message->count = count;
    {
      const std::lock_guard lock(hub().mutex);
      if (hub().aborted) throw Aborted(hub().reason);
      group_->boxes[address].push_back(message);
      hub().changed.notify_all();
    }
    return std::make_unique<InProcessSend>(group_, address, message);
  }

  void receive(void* data, std::int64_t count, int from, int tag) override {
    MessagePtr message;
    const Address address{from, rank_, tag};
    hub().wait([&] { return hub().aborted || group_->boxes.count(address) > 0; },
               [&] {
                 if (hub().aborted) return;
                 message = group_->next_message(address);
                 message->state = Message::State::reading;
               });
    if (message == nullptr) throw Aborted(hub().reason);
    const bool alike = message->count == count;
    if (alike) copy(floats(data), message->data, count);
    {
      const std::lock_guard lock(hub().mutex);
      message->state = Message::State::taken;
      hub().changed.notify_all();
    }
    if (!alike)
      throw std::length_error("a message of " + std::to_string(message->count) +
                              " elements was received as one of " + std::to_string(count));
  }

  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    const auto sent = start_send(data, count, to, 0);
    receive(incoming, count, from, 0);
    sent->wait();
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    group_->split_requests[static_cast<std::size_t>(rank_)] = {color, key};
    barrier();
    if (rank_ == 0) make_groups();
    all_have_read();
    auto [group, rank] = group_->split_results[static_cast<std::size_t>(rank_)];
    all_have_read();
    return std::make_unique<InProcess>(std::move(group), rank);
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(hub().mutex);
    if (!hub().aborted) hub().reason = reason;
    hub().aborted = true;
    hub().changed.notify_all();
  }

 private:
  static float* floats(void* data) { return static_cast<float*>(data); }
  static void copy(float* target, const float* source, std::int64_t count) {
    if (count > 0) std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(float));
  }
  [[nodiscard]] const float* sent_by(int rank) const { return group_->sends[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Hub& hub() const { return *group_->hub; }

  void publish(const void* send) {
    group_->sends[static_cast<std::size_t>(rank_)] = static_cast<const float*>(send);
    group_->wait_for_all(true);
  }
  void all_have_read() { group_->wait_for_all(false); }

  void sum(void* receive, std::int64_t begin, std::int64_t count) {
    float* total = floats(receive);
    copy(total, sent_by(0) + begin, count);
    for (int r = 1; r < size(); ++r) {
      const float* more = sent_by(r) + begin;
      for (std::int64_t i = 0; i < count; ++i) total[i] += more[i];
    }
  }

  void make_groups() {
    std::vector<std::tuple<int, int, int>> order;  // color, key, rank
    for (int r = 0; r < size(); ++r) {
      const auto [color, key] = group_->split_requests[static_cast<std::size_t>(r)];
      order.emplace_back(color, key, r);
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size();) {
      std::size_t end = i;
      while (end < order.size() && std::get<0>(order[end]) == std::get<0>(order[i])) ++end;
      const auto group = std::make_shared<Group>(group_->hub, static_cast<int>(end - i));
      for (std::size_t j = i; j < end; ++j) {
        group_->split_results[static_cast<std::size_t>(std::get<2>(order[j]))] = {group,
                                                                                  static_cast<int>(j - i)};
      }
      i = end;
    }
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

// Chooses the exception to report: the first that is no mere consequence of another rank's.
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

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int ranks, Turn* turn) {
  const auto hub = std::make_shared<Hub>();
  hub->turn = turn;
  const auto group = std::make_shared<Group>(hub, ranks);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int r = 0; r < ranks; ++r) members.push_back(std::make_unique<InProcess>(group, r));
  return members;
}

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
