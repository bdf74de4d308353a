#include "sim/execution/staged_communicator.h"

#include <string>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "sim/execution/device_memory.h"

namespace equipoise::execution {
namespace {

using kernels::Communicator;
using kernels::Pending;

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

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& host, kernels::Backend& backend,
                     std::unique_ptr<Communicator> owned = nullptr)
      : owned_(std::move(owned)), inner_(host), backend_(backend) {}

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  void barrier() override { inner_.barrier(); }
  void patient_barrier() override { inner_.patient_barrier(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
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

  std::unique_ptr<Communicator> owned_;  // the host's, if it was split off for this one
  Communicator& inner_;
  kernels::Backend& backend_;
};

}  // namespace

std::unique_ptr<Communicator> staged(Communicator& host, kernels::Backend& backend) {
  return std::make_unique<StagedCommunicator>(host, backend);
}

}  // namespace equipoise::execution
