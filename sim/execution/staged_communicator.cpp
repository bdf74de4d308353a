#include "sim/execution/staged_communicator.h"

#include <utility>

#include "sim/execution/element_conversion.h"

namespace equipoise::execution {
namespace {

// Holds the host's copy until the message has gone.
class StagedSend final : public kernels::Pending {
 public:
  StagedSend(std::vector<float> values, kernels::Communicator& host, int to, int tag)
      : values_(std::move(values)) {
    pending_ = host.start_send(values_.data(), static_cast<std::int64_t>(values_.size()), to, tag);
  }
  void wait() override { pending_->wait(); }

 private:
  std::vector<float> values_;
  std::unique_ptr<kernels::Pending> pending_;
};

std::vector<float> room(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count));
}

}  // namespace

std::vector<float> StagedCommunicator::to_host(const void* device, std::int64_t count) const {
  std::vector<float> values = room(count);
  backend_.synchronize();
  read_elements(backend_, device, values);
  return values;
}
void StagedCommunicator::to_device(void* device, const std::vector<float>& values) const {
  write_elements(backend_, device, values);
}

void StagedCommunicator::all_gather(const void* send, void* receive, std::int64_t count) {
  const std::vector<float> mine = to_host(send, count);
  std::vector<float> all = room(count * size());
  host_->all_gather(mine.data(), all.data(), count);
  to_device(receive, all);
}
void StagedCommunicator::reduce_scatter(const void* send, void* receive, std::int64_t count) {
  const std::vector<float> mine = to_host(send, count * size());
  std::vector<float> sum = room(count);
  host_->reduce_scatter(mine.data(), sum.data(), count);
  to_device(receive, sum);
}
void StagedCommunicator::all_reduce(const void* send, void* receive, std::int64_t count) {
  const std::vector<float> mine = to_host(send, count);
  std::vector<float> sum = room(count);
  host_->all_reduce(mine.data(), sum.data(), count);
  to_device(receive, sum);
}
void StagedCommunicator::all_to_all(const void* send, void* receive, std::int64_t count) {
  const std::vector<float> mine = to_host(send, count * size());
  std::vector<float> all = room(count * size());
  host_->all_to_all(mine.data(), all.data(), count);
  to_device(receive, all);
}
void StagedCommunicator::send(const void* data, std::int64_t count, int to, int tag) {
  host_->send(to_host(data, count).data(), count, to, tag);
}
std::unique_ptr<kernels::Pending> StagedCommunicator::start_send(const void* data, std::int64_t count, int to,
                                                                 int tag) {
  return std::make_unique<StagedSend>(to_host(data, count), *host_, to, tag);
}
void StagedCommunicator::receive(void* data, std::int64_t count, int from, int tag) {
  std::vector<float> values = room(count);
  host_->receive(values.data(), count, from, tag);
  to_device(data, values);
}
void StagedCommunicator::send_receive(const void* data, int to, void* incoming, int from,
                                      std::int64_t count) {
  const std::vector<float> mine = to_host(data, count);
  std::vector<float> arrived = room(count);
  host_->send_receive(mine.data(), to, arrived.data(), from, count);
  to_device(incoming, arrived);
}
std::unique_ptr<kernels::Communicator> StagedCommunicator::split(int color, int key) {
  return std::make_unique<StagedCommunicator>(host_->split(color, key), backend_);
}

}  // namespace equipoise::execution
