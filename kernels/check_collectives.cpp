#include <algorithm>
#include <limits>

#include "kernels/checks.h"
#include "kernels/random_inputs.h"

namespace equipoise::kernels {
namespace {

// Every rank can make every rank's data: the reference needs no communication.
std::vector<float> data_of(int rank, std::int64_t count, std::uint64_t seed) {
  SplitMix64 random(seed * 1000003 + static_cast<std::uint64_t>(rank));
  return random_values(count, 1.0F, random);
}

std::vector<float> poison(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

class CollectiveChecker {
 public:
  CollectiveChecker(Communicator& group, std::int64_t count, std::uint64_t seed)
      : group_(group), count_(count), ranks_(group.size()) {
    for (int r = 0; r < ranks_; ++r) data_.push_back(data_of(r, count * ranks_, seed));
  }

  void all_gather() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_gather(mine().data(), got.data(), count_);
    std::vector<double> expected;
    for (int r = 0; r < ranks_; ++r) append(expected, r, 0);
    compare("all_gather", expected, got);
  }

  void reduce_scatter() {
    std::vector<float> got = poison(count_);
    group_.reduce_scatter(mine().data(), got.data(), count_);
    compare("reduce_scatter", sum(group_.rank() * count_, count_), got);
  }

  void all_reduce() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_reduce(mine().data(), got.data(), count_ * ranks_);
    compare("all_reduce", sum(0, count_ * ranks_), got);
  }

  void all_to_all() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_to_all(mine().data(), got.data(), count_);
    std::vector<double> expected;
    for (int r = 0; r < ranks_; ++r) append(expected, r, group_.rank() * count_);
    compare("all_to_all", expected, got);
  }

  void ring() {
    const int next = (group_.rank() + 1) % ranks_;
    const int previous = (group_.rank() + ranks_ - 1) % ranks_;
    std::vector<float> got = poison(count_);
    group_.send_receive(mine().data(), next, got.data(), previous, count_);
    std::vector<double> expected;
    append(expected, previous, 0);
    compare("send_receive", expected, got);
  }

  // Even ranks send to the odd rank after them, by separate send and receive.
  void pairs() {
    const int rank = group_.rank();
    if (rank % 2 == 0) {
      if (rank + 1 < ranks_) group_.send(mine().data(), count_, rank + 1);
      return;
    }
    std::vector<float> got = poison(count_);
    group_.receive(got.data(), count_, rank - 1);
    std::vector<double> expected;
    append(expected, rank - 1, 0);
    compare("send", expected, got);
  }

  // Every rank has three messages to the next one on their way and receives the last sent first, as pipelines
  // do; all their elements but the last, so that messages differ in length too.
  void messages() {
    const int next = (group_.rank() + 1) % ranks_;
    const int previous = (group_.rank() + ranks_ - 1) % ranks_;
    constexpr int kMessages = 3;
    const auto length = [&](int i) { return count_ - std::min<std::int64_t>(i, count_ - 1); };
    std::vector<std::unique_ptr<Pending>> sent;
    for (int i = 0; i < kMessages; ++i)
      sent.push_back(group_.start_send(mine().data() + part(i), length(i), next, 7 * i));
    for (int i = kMessages - 1; i >= 0; --i) {
      std::vector<float> got = poison(length(i));
      group_.receive(got.data(), length(i), previous, 7 * i);
      const auto first = data_[static_cast<std::size_t>(previous)].begin() + part(i);
      compare("start_send", {first, first + length(i)}, got);
    }
    for (const auto& message : sent) message->wait();
  }

  std::vector<CheckResult> take() { return std::move(results_); }

 private:
  // Where the data of a message begin.
  [[nodiscard]] std::int64_t part(int message) const { return message % ranks_ * count_; }

  [[nodiscard]] const std::vector<float>& mine() const {
    return data_[static_cast<std::size_t>(group_.rank())];
  }

  void append(std::vector<double>& to, int rank, std::int64_t begin) const {
    const auto first = data_[static_cast<std::size_t>(rank)].begin() + begin;
    to.insert(to.end(), first, first + count_);
  }

  [[nodiscard]] std::vector<double> sum(std::int64_t begin, std::int64_t count) const {
    std::vector<double> total(static_cast<std::size_t>(count), 0.0);
    for (const std::vector<float>& data : data_) {
      for (std::int64_t i = 0; i < count; ++i) {
        total[static_cast<std::size_t>(i)] += static_cast<double>(data[static_cast<std::size_t>(begin + i)]);
      }
    }
    return total;
  }

  void compare(const char* op, const std::vector<double>& expected, const std::vector<float>& got) {
    const std::string shape = std::to_string(ranks_) + " ranks, " + std::to_string(count_) + " elements";
    results_.push_back({op, "received", shape, relative_error(expected, got), 1e-6});
  }

  Communicator& group_;
  std::int64_t count_;
  int ranks_;
  std::vector<std::vector<float>> data_;
  std::vector<CheckResult> results_;
};

}  // namespace

std::vector<CheckResult> check_collectives(Communicator& communicator, std::uint64_t seed) {
  std::vector<CheckResult> all;
  for (const std::int64_t count : {1, 37, 4096}) {
    CollectiveChecker checker(communicator, count, seed);
    checker.all_gather();
    checker.reduce_scatter();
    checker.all_reduce();
    checker.all_to_all();
    checker.ring();
    checker.pairs();
    checker.messages();
    std::vector<CheckResult> more = checker.take();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace equipoise::kernels
