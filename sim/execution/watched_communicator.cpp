#include "sim/execution/watched_communicator.h"

#include <string>
#include <utility>

namespace equipoise::execution {
namespace {

using kernels::Communicator;
using kernels::Pending;

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

class Watched final : public Communicator {
 public:
  Watched(Communicator& inner, Progress& progress) : inner_(inner), progress_(progress) {}
  Watched(std::unique_ptr<Communicator> owned, Progress& progress)
      : owned_(std::move(owned)), inner_(*owned_), progress_(progress) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }

  void barrier() override {
    const WaitingCall call(progress_);
    inner_.barrier();
  }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    const WaitingCall call(progress_);
    inner_.all_gather(send, receive, count);
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    const WaitingCall call(progress_);
    inner_.reduce_scatter(send, receive, count);
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    const WaitingCall call(progress_);
    inner_.all_reduce(send, receive, count);
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    const WaitingCall call(progress_);
    inner_.all_to_all(send, receive, count);
  }
  void send(const void* data, std::int64_t count, int to, int tag) override {
    const WaitingCall call(progress_);
    inner_.send(data, count, to, tag);
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                    int tag) override {
    return std::make_unique<WatchedPending>(inner_.start_send(data, count, to, tag), progress_);
  }
  void receive(void* data, std::int64_t count, int from, int tag) override {
    const WaitingCall call(progress_);
    inner_.receive(data, count, from, tag);
  }
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    const WaitingCall call(progress_);
    inner_.send_receive(data, to, incoming, from, count);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    const WaitingCall call(progress_);
    return std::make_unique<Watched>(inner_.split(color, key), progress_);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  Progress& progress_;
};

}  // namespace

std::unique_ptr<Communicator> watched(Communicator& inner, Progress& progress) {
  return std::make_unique<Watched>(inner, progress);
}

}  // namespace equipoise::execution
