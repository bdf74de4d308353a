#include "sim/execution/communicators.h"

#include <string>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "sim/execution/device_memory.h"

namespace equipoise::execution {
namespace {

using kernels::Communicator;
using kernels::Pending;

// Wraps a communicator, and owns it if it was split off for this wrapper.
class WrappedCommunicator : public Communicator {
 public:
  WrappedCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned)
      : owned_(std::move(owned)), inner_(inner) {}
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  // Not counted as waiting, because another rank works alone for any length of time.
  void patient_barrier() override { inner_.patient_barrier(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
};

// --- Counts the calls in which a rank waits
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

class WatchedPending final : public Pending {
 public:
  WatchedPending(std::unique_ptr<Pending> inner, Progress& progress)
      : inner_(std::move(inner)), progress_(progress) {}
  ~WatchedPending() override {
    const WaitingCall call(progress_);
    inner_.reset();
  }
  void wait() override {
    const WaitingCall call(progress_);
    inner_->wait();
  }

 private:
  std::unique_ptr<Pending> inner_;
  Progress& progress_;
};

class WatchedCommunicator final : public WrappedCommunicator {
 public:
  WatchedCommunicator(Communicator& inner, Progress& progress, std::unique_ptr<Communicator> owned = nullptr)
      : WrappedCommunicator(inner, std::move(owned)), progress_(progress) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  void barrier() override { waiting()->barrier(); }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    waiting()->all_gather(send, receive, count);
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    waiting()->reduce_scatter(send, receive, count);
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    waiting()->all_reduce(send, receive, count);
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    waiting()->all_to_all(send, receive, count);
  }
  void send(const void* data, std::int64_t count, int to, int tag) override {
    waiting()->send(data, count, to, tag);
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                    int tag) override {
    return std::make_unique<WatchedPending>(inner_.start_send(data, count, to, tag), progress_);
  }
  void receive(void* data, std::int64_t count, int from, int tag) override {
    waiting()->receive(data, count, from, tag);
  }
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    waiting()->send_receive(data, to, incoming, from, count);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    auto group = waiting()->split(color, key);
    Communicator& inner = *group;
    return std::make_unique<WatchedCommunicator>(inner, progress_, std::move(group));
  }

 private:
  // Marks the rank as waiting until the end of the scope.
  struct Waiting {
    WaitingCall call;
    Communicator& inner;
    Communicator* operator->() const { return &inner; }
  };
  Waiting waiting() { return {WaitingCall(progress_), inner_}; }

  Progress& progress_;
};

// --- Device memory that travels through the host
using Floats = std::vector<float>;

// Keeps the host's copy until the message is sent.
class StagedSend final : public Pending {
 public:
  StagedSend(Floats values, Communicator& host, int to, int tag) : values_(std::move(values)) {
    pending_ = host.start_send(values_.data(), static_cast<std::int64_t>(values_.size()), to, tag);
  }
  void wait() override { pending_->wait(); }

 private:
  Floats values_;
  std::unique_ptr<Pending> pending_;
};

class StagedCommunicator final : public WrappedCommunicator {
 public:
  StagedCommunicator(Communicator& host, kernels::Backend& backend,
                     std::unique_ptr<Communicator> owned = nullptr)
      : WrappedCommunicator(host, std::move(owned)), backend_(backend) {}

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  void barrier() override { inner_.barrier(); }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    stage(send, count, receive, count * size(),
          [&](const float* from, float* to) { inner_.all_gather(from, to, count); });
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    stage(send, count * size(), receive, count,
          [&](const float* from, float* to) { inner_.reduce_scatter(from, to, count); });
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    stage(send, count, receive, count,
          [&](const float* from, float* to) { inner_.all_reduce(from, to, count); });
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    stage(send, count * size(), receive, count * size(),
          [&](const float* from, float* to) { inner_.all_to_all(from, to, count); });
  }
  void send(const void* data, std::int64_t count, int to, int tag) override {
    inner_.send(to_host(data, count).data(), count, to, tag);
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                    int tag) override {
    return std::make_unique<StagedSend>(to_host(data, count), inner_, to, tag);
  }
  void receive(void* data, std::int64_t count, int from, int tag) override {
    Floats values(at(count));
    inner_.receive(values.data(), count, from, tag);
    write_elements(backend_, data, values);
  }
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    stage(data, count, incoming, count,
          [&](const float* mine, float* arrived) { inner_.send_receive(mine, to, arrived, from, count); });
  }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    auto group = inner_.split(color, key);
    Communicator& inner = *group;
    return std::make_unique<StagedCommunicator>(inner, backend_, std::move(group));
  }

 private:
  [[nodiscard]] Floats to_host(const void* device, std::int64_t count) const {
    Floats values(at(count));
    backend_.synchronize();
    read_elements(backend_, device, values);
    return values;
  }
  template <class Call>
  void stage(const void* send, std::int64_t sent, void* receive, std::int64_t received, const Call& call) {
    const Floats mine = to_host(send, sent);
    Floats arrived(at(received));
    call(mine.data(), arrived.data());
    write_elements(backend_, receive, arrived);
  }

  kernels::Backend& backend_;
};

}  // namespace

std::unique_ptr<Communicator> watched(Communicator& inner, Progress& progress) {
  return std::make_unique<WatchedCommunicator>(inner, progress);
}

std::unique_ptr<Communicator> staged(Communicator& host, kernels::Backend& backend) {
  return std::make_unique<StagedCommunicator>(host, backend);
}

}  // namespace equipoise::execution
