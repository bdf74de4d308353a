// Ranks as threads: every collective publishes its send buffer, meets the others, reads what it needs, and
// meets them again before anyone may reuse a buffer. Sums run in rank order, so every rank gets the same
// bits.
#include <algorithm>
#include <barrier>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <tuple>

#include "kernels/collectives.h"

namespace equipoise::kernels {
namespace {

struct Mail {
  const float* data = nullptr;  // null: the box is empty
  std::int64_t count = 0;
};

struct Group {
  explicit Group(int ranks)
      : size(ranks),
        meeting(ranks),
        sends(static_cast<std::size_t>(ranks)),
        split_requests(static_cast<std::size_t>(ranks)),
        split_results(static_cast<std::size_t>(ranks)),
        boxes(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

  Mail& box(int from, int to) { return boxes[static_cast<std::size_t>(from * size + to)]; }

  int size;
  std::barrier<> meeting;
  std::vector<const float*> sends;
  std::vector<std::pair<int, int>> split_requests;  // (color, key) by rank
  std::vector<std::pair<std::shared_ptr<Group>, int>> split_results;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Mail> boxes;  // by (from, to)
};

class InProcess : public Communicator {
 public:
  InProcess(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] std::string_view name() const override { return "in-process"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_->size; }

  void barrier() override { group_->meeting.arrive_and_wait(); }

  void all_gather(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    for (int r = 0; r < size(); ++r) copy(floats(receive) + r * count, sent_by(r), count);
    barrier();
  }

  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    sum(receive, rank_ * count, count);
    barrier();
  }

  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    assert(send != receive && "not in place: others still read the send buffer");
    publish(send);
    sum(receive, 0, count);
    barrier();
  }

  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    publish(send);
    for (int r = 0; r < size(); ++r) copy(floats(receive) + r * count, sent_by(r) + rank_ * count, count);
    barrier();
  }

  void send(const void* data, std::int64_t count, int to) override {
    post(data, count, to);
    wait_taken(to);
  }

  void receive(void* data, std::int64_t count, int from) override {
    std::unique_lock lock(group_->mutex);
    Mail& box = group_->box(from, rank_);
    group_->changed.wait(lock, [&] { return box.data != nullptr; });
    assert(box.count == count && "send and receive disagree about the size");
    copy(floats(data), box.data, count);
    box = {};
    group_->changed.notify_all();
  }

  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    post(data, count, to);
    receive(incoming, count, from);
    wait_taken(to);
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    group_->split_requests[static_cast<std::size_t>(rank_)] = {color, key};
    barrier();
    if (rank_ == 0) make_groups();
    barrier();
    auto [group, rank] = group_->split_results[static_cast<std::size_t>(rank_)];
    barrier();
    return std::make_unique<InProcess>(std::move(group), rank);
  }

 private:
  static float* floats(void* data) { return static_cast<float*>(data); }
  static void copy(float* target, const float* source, std::int64_t count) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(float));
  }
  [[nodiscard]] const float* sent_by(int rank) const { return group_->sends[static_cast<std::size_t>(rank)]; }

  void publish(const void* send) {
    group_->sends[static_cast<std::size_t>(rank_)] = static_cast<const float*>(send);
    barrier();
  }

  void sum(void* receive, std::int64_t begin, std::int64_t count) {
    float* total = floats(receive);
    copy(total, sent_by(0) + begin, count);
    for (int r = 1; r < size(); ++r) {
      const float* more = sent_by(r) + begin;
      for (std::int64_t i = 0; i < count; ++i) total[i] += more[i];
    }
  }

  void post(const void* data, std::int64_t count, int to) {
    std::unique_lock lock(group_->mutex);
    Mail& box = group_->box(rank_, to);
    group_->changed.wait(lock, [&] { return box.data == nullptr; });
    box = {static_cast<const float*>(data), count};
    group_->changed.notify_all();
  }

  void wait_taken(int to) {
    std::unique_lock lock(group_->mutex);
    group_->changed.wait(lock, [&] { return group_->box(rank_, to).data == nullptr; });
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
      const auto group = std::make_shared<Group>(static_cast<int>(end - i));
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

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int ranks) {
  const auto group = std::make_shared<Group>(ranks);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int r = 0; r < ranks; ++r) members.push_back(std::make_unique<InProcess>(group, r));
  return members;
}

}  // namespace equipoise::kernels
